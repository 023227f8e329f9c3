package auditlog_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/internal/test/must"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("AUDIT_TEST_COMPRESS"); dir != "" {
		compressOnce(dir)
		return
	}
	goleak.VerifyTestMain(m)
}

func open(t *testing.T, dir string, opts auditlog.Options) *auditlog.Log {
	t.Helper()
	l, err := auditlog.Open(dir, opts)
	must.OK(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

// event is one with a message to know it by.
func event(message string) *audit.Event {
	e := audit.New(audit.KindDecision, audit.ClassHTTP, audit.HTTPActivity("GET"))
	e.Message = message
	return e
}

func appendAll(t *testing.T, l *auditlog.Log, messages ...string) {
	t.Helper()
	for _, m := range messages {
		must.OK(t, l.Append(context.Background(), event(m)))
	}
}

// onDisk reads the segments themselves, without this package.
func onDisk(t *testing.T, dir string) []audit.Event {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	must.OK(t, err)
	var all []audit.Event
	for _, f := range files {
		raw, err := os.ReadFile(f)
		must.OK(t, err)
		raw = bytes.TrimRight(raw, "\x00") // what the writer keeps ahead
		for i, line := range bytes.Split(bytes.TrimSuffix(raw, []byte("\n")), []byte("\n")) {
			if len(line) == 0 {
				continue
			}
			var e audit.Event
			if err := json.Unmarshal(line, &e); err != nil {
				t.Fatalf("%s line %d: %v: %q", f, i+1, err, line)
			}
			all = append(all, e)
		}
	}
	return all
}

// consecutive fails unless the events are numbered from 1 without gaps.
func consecutive(t *testing.T, events []audit.Event) {
	t.Helper()
	for i, e := range events {
		if e.Metadata.Sequence != uint64(i+1) {
			t.Fatalf("event %d has number %d", i+1, e.Metadata.Sequence)
		}
	}
}

func messages(events []audit.Event) string {
	var all []string
	for _, e := range events {
		all = append(all, e.Message)
	}
	return strings.Join(all, " ")
}

func TestAppend(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "audit")
	l := open(t, dir, auditlog.Options{})
	hostile := event("quote\" newline\n \"sequence\":7 \u2028 end")
	batch := []*audit.Event{event("b"), event("c")}
	appendAll(t, l, "a")
	must.OK(t, l.Append(context.Background(), batch...))
	must.OK(t, l.Append(context.Background(), hostile))
	// No Close: what Append acknowledged is there.
	got := onDisk(t, dir)
	consecutive(t, got)
	if want := "a b c " + hostile.Message; messages(got) != want {
		t.Errorf("messages = %q, want %q", messages(got), want)
	}
	for i, e := range append(batch, hostile) {
		if e.Metadata.Sequence != uint64(i+2) {
			t.Errorf("event %d was told number %d", i+2, e.Metadata.Sequence)
		}
	}
	for path, want := range map[string]os.FileMode{dir: 0o700 | os.ModeDir, filepath.Join(dir, "00000000000000000001.jsonl"): 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v, want %v", path, info.Mode(), err, want)
		}
	}
	if s := l.Stats(); s.Events != 4 || s.Groups != 3 || s.Syncs != 3 || s.Failures != 0 {
		t.Errorf("stats = %+v", s)
	}
	must.OK(t, l.Close())
	if err := l.Append(context.Background(), event("late")); !errors.Is(err, auditlog.ErrClosed) {
		t.Errorf("Append after Close: %v", err)
	}
	if err := l.Enqueue(event("late")); !errors.Is(err, auditlog.ErrClosed) {
		t.Errorf("Enqueue after Close: %v", err)
	}
}

func TestRestartsAndSegments(t *testing.T) {
	dir := t.TempDir()
	for i := range 7 {
		l := open(t, dir, auditlog.Options{SegmentSize: 2000})
		for j := range 10 {
			appendAll(t, l, fmt.Sprintf("%d.%d", i, j))
		}
		must.OK(t, l.Close())
	}
	got := onDisk(t, dir)
	consecutive(t, got)
	if len(got) != 70 || got[69].Message != "6.9" {
		t.Errorf("%d events, last %q", len(got), got[len(got)-1].Message)
	}
	files, _ := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if len(files) < 8 {
		t.Errorf("only %d segments", len(files))
	}
	for _, f := range files {
		if info, _ := os.Stat(f); info.Size() > 2000 {
			t.Errorf("%s has %d bytes", f, info.Size())
		}
	}
}

func TestGroupCommit(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, auditlog.Options{SegmentSize: 100_000})
	const workers, each = 32, 200
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			last := uint64(0)
			for i := range each {
				e := event(fmt.Sprintf("%d/%d", w, i))
				if err := l.Append(context.Background(), e); err != nil {
					t.Error(err)
					return
				}
				if e.Metadata.Sequence <= last {
					t.Errorf("number %d after %d", e.Metadata.Sequence, last)
				}
				last = e.Metadata.Sequence
			}
		})
	}
	wg.Wait()
	got := onDisk(t, dir)
	consecutive(t, got)
	if len(got) != workers*each {
		t.Errorf("%d events, want %d", len(got), workers*each)
	}
	s := l.Stats()
	if s.Syncs*2 > s.Events {
		t.Errorf("%d syncs for %d events: no groups", s.Syncs, s.Events)
	}
}

func TestEnqueue(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, auditlog.Options{Queue: 3})
	for _, m := range []string{"a", "b"} {
		must.OK(t, l.Enqueue(event(m)))
	}
	appendAll(t, l, "c") // takes them along, in order
	if got := messages(onDisk(t, dir)); got != "a b c" {
		t.Errorf("after Append: %q", got)
	}
	must.OK(t, l.Enqueue(event("idle")))
	must.Soon(t, "the queued event to be written", func() bool { return strings.HasSuffix(messages(onDisk(t, dir)), "idle") })
	must.OK(t, l.Enqueue(event("last")))
	must.OK(t, l.Close())
	got := onDisk(t, dir)
	consecutive(t, got)
	if messages(got) != "a b c idle last" {
		t.Errorf("after Close: %q", messages(got))
	}
}

// TestEnqueueWaitsForCompany: what nobody waits for makes no data sync while
// there are others to go along with.
func TestEnqueueWaitsForCompany(t *testing.T) {
	l := open(t, t.TempDir(), auditlog.Options{})
	const n = 200
	start := time.Now()
	for range n {
		appendAll(t, l, "decision")
		must.OK(t, l.Enqueue(event("completion")))
		time.Sleep(time.Millisecond)
	}
	s, idle := l.Stats(), uint64(time.Since(start)/(50*time.Millisecond))
	if s.Events < 2*n-1 {
		t.Errorf("%d events are written, want nearly all of %d", s.Events, 2*n)
	}
	if most := n + idle + 1; s.Syncs > most {
		t.Errorf("%d data syncs for %d appends, want no more than %d", s.Syncs, n, most)
	}
}

func TestTooLarge(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, auditlog.Options{})
	big := event(strings.Repeat("x", 2<<20))
	if err := l.Append(context.Background(), big); !errors.Is(err, auditlog.ErrTooLarge) {
		t.Errorf("Append: %v", err)
	}
	if err := l.Enqueue(big); !errors.Is(err, auditlog.ErrTooLarge) {
		t.Errorf("Enqueue: %v", err)
	}
	almost := event(strings.Repeat("x", 1<<20-2000))
	if err := l.Append(context.Background(), almost); err != nil {
		t.Error(err)
	}
	consecutive(t, onDisk(t, dir))
}

func TestOneWriter(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, auditlog.Options{})
	if _, err := auditlog.Open(dir, auditlog.Options{}); !errors.Is(err, auditlog.ErrLocked) {
		t.Errorf("second Open: %v", err)
	}
	held, err := l.CopyLock()
	must.OK(t, err)
	defer held.Close()
	must.OK(t, l.Close())
	open(t, dir, auditlog.Options{})
}

// TestOpenMends covers what a crash or a failing disk leaves behind.
func TestOpenMends(t *testing.T) {
	const first = "00000000000000000001.jsonl"
	tests := []struct {
		name  string
		spoil func(raw []byte) []byte
		// what the log then has, with the next event appended
		want    string
		said    string // in the operational log
		aside   bool   // the cut bytes were kept
		damaged bool   // the segment was left as it was
	}{
		{"nothing", func(b []byte) []byte { return b }, "a b c next", "", false, false},
		{"half a line", func(b []byte) []byte { return b[:len(b)-20] }, "a b next", "unfinished", true, false},
		{"no newline", func(b []byte) []byte { return b[:len(b)-1] }, "a b next", "unfinished", true, false},
		{"zeros", func(b []byte) []byte { return append(b, make([]byte, 5000)...) }, "a b c next", "", false, false},
		{"zeros and the end of a line", func(b []byte) []byte { return append(append(b, make([]byte, 4096)...), "\"}\n"...) }, "a b c next", "unfinished", true, false},
		{"megabytes of zeros", func(b []byte) []byte { return append(b, make([]byte, 3<<20)...) }, "a b c next", "", false, false},
		{"empty", func([]byte) []byte { return nil }, "next", "", false, false},
		{"only zeros", func([]byte) []byte { return make([]byte, 100) }, "next", "", false, false},
		{"bad line in the middle", func(b []byte) []byte {
			lines := bytes.SplitAfter(b, []byte("\n"))
			lines[1][1] = '}'
			return bytes.Join(lines, nil)
		}, "", "damaged", false, true},
		{"bad last line", func(b []byte) []byte { b[len(b)-3] = '{'; return b }, "", "damaged", false, true},
		{"a line is missing", func(b []byte) []byte {
			lines := bytes.SplitAfter(b, []byte("\n"))
			return append(lines[0], lines[2]...)
		}, "", "damaged", false, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			l := open(t, dir, auditlog.Options{})
			appendAll(t, l, "a", "b", "c")
			l.Close()
			path := filepath.Join(dir, first)
			raw, err := os.ReadFile(path)
			must.OK(t, err)
			spoilt := tt.spoil(bytes.Clone(raw))
			must.OK(t, os.WriteFile(path, spoilt, 0o600))
			var said bytes.Buffer
			l = open(t, dir, auditlog.Options{Logger: slog.New(slog.NewTextHandler(&said, nil))})
			appendAll(t, l, "next")
			l.Close()
			if !strings.Contains(said.String(), tt.said) || tt.said == "" && said.Len() > 0 {
				t.Errorf("operational log = %q, want %q", said.String(), tt.said)
			}
			aside, _ := filepath.Glob(filepath.Join(dir, first+".torn-*"))
			if (len(aside) == 1) != tt.aside {
				t.Errorf("set aside: %v", aside)
			}
			after, err := os.ReadFile(path)
			must.OK(t, err)
			if tt.aside {
				tail, _ := os.ReadFile(aside[0])
				if kept := bytes.LastIndexByte(after[:len(after)-1], '\n') + 1; !bytes.Equal(append(after[:kept:kept], tail...), spoilt) {
					t.Errorf("what is left and what was set aside are not what was there")
				}
			}
			if !tt.damaged {
				got := onDisk(t, dir)
				consecutive(t, got)
				if messages(got) != tt.want {
					t.Errorf("messages = %q, want %q", messages(got), tt.want)
				}
				return
			}
			if !bytes.Equal(after, spoilt) {
				t.Error("the damaged segment was changed")
			}
			var fresh []audit.Event
			for e, err := range auditlog.Read(context.Background(), dir, auditlog.Query{From: 4}) {
				must.OK(t, err)
				fresh = append(fresh, *e)
			}
			if len(fresh) != 2 || fresh[0].Unmapped.Sallyport.State != "audit-damaged" || fresh[1].Message != "next" ||
				!strings.Contains(fresh[0].Message, first+" at byte") || fresh[0].Metadata.Sequence != 4 {
				t.Errorf("after the damage: %+v", fresh)
			}
		})
	}
}

// Each event says where it happened, the log's own among them.
func TestPlace(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, auditlog.Options{Cluster: "prod", Node: "worker-1", After: 5})
	appendAll(t, l, "one")
	must.OK(t, l.Enqueue(event("two")))
	must.OK(t, l.Close())
	all := onDisk(t, dir)
	if len(all) != 3 {
		t.Fatalf("got %d events, want that of the gap and two", len(all))
	}
	for _, e := range all {
		if x := e.Unmapped.Sallyport; x.Cluster != "prod" || x.Node != "worker-1" {
			t.Errorf("%s happened on %q in %q", e.Message, x.Node, x.Cluster)
		}
		if e.Device == nil || e.Device.Hostname != "worker-1" {
			t.Errorf("%s happened on device %+v", e.Message, e.Device)
		}
	}
}
