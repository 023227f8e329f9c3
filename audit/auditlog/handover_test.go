package auditlog_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/internal/test/must"
)

// said reads the messages of a log, and fails unless its numbers are 1, 2, …
func said(t *testing.T, dir string) (messages []string) {
	t.Helper()
	for e, err := range auditlog.Read(context.Background(), dir, auditlog.Query{}) {
		must.OK(t, err)
		messages = append(messages, e.Message)
		if e.Metadata.Sequence != uint64(len(messages)) {
			t.Fatalf("event %d has number %d", len(messages), e.Metadata.Sequence)
		}
	}
	return messages
}

func say(t *testing.T, l *auditlog.Log, message string) {
	t.Helper()
	e := audit.New(audit.KindLifecycle, audit.ClassLifecycle, audit.LifecycleStart)
	e.Message = message
	must.OK(t, l.Append(t.Context(), e))
}

// The log goes from hand to hand, over ends of segments, without a number
// missing or given twice.
func TestHandOver(t *testing.T) {
	dir := t.TempDir()
	var want []string
	write := func(l *auditlog.Log, who string, n int) {
		for i := range n {
			m := fmt.Sprintf("%s %d %s", who, i, strings.Repeat("x", 400))
			say(t, l, m)
			want = append(want, m)
		}
	}
	for round := range 4 {
		own, err := auditlog.Open(dir, auditlog.Options{SegmentSize: 8 << 10})
		must.OK(t, err)
		write(own, "own", round*7) // none at first: nothing is there to be handed over
		h, err := own.HandOver()
		must.OK(t, err)
		if err := own.Append(t.Context(), audit.New(audit.KindLifecycle, audit.ClassLifecycle, 3)); !errors.Is(err, auditlog.ErrClosed) {
			t.Errorf("appending after the handover: %v", err)
		}
		if _, err := auditlog.Open(dir, auditlog.Options{}); !errors.Is(err, auditlog.ErrLocked) {
			t.Errorf("opening the log while another writes it: %v", err)
		}
		other, err := auditlog.Continue(h, auditlog.Options{SegmentSize: 8 << 10, Segment: func(first uint64) (*os.File, error) {
			return auditlog.NewSegment(dir, first, 0)
		}})
		must.OK(t, err)
		write(other, "other", 30)
		must.OK(t, errors.Join(other.Close(), own.Close()))
	}
	got := said(t, dir)
	if len(got) != len(want) {
		t.Fatalf("%d events, want %d", len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("event %d is %.20q, want %.20q", i+1, got[i], want[i])
		}
	}
}

// A process that continues the log cannot begin a segment where the log has been already, and
// nothing is removed for one whose writer says that it is void.
func TestNewSegment(t *testing.T) {
	dir := t.TempDir()
	for _, first := range []uint64{1, 9} {
		f, err := auditlog.NewSegment(dir, first, 0)
		must.OK(t, err)
		if _, err := f.WriteString("what it held\n"); err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
	}
	far := 9 + uint64(auditlog.MaxSegment(0))/auditlog.MinEvent
	for _, first := range []uint64{0, 1, 8, far + 1, 1 << 62, math.MaxUint64} {
		if f, err := auditlog.NewSegment(dir, first, 0); err == nil {
			t.Errorf("a segment for event %d", first)
			_ = f.Close()
		}
	}
	for range 3 {
		f, err := auditlog.NewSegment(dir, 9, 0)
		must.OK(t, err)
		_ = f.Close()
	}
	aside, err := filepath.Glob(filepath.Join(dir, "*9.jsonl.void-*"))
	if err != nil || len(aside) != 1 {
		t.Fatal(aside, err)
	}
	if text, err := os.ReadFile(aside[0]); err != nil || string(text) != "what it held\n" {
		t.Errorf("set aside: %q, %v", text, err)
	}
	f, err := auditlog.NewSegment(dir, far, 0)
	if err != nil {
		t.Fatalf("as far as a segment goes: %v", err)
	}
	_ = f.Close()
	if f, err := auditlog.NewSegment(t.TempDir(), 1<<40, 0); err == nil {
		t.Error("the first segment of a log begins far on")
		_ = f.Close()
	}
}

// A line with a number that the segment cannot have reached does not use up the
// numbers of the log.
func TestFarNumber(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, auditlog.Options{})
	say(t, l, "one")
	must.OK(t, l.Close())
	path := filepath.Join(dir, "00000000000000000001.jsonl")
	line, err := os.ReadFile(path)
	must.OK(t, err)
	far := strings.Replace(string(line), `"sequence":1`, fmt.Sprintf(`"sequence":%d`, uint64(1)<<62-1), 1)
	must.OK(t, os.WriteFile(path, append(line, far...), 0o600))
	for range 3 {
		l := open(t, dir, auditlog.Options{})
		say(t, l, "next")
		must.OK(t, l.Close())
	}
	last := audit.Event{}
	for e, err := range auditlog.Read(t.Context(), dir, auditlog.Query{}) {
		if err == nil {
			last = *e
		}
	}
	if n := last.Metadata.Sequence; n < 4 || n > 10 {
		t.Errorf("the last event has number %d", n)
	}
}

// No event takes fewer bytes than MinEvent says: numbers of smaller ones would be refused.
func TestMinEvent(t *testing.T) {
	for _, kind := range []audit.Kind{audit.KindLifecycle, audit.KindDecision, audit.KindDrop} {
		if n := len(auditlog.Encode(nil, audit.New(kind, audit.ClassLifecycle, 0))); n < auditlog.MinEvent {
			t.Errorf("an event of %s takes %d bytes", kind, n)
		}
	}
}

// A segment that was made huge, with next to nothing in it, is opened at once.
func TestHole(t *testing.T) {
	for name, end := range map[string]string{"at the end": "", "before something": "something", "before a line": "something\n"} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			l := open(t, dir, auditlog.Options{})
			say(t, l, "one")
			must.OK(t, l.Close())
			path := filepath.Join(dir, "00000000000000000001.jsonl")
			const size = 64 << 30
			if err := os.Truncate(path, size); err != nil {
				must.Lack(t, "%v", err) // the file system has a bound
			}
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			must.OK(t, err)
			if _, err := f.WriteAt([]byte(end), size); err != nil {
				t.Fatal(err)
			}
			_ = f.Close()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			begun := time.Now()
			l = open(t, dir, auditlog.Options{})
			took := time.Since(begun)
			runtime.ReadMemStats(&after)
			if mib := (after.TotalAlloc - before.TotalAlloc) >> 20; mib > 64 || took > 20*time.Second {
				t.Errorf("opening took %d MiB and %v", mib, took)
			}
			say(t, l, "two")
			must.OK(t, l.Close())
			if got := said(t, dir); len(got) != 2 || got[1] != "two" {
				t.Errorf("the log has %q", got)
			}
			if i, err := os.Stat(path); err != nil || i.Size() > 1<<20 {
				t.Errorf("the segment has %d bytes, %v", i.Size(), err)
			}
		})
	}
}
