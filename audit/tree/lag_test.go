package tree_test

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/audit/tree"
	"sallyport/internal/test/must"
)

// reporter is a log whose writer says how far it is.
type reporter struct {
	*sealed
	durable atomic.Uint64
}

func (r *reporter) Durable() uint64 { return r.durable.Load() }

// A writer that does not say how far it is does not keep records from being sealed
// without a word.
func TestLag(t *testing.T) {
	s := open(t, tempDir(t))
	r := &reporter{sealed: s}
	s.Sealer = tree.NewSealer(tree.Options{Dir: s.dir, Log: r, Key: s.key, Logger: slog.New(slog.DiscardHandler), Every: time.Millisecond, Poll: time.Millisecond})
	s.exchanges(t, 3)
	r.durable.Store(4)
	stop := s.running(t)
	until(t, "a failure", func() bool { return strings.Contains(s.Status().Failure, "not said to be durable") })
	r.durable.Store(1 << 20)
	until(t, "recovery", func() bool { return s.Status().Failure == "" && s.Status().Covered >= 6 })
	stop()
	s.end(t)
	if r := s.verify(t); len(r.Findings) > 0 {
		t.Error(r)
	}
}

// late is a log whose writer says that one more record is durable each time that it is asked.
type late struct{ *reporter }

func (l late) Durable() uint64 { return min(l.durable.Add(1), l.sealed.Durable()) }

// Nor does one that is always far behind.
func TestLate(t *testing.T) {
	s := open(t, tempDir(t))
	r := &reporter{sealed: s}
	s.Sealer = tree.NewSealer(tree.Options{
		Dir: s.dir, Log: late{r}, Key: s.key, Logger: slog.New(slog.DiscardHandler), Every: time.Millisecond, Poll: time.Millisecond,
	})
	s.exchanges(t, 1000)
	stop := s.running(t)
	until(t, "a failure", func() bool { return strings.Contains(s.Status().Failure, "not said to be durable") })
	r.durable.Store(1 << 20)
	stop()
	s.end(t)
}

// Records that only look like a checkpoint's own do not keep the next one from being
// signed, and a checkpoint's own is no reason for another one.
func TestFalseCheckpoints(t *testing.T) {
	s := open(t, tempDir(t))
	s.exchanges(t, 1)
	stop := s.running(t)
	until(t, "a checkpoint", func() bool { return s.Status().Covered == 2 })
	stop()
	first := s.Status().Covered
	if s.end(t); s.Status().Covered != first || len(s.records(t)) != 3 {
		t.Errorf("a checkpoint of a checkpoint: %+v", s.Status())
	}
	note := ""
	for e := range auditlog.Read(t.Context(), s.dir, auditlog.Query{}) {
		note = e.Unmapped.Sallyport.Checkpoint
	}
	s = open(t, filepath.Dir(filepath.Dir(s.dir)))
	for range 3 {
		e := audit.New(audit.KindLifecycle, audit.ClassLifecycle, audit.ActivityOther)
		e.Unmapped.Sallyport.State, e.Unmapped.Sallyport.Checkpoint = tree.State, note
		if err := s.log.Append(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	if s.end(t); s.Status().Covered != 6 {
		t.Errorf("%+v", s.Status())
	}
}

// refusing is a log whose writer refuses checkpoints.
type refusing struct{ *sealed }

func (refusing) Append(context.Context, ...*audit.Event) error { return auditlog.ErrUnwritable }

// Settled is called while nothing can be sealed too.
func TestSettledUnsealed(t *testing.T) {
	s := open(t, tempDir(t))
	var settled atomic.Bool
	s.Sealer = tree.NewSealer(tree.Options{
		Dir: s.dir, Log: refusing{s}, Key: s.key, Logger: slog.New(slog.DiscardHandler), Poll: time.Millisecond,
		Settled: func() { settled.Store(true) },
	})
	s.exchanges(t, 3)
	stop := s.running(t)
	until(t, "a look", settled.Load)
	stop()
	if err := s.Sealer.Close(); !errors.Is(err, auditlog.ErrUnwritable) {
		t.Errorf("it was sealed: %v", err)
	}
	must.OK(t, s.log.Close())
}

// Seen is called with each record once the tree has its hash, and Settled after that.
func TestSeen(t *testing.T) {
	s := open(t, tempDir(t))
	var settled atomic.Uint64
	var broken atomic.Bool
	var seen []string // the Sealer's goroutine alone has it until it ends
	o := tree.Options{
		Dir: s.dir, Log: s, Key: s.key, Logger: slog.New(slog.DiscardHandler), Every: time.Hour, Poll: time.Millisecond,
		Seen: func(l auditlog.Entry) {
			if seen = append(seen, string(l.JSON)); l.Number != uint64(len(seen)) {
				t.Errorf("record %d is seen as number %d", l.Number, len(seen))
			}
			if broken.Load() {
				t.Errorf("record %d is seen, and the tree cannot be written", l.Number)
			}
		},
		Settled: func() { settled.Store(uint64(len(seen))) },
	}
	o.Fail(func(string) error {
		if broken.Load() {
			return syscall.ENOSPC
		}
		return nil
	})
	s.Sealer = tree.NewSealer(o)
	stop := s.running(t)
	until(t, "the tree", func() bool { return s.Status().Log != "" })
	broken.Store(true)
	s.exchanges(t, 300) // more than is read at once
	until(t, "a failure", func() bool { return s.Status().Failure != "" })
	broken.Store(false)
	until(t, "the end", func() bool { return settled.Load() >= 600 && s.Status().Failure == "" })
	stop()
	s.end(t)
	if all := s.records(t); len(seen) > len(all) || !slices.Equal(seen, all[:len(seen)]) {
		t.Error("records were seen as others than they are")
	}
}
