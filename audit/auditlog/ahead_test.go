package auditlog_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/internal/test/must"
)

// grown makes a log that has zeros ahead of what is written, and does not close it.
func grown(t *testing.T, dir string) (l *auditlog.Log, path string, events int) {
	t.Helper()
	l = open(t, dir, auditlog.Options{})
	path = filepath.Join(dir, "00000000000000000001.jsonl")
	for {
		raw, err := os.ReadFile(path)
		if err == nil && bytes.HasSuffix(raw, make([]byte, 10_000)) {
			return l, path, events
		}
		if events == 1000 {
			t.Fatal("no zeros ahead of 1000 events")
		}
		appendAll(t, l, strings.Repeat("x", 500))
		events++
	}
}

func TestZerosAhead(t *testing.T) {
	t.Run("are not read", func(t *testing.T) {
		dir := t.TempDir()
		l, _, n := grown(t, dir)
		if got := len(readAll(t, dir)); got != n {
			t.Errorf("%d events, want %d", got, n)
		}
		appendAll(t, l, "in their place")
		if got := len(readAll(t, dir)); got != n+1 {
			t.Errorf("%d events, want %d", got, n+1)
		}
	})
	t.Run("go when the log is closed", func(t *testing.T) {
		dir := t.TempDir()
		l, path, n := grown(t, dir)
		must.OK(t, l.Close())
		raw, err := os.ReadFile(path)
		must.OK(t, err)
		if bytes.IndexByte(raw, 0) >= 0 || bytes.Count(raw, []byte("\n")) != n {
			t.Errorf("%d bytes, %d lines, want %d lines and no zeros", len(raw), bytes.Count(raw, []byte("\n")), n)
		}
	})
	t.Run("are no damage after a crash", func(t *testing.T) {
		dir, crashed := t.TempDir(), t.TempDir()
		_, path, n := grown(t, dir)
		raw, err := os.ReadFile(path)
		must.OK(t, err)
		must.OK(t, os.WriteFile(filepath.Join(crashed, filepath.Base(path)), raw, 0o600))
		appendAll(t, open(t, crashed, auditlog.Options{}), "next")
		if got := len(readAll(t, crashed)); got != n+1 {
			t.Errorf("%d events, want %d", got, n+1)
		}
		if aside, _ := filepath.Glob(filepath.Join(crashed, "*.torn-*")); aside != nil {
			t.Errorf("set aside: %v", aside)
		}
	})
	t.Run("a failed sync takes back", func(t *testing.T) {
		dir := t.TempDir()
		d := new(disk)
		l := open(t, dir, auditlog.Options{}.WithFiles(d.Open))
		text := strings.Repeat("x", 500)
		for i := range 400 {
			d.set(func(d *disk) { d.sync = nil })
			if i%40 == 39 {
				d.set(func(d *disk) { d.sync = errors.New("lost") })
			}
			if err := l.Append(t.Context(), event(fmt.Sprint(i, text))); (err == nil) != (i%40 != 39) {
				t.Fatalf("event %d: %v", i, err)
			}
		}
		n := 0
		for _, e := range readAll(t, dir) {
			if e.Unmapped.Sallyport.State == "" {
				n++
			}
		}
		if n != 390 {
			t.Errorf("%d events, want 390", n)
		}
	})
}

// arrives writes what a log lacks from a place on, and cuts nothing off meanwhile.
func arrives(t *testing.T, path string, whole []byte, from int) {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteAt(whole[from:], int64(from))
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.Error(err)
	}
}

// TestHalfLine reads a line of which the middle has not arrived: a reader that
// follows yields it when it has, and one that never arrives is damage.
func TestHalfLine(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, auditlog.Options{})
	appendAll(t, l, "a", "b", "c")
	l.Close()
	path := filepath.Join(dir, "00000000000000000001.jsonl")
	raw, err := os.ReadFile(path)
	must.OK(t, err)
	half := bytes.Clone(raw)
	last := bytes.LastIndexByte(raw[:len(raw)-1], '\n') + 1
	clear(half[last+10 : last+50])
	must.OK(t, os.WriteFile(path, half, 0o600))
	var damage *auditlog.DamageError
	for _, err := range auditlog.Read(t.Context(), dir, auditlog.Query{}) {
		if err != nil && !errors.As(err, &damage) {
			t.Fatal(err)
		}
	}
	if damage == nil {
		t.Error("a line with zeros in it that stays so is not reported")
	}

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var got []audit.Event
	for e, err := range auditlog.Read(ctx, dir, auditlog.Query{Follow: true}) {
		must.OK(t, err)
		if got = append(got, *e); len(got) == 2 {
			time.AfterFunc(50*time.Millisecond, func() { arrives(t, path, raw, last) })
		}
		if len(got) == 3 {
			break
		}
	}
	if messages(got) != "a b c" {
		t.Errorf("messages = %q", messages(got))
	}
}
