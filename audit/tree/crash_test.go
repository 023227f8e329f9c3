package tree_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sallyport/audit/auditlog"
	"sallyport/audit/tree"
)

// until waits for something that a Sealer does.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(what, "did not come")
		}
	}
}

// running runs a Sealer until the function that it returns is called.
func (s *sealed) running(t *testing.T) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); s.Run(ctx) }()
	return func() { cancel(); <-ended }
}

// sealedOnce is a log with a checkpoint of its first 7 records and the hashes of n exchanges
// after it, whose Sealer has crashed.
func sealedOnce(t *testing.T, root string, n int) *sealed {
	t.Helper()
	s, err := reopen(root, tree.Options{Records: 1 << 20, Every: time.Hour, Poll: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	s.exchanges(t, 3)
	stop := s.running(t)
	until(t, "the first checkpoint", func() bool { return s.Status().Size == 7 })
	s.exchanges(t, n)
	until(t, "the rest", func() bool { return s.Status().Size == uint64(7+2*n) })
	stop()
	if err := s.log.Close(); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestTornHashes: a crash has left any part of the hashes after the newest checkpoint,
// and zeros behind it. The tree goes on, and nothing is taken for a change.
func TestTornHashes(t *testing.T) {
	root := tempDir(t)
	sealedOnce(t, root, 5)
	hashes := func(root string) string { return filepath.Join(root, "data", "audit", "tree", "hashes") }
	all, err := os.ReadFile(hashes(root))
	if err != nil {
		t.Fatal(err)
	}
	const durable = 10 * 32 // hashes of 6 records
	for cut := durable; cut <= len(all); cut += 48 {
		for _, zeros := range []int{0, min(1000, len(all)-cut)} {
			copied := tempDir(t)
			if err := os.CopyFS(copied, os.DirFS(root)); err != nil {
				t.Fatal(err)
			}
			os.Chmod(filepath.Join(copied, "key"), 0o600)
			if err := os.WriteFile(hashes(copied), append(slices.Clone(all[:cut]), make([]byte, zeros)...), 0o600); err != nil {
				t.Fatal(err)
			}
			s := open(t, copied)
			s.exchanges(t, 2)
			s.end(t)
			r := s.verify(t)
			if len(r.Findings) > 0 || strings.Contains(strings.Join(s.records(t), ""), "audit-altered") {
				t.Fatalf("%d of %d bytes and %d zeros: %s", cut, len(all), zeros, r)
			}
		}
	}
}

// TestDamagedHashes: what a checkpoint covers is gone from the tree. It goes on all the
// same, an event says so, and only the tree is found to be wrong.
func TestDamagedHashes(t *testing.T) {
	for name, do := range map[string]func(b []byte) []byte{
		"gone":    func([]byte) []byte { return nil },
		"cut":     func(b []byte) []byte { return b[:200] },
		"changed": func(b []byte) []byte { b[30*32] ^= 1; return b },
	} {
		t.Run(name, func(t *testing.T) {
			s := closed(t, 8)
			path := filepath.Join(tree.Dir(s.dir), "hashes")
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, do(b), 0o600); err != nil {
				t.Fatal(err)
			}
			s = open(t, filepath.Dir(filepath.Dir(s.dir)))
			s.exchanges(t, 8)
			s.end(t)
			r := s.verify(t)
			if got := kinds(r); len(got) > 1 || len(got) == 1 && got[0] != string(tree.Tree) {
				t.Errorf("%s", r)
			}
			if !strings.Contains(strings.Join(s.records(t), ""), "audit-altered") {
				t.Error("no event says that hashes are lost")
			}
		})
	}
}

// TestCut: the end of the log is gone when it is opened. No number is given twice.
func TestCut(t *testing.T) {
	for _, left := range []int{5, 0} {
		s := closed(t, 12)
		records := s.records(t)
		for _, path := range s.segments(t)[1:] {
			os.Remove(path)
		}
		if err := os.WriteFile(s.segments(t)[0], []byte(strings.Join(append(records[:left:left], ""), "\n")), 0o600); err != nil {
			t.Fatal(err)
		}
		s = open(t, filepath.Dir(filepath.Dir(s.dir)))
		s.exchanges(t, 2)
		s.end(t)
		r := s.verify(t)
		if len(r.Findings) == 0 || r.Findings[len(r.Findings)-1].Kind != tree.Missing {
			t.Errorf("%d left: %s", left, r)
		}
		for _, f := range r.Findings {
			if f.First != 0 && (f.First != uint64(left+1) || f.Last != uint64(len(records))) {
				t.Errorf("%d of %d left: %s", left, len(records), f)
			}
		}
		text, _ := os.ReadFile(s.segments(t)[len(s.segments(t))-1])
		if !strings.Contains(string(text), `"audit-truncated"`) || !strings.Contains(string(text), fmt.Sprintf(`"sequence":%d}`, len(records)+1)) && !strings.Contains(string(text), fmt.Sprintf(`"sequence":%d,`, len(records)+1)) {
			t.Errorf("%d left: %s", left, text)
		}
	}
}

// TestAlteredTail: records after the newest checkpoint, which only the tree knows, were
// changed while nothing ran. An event says so.
func TestAlteredTail(t *testing.T) {
	root := tempDir(t)
	s := sealedOnce(t, root, 9)
	for _, path := range s.segments(t) {
		b, _ := os.ReadFile(path)
		if err := os.WriteFile(path, []byte(strings.Replace(string(b), "request 7 ", "request 8 ", 1)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if r := s.verify(t); len(r.Findings) != 1 || r.Findings[0].First != 22 {
		t.Errorf("before the start: %s", r)
	}
	s = open(t, root)
	s.end(t)
	if !strings.Contains(strings.Join(s.records(t), ""), "audit-altered") {
		t.Error("no event says so")
	}
	if r := s.verify(t); len(r.Findings) != 1 || r.Findings[0].First != 22 {
		t.Errorf("after it: %s", r)
	}
}

// TestFaults: the tree cannot be written for a while. The log goes on meanwhile, and
// sealing when it can.
func TestFaults(t *testing.T) {
	tests := []struct {
		operations string
		err        error
	}{
		{"write", syscall.ENOSPC}, {"write truncate", syscall.EIO}, {"sync", syscall.EIO}, {"sync truncate", syscall.EIO},
	}
	for _, tt := range tests {
		t.Run(tt.operations, func(t *testing.T) {
			var broken atomic.Bool
			o := tree.Options{Every: time.Millisecond, Poll: time.Millisecond}
			o.Fail(func(operation string) error {
				if broken.Load() && slices.Contains(strings.Fields(tt.operations), operation) {
					return tt.err
				}
				return nil
			})
			s, err := reopen(tempDir(t), o)
			if err != nil {
				t.Fatal(err)
			}
			s.exchanges(t, 3)
			stop := s.running(t)
			until(t, "a checkpoint", func() bool { return s.Status().Covered > 0 })
			for range 3 {
				broken.Store(true)
				s.exchanges(t, 20)
				until(t, "a failure", func() bool { return s.Status().Failure != "" })
				s.exchanges(t, 20)
				if st := s.Status(); st.Since.IsZero() || st.Failures == 0 {
					t.Errorf("status %+v", st)
				}
				broken.Store(false)
				until(t, "recovery", func() bool { return s.Status().Failure == "" })
			}
			stop()
			s.end(t)
			whole(t, s.verify(t), len(s.records(t)))
			all := strings.Join(s.records(t), "")
			for _, state := range []string{"audit-unsealed", "audit-sealed"} {
				if n := strings.Count(all, `"state":"`+state+`"`); n != 3 {
					t.Errorf("%d events %s", n, state)
				}
			}
		})
	}
}

// unsyncable is a log that is sealed, whose tree cannot be made durable while broken is set.
func unsyncable(t *testing.T, o tree.Options) (s *sealed, broken *atomic.Bool, stop func()) {
	t.Helper()
	broken = new(atomic.Bool)
	o.Every, o.Poll = time.Hour, time.Millisecond
	o.Fail(func(operation string) error {
		if broken.Load() && operation == "sync" {
			return syscall.EIO
		}
		return nil
	})
	s, err := reopen(tempDir(t), o)
	if err != nil {
		t.Fatal(err)
	}
	stop = s.running(t)
	until(t, "the tree", func() bool { return s.Status().Log != "" })
	broken.Store(true)
	return s, broken, stop
}

// fails waits until it could not be sealed again.
func (s *sealed) fails(t *testing.T) {
	t.Helper()
	n := s.Status().Failures + 2
	until(t, "a failure", func() bool { return s.Status().Failures >= n })
}

// TestAlteredMeanwhile: a record that no checkpoint covers is altered while the tree cannot
// be made durable. The tree has it as it was.
func TestAlteredMeanwhile(t *testing.T) {
	var seen atomic.Uint64
	s, broken, stop := unsyncable(t, tree.Options{Records: 1 << 20, Seen: func(l auditlog.Entry) {
		if n := seen.Add(1); l.Number != n {
			t.Errorf("record %d is seen as number %d", l.Number, n)
		}
	}})
	s.exchanges(t, 3)
	s.fails(t)
	covered := s.Status().Covered
	s.exchanges(t, 9)
	until(t, "the rest", func() bool { return seen.Load() >= covered+1+18 })
	for _, path := range s.segments(t) {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(f)
		if at := strings.Index(string(b), "request 8 "); at >= 0 {
			_, err = f.WriteAt([]byte("request 9 "), int64(at))
		}
		if err = errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	s.fails(t)
	broken.Store(false)
	until(t, "recovery", func() bool { return s.Status().Failure == "" })
	stop()
	s.end(t)
	r := s.verify(t)
	if got := kinds(r); !slices.Equal(got, []string{string(tree.Changed)}) {
		t.Errorf("%v: %s", got, r)
	}
}

// TestUnsyncedIsBounded: no more than some records are taken while the tree cannot be made
// durable.
func TestUnsyncedIsBounded(t *testing.T) {
	s, broken, stop := unsyncable(t, tree.Options{})
	s.exchanges(t, 4*64)
	until(t, "as many as it takes", func() bool { return s.Status().Size >= 8*64 })
	size := s.Status().Size
	s.exchanges(t, 50)
	s.fails(t)
	if n := s.Status().Size; n != size {
		t.Errorf("%d records were taken after %d", n-size, size)
	}
	broken.Store(false)
	until(t, "recovery", func() bool { return s.Status().Failure == "" })
	stop()
	s.end(t)
	whole(t, s.verify(t), len(s.records(t)))
}

// TestUnreadable: a record cannot be read when it is to be sealed. It counts as lost from
// then on, an event says so, and all others are anchored.
func TestUnreadable(t *testing.T) {
	s := open(t, tempDir(t))
	s.exchanges(t, 10)
	path := s.segments(t)[0]
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	line := strings.SplitAfter(string(b), "\n")[4]
	if err := os.WriteFile(path, []byte(strings.Replace(string(b), line, "x"+line[1:], 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	s.end(t)
	r := s.verify(t)
	if got := kinds(r); !slices.Equal(got, []string{string(tree.Changed), string(tree.Missing)}) {
		t.Errorf("%s", r)
	}
	if len(r.Ranges) != 1 || r.Ranges[0].Anchor != tree.ByCheckpoint || r.Ranges[0].Last < 22 {
		t.Errorf("the others: %s", r)
	}
	b, _ = os.ReadFile(s.segments(t)[len(s.segments(t))-1])
	if !strings.Contains(string(b), "1 records of the audit log up to number 20 are missing or cannot be read") {
		t.Errorf("no event says so: %s", b)
	}
}

// TestLostKey: no new key is made in place of one that is gone, and sealing goes on when it
// is back.
func TestLostKey(t *testing.T) {
	s := closed(t, 3)
	path := filepath.Join(tree.Dir(s.dir), "key")
	if err := os.Rename(path, path+".aside"); err != nil {
		t.Fatal(err)
	}
	s, err := reopen(filepath.Dir(filepath.Dir(s.dir)), tree.Options{Every: time.Millisecond, Poll: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	s.exchanges(t, 3)
	stop := s.running(t)
	until(t, "a failure", func() bool { return strings.Contains(s.Status().Failure, tree.ErrNoKey.Error()) })
	if err := os.Rename(path+".aside", path); err != nil {
		t.Fatal(err)
	}
	until(t, "recovery", func() bool { return s.Status().Failure == "" && s.Status().Covered > 7 })
	stop()
	s.end(t)
	if r := s.verify(t); len(r.Findings) > 0 || len(r.Ranges) != 1 {
		t.Errorf("%s", r)
	}
}
