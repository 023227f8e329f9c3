package auditlog_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/internal/test/must"
)

// collect reads what is there: messages in order, damage as "!".
func collect(t *testing.T, dir string, q auditlog.Query) string {
	t.Helper()
	var all []string
	for e, err := range auditlog.Read(t.Context(), dir, q) {
		var damage *auditlog.DamageError
		switch {
		case errors.As(err, &damage):
			all = append(all, "!")
		case err != nil:
			t.Fatal(err)
		default:
			all = append(all, e.Message)
		}
	}
	return strings.Join(all, " ")
}

func TestUndamaged(t *testing.T) {
	broken := errors.New("broken")
	list := func(yield func(int, error) bool) {
		_ = yield(1, nil) && yield(0, fmt.Errorf("reading: %w", &auditlog.DamageError{})) && yield(2, nil) && yield(0, broken)
	}
	var got []int
	for n, err := range auditlog.Undamaged(list) {
		if err != nil && !errors.Is(err, broken) {
			t.Errorf("yielded the error %v", err)
		}
		got = append(got, n)
	}
	if !slices.Equal(got, []int{1, 2, 0}) {
		t.Errorf("yielded %v, want 1, 2 and the end's error", got)
	}
}

// story is a log of ten events in several segments.
func story(t *testing.T) (string, *auditlog.Log) {
	t.Helper()
	dir := t.TempDir()
	l := open(t, dir, auditlog.Options{SegmentSize: 1200})
	for i := range 10 {
		e := event(fmt.Sprint(i))
		e.Time = int64(i) * 1000
		e.Unmapped.Sallyport.Sandbox = []string{"even", "odd"}[i%2]
		switch i {
		case 3, 4:
			e.Action = audit.ActionDenied
		case 5:
			e.Unmapped.Sallyport.Kind = audit.KindDrop
		case 6:
			e.Unmapped.Sallyport.Kind = audit.KindLifecycle
		}
		must.OK(t, l.Append(context.Background(), e))
	}
	if files, _ := filepath.Glob(filepath.Join(dir, "*.jsonl")); len(files) < 3 {
		t.Fatalf("only %d segments", len(files))
	}
	return dir, l
}

func TestQuery(t *testing.T) {
	dir, _ := story(t)
	tests := []struct {
		name  string
		query auditlog.Query
		want  string
	}{
		{"all", auditlog.Query{}, "0 1 2 3 4 5 6 7 8 9"},
		{"from", auditlog.Query{From: 8}, "7 8 9"},
		{"from the future", auditlog.Query{From: 100}, ""},
		{"since", auditlog.Query{Since: time.UnixMilli(6500)}, "7 8 9"},
		{"sandbox", auditlog.Query{Sandbox: "odd"}, "1 3 5 7 9"},
		{"no such sandbox", auditlog.Query{Sandbox: "none"}, ""},
		{"kind", auditlog.Query{Kind: audit.KindLifecycle}, "6"},
		{"denied", auditlog.Query{Denied: true}, "3 4 5"},
		{"denied in a sandbox", auditlog.Query{Denied: true, Sandbox: "even"}, "4"},
		{"last", auditlog.Query{Last: 3}, "7 8 9"},
		{"last over segments", auditlog.Query{Last: 7}, "3 4 5 6 7 8 9"},
		{"last of a sandbox", auditlog.Query{Last: 3, Sandbox: "even"}, "4 6 8"},
		{"more than there are", auditlog.Query{Last: 100}, "0 1 2 3 4 5 6 7 8 9"},
		{"last denied", auditlog.Query{Last: 1, Denied: true}, "5"},
		{"last and from", auditlog.Query{Last: 5, From: 9}, "8 9"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := collect(t, dir, tt.query); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
	t.Run("stop early", func(t *testing.T) {
		for e, err := range auditlog.Read(t.Context(), dir, auditlog.Query{Last: 5}) {
			if err != nil || e.Message != "5" {
				t.Errorf("got %v, %v", e, err)
			}
			break
		}
	})
	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for _, err := range auditlog.Read(ctx, dir, auditlog.Query{}) {
			if !errors.Is(err, context.Canceled) {
				t.Errorf("err = %v", err)
			}
		}
	})
	t.Run("no directory", func(t *testing.T) {
		n := 0
		for _, err := range auditlog.Read(t.Context(), filepath.Join(dir, "none"), auditlog.Query{}) {
			n++
			if !errors.Is(err, os.ErrNotExist) {
				t.Errorf("err = %v", err)
			}
		}
		if n != 1 {
			t.Errorf("%d yields", n)
		}
	})
}

func TestReadReportsDamage(t *testing.T) {
	tests := []struct {
		name  string
		spoil func(t *testing.T, files []string)
		want  string
	}{
		{"a bad line", func(t *testing.T, files []string) {
			edit(t, files[0], func(b []byte) []byte { b[5] = 0xff; b[0] = 'x'; return b })
		}, "! 1 2 3 4 5 6 7 8 9"},
		{"a line is gone", func(t *testing.T, files []string) {
			edit(t, files[1], func(b []byte) []byte { return b[strings.IndexByte(string(b), '\n')+1:] })
		}, "0 1 2 ! 4 5 6 7 8 9"},
		{"a line stands in another's place", func(t *testing.T, files []string) {
			edit(t, files[0], func(b []byte) []byte {
				return bytes.Replace(b, []byte(`"sequence":2,`), []byte(`"sequence":4611686018427387900,`), 1)
			})
		}, "0 ! 2 3 4 5 6 7 8 9"},
		{"a line is there twice", func(t *testing.T, files []string) {
			edit(t, files[0], func(b []byte) []byte {
				end := bytes.IndexByte(b, '\n') + 1
				return append(bytes.Clone(b[:end]), b...)
			})
		}, "0 ! 1 2 3 4 5 6 7 8 9"},
		{"the end of an old segment is gone", func(t *testing.T, files []string) {
			edit(t, files[0], func(b []byte) []byte { return b[:len(b)-10] })
		}, "0 1 ! 3 4 5 6 7 8 9"},
		{"an old segment is gone", func(t *testing.T, files []string) {
			must.OK(t, os.Remove(files[1]))
		}, "0 1 2 ! 6 7 8 9"},
		{"the live end is not finished", func(t *testing.T, files []string) {
			edit(t, files[len(files)-1], func(b []byte) []byte { return append(b, `{"metadata":{"ver`...) })
		}, "0 1 2 3 4 5 6 7 8 9"},
		{"other files", func(t *testing.T, files []string) {
			for _, name := range []string{"notes.txt", "1.jsonl", "00000000000000000000.jsonl", "0000000000000000000x.jsonl"} {
				edit(t, filepath.Join(filepath.Dir(files[0]), name), func([]byte) []byte { return []byte("x\n") })
			}
		}, "0 1 2 3 4 5 6 7 8 9"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir, l := story(t)
			l.Close()
			files, _ := filepath.Glob(filepath.Join(dir, "*.jsonl"))
			tt.spoil(t, files)
			if got := collect(t, dir, auditlog.Query{}); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func edit(t *testing.T, path string, f func([]byte) []byte) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	must.OK(t, os.WriteFile(path, f(raw), 0o600))
}

// follow reads in the background until the test ends.
func follow(t *testing.T, dir string, q auditlog.Query) <-chan string {
	t.Helper()
	q.Follow = true
	ctx, cancel := context.WithCancel(t.Context())
	out := make(chan string, 10_000)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e, err := range auditlog.Read(ctx, dir, q) {
			if err != nil {
				out <- "! " + err.Error()
				continue
			}
			out <- e.Message
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return out
}

func expect(t *testing.T, out <-chan string, want ...string) {
	t.Helper()
	for _, w := range want {
		select {
		case got := <-out:
			if got != w {
				t.Fatalf("got %q, want %q", got, w)
			}
		case <-time.After(time.Minute):
			t.Fatalf("waited in vain for %q", w)
		}
	}
}

func TestFollow(t *testing.T) {
	dir := t.TempDir()
	out := follow(t, dir, auditlog.Query{}) // before there is a segment
	l := open(t, dir, auditlog.Options{SegmentSize: 1000})
	appendAll(t, l, "a")
	expect(t, out, "a")
	for i := range 20 { // over several segments
		m := fmt.Sprint(i)
		appendAll(t, l, m)
		if i%7 == 0 {
			expect(t, out, m)
			continue
		}
		expect(t, out, m)
	}
	l.Close()
	l = open(t, dir, auditlog.Options{SegmentSize: 1000})
	appendAll(t, l, "restarted")
	expect(t, out, "restarted")
	last := follow(t, dir, auditlog.Query{Last: 1})
	expect(t, last, "restarted")
	appendAll(t, l, "more")
	expect(t, last, "more")
	expect(t, out, "more")
}

// TestFollowBurst: a reader that is behind loses nothing at the seams.
func TestFollowBurst(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, auditlog.Options{SegmentSize: 3000})
	out := follow(t, dir, auditlog.Query{})
	for i := range 1000 {
		must.OK(t, l.Append(t.Context(), event(fmt.Sprint(i))))
	}
	for i := range 1000 {
		expect(t, out, fmt.Sprint(i))
	}
}

// TestReadWhileWritten: whoever begins to read has what was acknowledged by then,
// whole, however the writer gets it to the disk.
func TestReadWhileWritten(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, auditlog.Options{})
	appendAll(t, l, "first")
	ctx, stop := context.WithCancel(t.Context())
	var acknowledged atomic.Uint64
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				e := event(strings.Repeat("x", rand.IntN(3000)))
				if err := l.Append(context.Background(), e); err != nil {
					t.Error(err)
				}
				for {
					was := acknowledged.Load()
					if was >= e.Metadata.Sequence || acknowledged.CompareAndSwap(was, e.Metadata.Sequence) {
						break
					}
				}
				time.Sleep(rand.N(3 * time.Millisecond))
			}
		})
	}
	defer wg.Wait()
	defer stop()
	for deadline := time.Now().Add(time.Second); time.Now().Before(deadline); {
		want, got := acknowledged.Load(), uint64(0)
		for e, err := range auditlog.Read(t.Context(), dir, auditlog.Query{}) {
			must.OK(t, err)
			got = e.Metadata.Sequence
		}
		if got < want {
			t.Fatalf("read up to event %d, %d was acknowledged before", got, want)
		}
	}
}

// TestFollowCut: a writer cuts off what it could not make durable, or a crash
// left unfinished, and gives the numbers again.
func TestFollowCut(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, auditlog.Options{})
	appendAll(t, l, "a", "b", "cut")
	l.Close()
	out := follow(t, dir, auditlog.Query{})
	expect(t, out, "a", "b", "cut")
	path := filepath.Join(dir, "00000000000000000001.jsonl")
	raw, err := os.ReadFile(path)
	must.OK(t, err)
	must.OK(t, os.Truncate(path, int64(bytes.LastIndexByte(raw[:len(raw)-1], '\n')+1)))
	time.Sleep(2 * time.Second) // the reader looks ten times a second, and later on a busy machine
	l = open(t, dir, auditlog.Options{})
	appendAll(t, l, "c", "d")
	expect(t, out, "c", "d")
}

// TestFollowFaults: what the writer takes back does not stop or fool a reader
// for long.
func TestFollowFaults(t *testing.T) {
	for _, before := range []int{0, 2} {
		t.Run(fmt.Sprint(before, " before"), func(t *testing.T) {
			dir := t.TempDir()
			d := new(disk)
			l := open(t, dir, auditlog.Options{}.WithFiles(d.Open))
			for i := range before {
				appendAll(t, l, fmt.Sprint(i))
			}
			d.set(func(d *disk) { d.sync, d.truncate = syscall.EIO, syscall.EIO })
			if err := l.Append(t.Context(), event("ghost")); err == nil {
				t.Fatal("no error")
			}
			out := follow(t, dir, auditlog.Query{})
			for i := range before {
				expect(t, out, fmt.Sprint(i))
			}
			expect(t, out, "ghost") // not durable, and not known to be
			d.set(func(d *disk) { d.faults = faults{} })
			appendAll(t, l, "real")
			var got []string
			for !strings.Contains(strings.Join(got, " "), "real") {
				select {
				case m := <-out:
					got = append(got, m)
				case <-time.After(time.Minute):
					t.Fatalf("got %q only", got)
				}
			}
			if s := strings.Join(got, " "); strings.Contains(s, "!") || strings.Contains(s, "ghost") {
				t.Errorf("got %q", got)
			}
		})
	}
}
