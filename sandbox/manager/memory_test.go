package manager

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"sallyport/internal/test/must"
	"sallyport/internal/test/testnet"
	"sallyport/internal/tmpfs"
	"sallyport/sandbox"
	"sallyport/sandbox/state"
)

// roomBed is a bed whose sandboxes take 4 MiB of memory each, as its Meter says, in
// a folder in memory of so many bytes.
type roomBed struct {
	*bed
	meter *memories
}

// memories is a Meter that says how much of its memory a sandbox has.
type memories struct{ h *faultHost }

func (o *memories) Usage(context.Context, string) (sandbox.Usage, error) { return sandbox.Usage{}, nil }

func (o *memories) Resident(_ context.Context, id string) (int64, error) {
	o.h.mu.Lock()
	defer o.h.mu.Unlock()
	return o.h.resident(id), nil
}

func newRoomBed(t *testing.T, size int64) *roomBed {
	b := &roomBed{bed: newBed(t)}
	b.meter = &memories{h: b.h}
	b.size(t, size)
	return b
}

// size opens a manager with that much room.
func (b *roomBed) size(t *testing.T, size int64) {
	b.subnet = netip.MustParsePrefix("10.9.0.0/26")
	b.ramSize, b.counter = size, b.meter
	b.open(t)
}

const thoughts = 4 << 20 // bytes of memory

// runs makes a sandbox of an owner that runs.
func (b *roomBed) runs(t *testing.T, owner, name string) sandbox.Info {
	t.Helper()
	ctx := sandbox.ForOwner(t.Context(), owner)
	if _, _, err := b.GetOrCreate(ctx, name, sandbox.Spec{}); err != nil {
		t.Fatal(err)
	}
	i := b.must(t)(b.Start(ctx, name))
	b.h.mu.Lock()
	b.h.memory[i.ID] = strings.Repeat("m", thoughts)
	b.h.mu.Unlock()
	return i
}

// stall has memory be written for as long as go has not been called, and tells how
// many wait so.
func (b *roomBed) stall() (in func() int, goOn func()) {
	gate := make(chan struct{})
	var n atomic.Int32
	b.h.writing = func() {
		n.Add(1)
		<-gate
	}
	return func() int { return int(n.Load()) }, sync.OnceFunc(func() { close(gate) })
}

// margin is CheckpointSize's, in bytes.
const margin = 32 << 20

// asked is what a sandbox's memory is reserved with.
const asked = thoughts + thoughts/8 + margin

// TestRoomIsShared: however much memory of one owner's is being written, another's
// sandbox wakes, and the owner's own that wait go on running.
func TestRoomIsShared(t *testing.T) {
	for name, write := range map[string]func(b *roomBed, ctx context.Context, name string) error{
		"snapshots": func(b *roomBed, ctx context.Context, name string) error {
			_, err := b.Snapshot(ctx, name, sandbox.SnapshotSpec{Memory: true})
			return err
		},
		"forks": func(b *roomBed, ctx context.Context, name string) error {
			_, err := b.Fork(ctx, name, sandbox.ForkSpec{})
			return err
		},
		"hibernations": func(b *roomBed, ctx context.Context, name string) error {
			_, err := b.Hibernate(ctx, name)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			const many, fit = 8, 2
			b := newRoomBed(t, 2*fit*asked)
			b.runs(t, "b", "b")
			other := sandbox.ForOwner(t.Context(), "b")
			b.must(t)(b.Hibernate(other, "b"))

			in, goOn := b.stall()
			defer goOn()
			ctx := sandbox.ForOwner(t.Context(), "a")
			var over sync.WaitGroup
			errs := make([]error, many)
			for i := range many {
				b.runs(t, "a", fmt.Sprint("a", i))
			}
			for i := range many {
				over.Go(func() { errs[i] = write(b, ctx, fmt.Sprint("a", i)) })
			}
			must.Soon(t, "the owner's share is taken", func() bool { return in() >= fit })
			other, cancel := context.WithTimeout(other, time.Minute)
			defer cancel()
			if i, err := b.Wake(other, "b"); err != nil || i.State != sandbox.Running {
				t.Errorf("another owner's sandbox: %v, %v", i.State, err)
			}
			// Those that wait are there for others who use them.
			usable := map[int]bool{}
			must.Soon(t, "all that wait can be used", func() bool {
				for i := range many {
					if e := b.known(fmt.Sprint("a", i)); e.mu.TryLock() {
						b.release(e)
						usable[i] = true
					}
				}
				return len(usable) >= many-fit
			})
			if got := in(); got != fit {
				t.Errorf("%d are being written, there is room for %d", got, fit)
			}
			goOn()
			over.Wait()
			if err := errors.Join(errs...); err != nil {
				t.Error(err)
			}
			if left, _ := os.ReadDir(b.ram); len(left) > 0 {
				t.Errorf("left in RAM: %v", left)
			}
			if l, err := b.memory.Reserve(t.Context(), "a", 2*fit*asked, 0); err != nil {
				t.Errorf("not all room was given back: %v", err)
			} else {
				l.Release()
			}
		})
	}
}

// TestRoomRefuses: what never fits is refused before anything is done, and says how
// much it is.
func TestRoomRefuses(t *testing.T) {
	b := newRoomBed(t, 1<<30)
	b.runs(t, "", "a")
	b.keeps(t, "a", sandbox.SnapshotSpec{Name: "s", Memory: true})
	b.runs(t, "", "h")
	b.must(t)(b.Hibernate(t.Context(), "h"))
	b.size(t, 3<<20)
	b.h.events, b.h.gate = nil, nil
	for name, f := range map[string]func() error{
		"hibernate": func() error { _, err := b.Hibernate(t.Context(), "a"); return err },
		"snapshot": func() error {
			_, err := b.Snapshot(t.Context(), "a", sandbox.SnapshotSpec{Memory: true})
			return err
		},
		"fork":             func() error { _, err := b.Fork(t.Context(), "a", sandbox.ForkSpec{}); return err },
		"fork of snapshot": func() error { _, err := b.Fork(t.Context(), "a", sandbox.ForkSpec{Snapshot: "s"}); return err },
		"restore":          func() error { _, err := b.Restore(t.Context(), "a", sandbox.RestoreSpec{Snapshot: "s"}); return err },
		"wake":             func() error { _, err := b.Wake(t.Context(), "h"); return err },
		"fork of one that sleeps": func() error {
			_, err := b.Fork(t.Context(), "h", sandbox.ForkSpec{})
			return err
		},
	} {
		err := f()
		if !errors.Is(err, sandbox.ErrTooLarge) || !strings.Contains(err.Error(), "MiB are needed, and there are 3MiB") || !strings.Contains(err.Error(), "stop") && !strings.Contains(err.Error(), "leave its memory out") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(b.h.events)+len(b.h.gate) > 0 || b.must(t)(b.Get("a")).State != sandbox.Running || b.must(t)(b.Get("h")).State != sandbox.Hibernated {
		t.Errorf("something was done: %q %q", b.h.events, b.h.gate)
	}
	if _, err := b.Snapshot(t.Context(), "a", sandbox.SnapshotSpec{}); err != nil {
		t.Errorf("a snapshot without memory: %v", err)
	}
	// The way out.
	b.size(t, 1<<30)
	b.must(t)(b.Wake(t.Context(), "h"))
}

// TestRestoreTakesRoomOnce: it has its processes of before and after in RAM together,
// and waits for neither while it has the other.
func TestRestoreTakesRoomOnce(t *testing.T) {
	b := newRoomBed(t, asked+thoughts+1<<20)
	b.runs(t, "", "a")
	b.keeps(t, "a", sandbox.SnapshotSpec{Name: "s", Memory: true})
	var over sync.WaitGroup
	for range 4 {
		over.Go(func() {
			if _, err := b.Restore(t.Context(), "a", sandbox.RestoreSpec{Snapshot: "s"}); err != nil {
				t.Error(err)
			}
		})
	}
	over.Wait()
	if i := b.must(t)(b.Get("a")); i.State != sandbox.Running || i.Lost != "" {
		t.Errorf("it is %+v", i)
	}
	if left, _ := os.ReadDir(b.ram); len(left) > 0 {
		t.Errorf("left in RAM: %v", left)
	}
}

// TestGrownBeyondRoom: one that takes more than there was room made for is not
// written down, and goes on.
func TestGrownBeyondRoom(t *testing.T) {
	for name, f := range map[string]func(b *roomBed) error{
		"hibernate": func(b *roomBed) error { _, err := b.Hibernate(t.Context(), "a"); return err },
		"snapshot": func(b *roomBed) error {
			_, err := b.Snapshot(t.Context(), "a", sandbox.SnapshotSpec{Memory: true})
			return err
		},
		"fork": func(b *roomBed) error { _, err := b.Fork(t.Context(), "a", sandbox.ForkSpec{}); return err },
	} {
		t.Run(name, func(t *testing.T) {
			b := newRoomBed(t, 1<<30)
			i := b.runs(t, "", "a")
			b.h.failing = func() bool { b.h.grown = 64 << 20; return false } // the first step after room was made
			err := f(b)
			if !errors.Is(err, sandbox.ErrMemoryBusy) || !strings.Contains(err.Error(), "71303168 bytes") {
				t.Errorf("got %v", err)
			}
			if i := b.must(t)(b.Get("a")); i.State != sandbox.Running || b.h.paused[i.ID] || !b.h.containers[i.ID] {
				t.Errorf("it is %+v", i)
			}
			if len(b.h.memory[i.ID]) != thoughts {
				t.Error("it is not what it was")
			}
			if left, _ := os.ReadDir(b.ram); len(left) > 0 {
				t.Errorf("left in RAM: %v", left)
			}
		})
	}
}

// TestMemoryBesideItself: what is written of a sandbox counts as its own, so that it
// may have more, until that is gone or it has ended, and over a crash no longer than
// until the next start.
func TestMemoryBesideItself(t *testing.T) {
	b := newRoomBed(t, 1<<30)
	if _, _, err := b.GetOrCreate(t.Context(), "a", sandbox.Spec{Memory: 40 << 20}); err != nil {
		t.Fatal(err)
	}
	b.runs(t, "", "a")
	i := b.must(t)(b.Get("a"))
	confined := func(what string) {
		t.Helper()
		if b.h.raised[i.ID] {
			t.Errorf("after %s it may have more memory than its spec says", what)
		}
	}
	if _, err := b.Snapshot(t.Context(), "a", sandbox.SnapshotSpec{Memory: true}); err != nil {
		t.Fatal(err)
	}
	confined("a snapshot")
	if _, err := b.Fork(t.Context(), "a", sandbox.ForkSpec{}); err != nil {
		t.Fatal(err)
	}
	confined("a fork")
	b.h.fault = "checkpointed"
	if _, err := b.Snapshot(t.Context(), "a", sandbox.SnapshotSpec{Memory: true}); err == nil {
		t.Fatal("no fault")
	}
	confined("a snapshot that failed")
	b.h.fault = "checkpoint"
	if _, err := b.Hibernate(t.Context(), "a"); err == nil {
		t.Fatal("no fault")
	}
	b.h.fault = ""
	confined("a hibernation that failed")
	b.h.raised[i.ID] = true
	b.open(t)
	confined("a crash")
}

// TestConfinedWhenItIsFree: the kernel takes its time to give back what a large
// sandbox was written down in, and nobody is ended for that.
func TestConfinedWhenItIsFree(t *testing.T) {
	testnet.Privileged(t)
	b := newRoomBed(t, 1<<30)
	must.OK(t, tmpfs.Mount(b.ram))
	t.Cleanup(func() {
		if err := tmpfs.Unmount(b.ram); err != nil {
			t.Error(err)
		}
	})
	b.h.mounted = true
	if _, _, err := b.GetOrCreate(t.Context(), "a", sandbox.Spec{Memory: 512 << 20}); err != nil {
		t.Fatal(err)
	}
	i := b.runs(t, "", "a")
	b.h.mu.Lock()
	b.h.memory[i.ID] = strings.Repeat("m", 256<<20)
	b.h.mu.Unlock()
	if _, err := b.Fork(t.Context(), "a", sandbox.ForkSpec{}); err != nil {
		t.Fatal(err)
	}
	if !b.h.containers[i.ID] || b.h.raised[i.ID] {
		t.Errorf("it runs: %v, and may have more memory than its spec says: %v", b.h.containers[i.ID], b.h.raised[i.ID])
	}
}

// TestConfinedWhenItIsGone: a sandbox whose memory could not be written before the
// daemon ended is not ended for what there is of it.
func TestConfinedWhenItIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // what writes is waited for
		b := newRoomBed(t, 1<<30)
		if _, _, err := b.GetOrCreate(t.Context(), "a", sandbox.Spec{Memory: 40 << 20}); err != nil {
			t.Fatal(err)
		}
		i := b.runs(t, "", "a")
		must.OK(t, b.journal.Commit(&b.known("a").Stored, func(r *state.Record) { r.Sleep = state.Hibernating }))
		must.OK(t, os.Mkdir(filepath.Join(b.ram, i.ID+".part"), 0o700))
		b.h.raised[i.ID] = true
		b.open(t)
		if i := b.must(t)(b.Get("a")); i.State != sandbox.Running || b.h.memory[i.ID] == "" {
			t.Errorf("it is %v", i.State)
		}
		if b.h.raised[i.ID] {
			t.Error("it may have more memory than its spec says")
		}
	})
}

// TestRoomAfterCrash: what an earlier process has left in RAM takes room until it is
// removed.
func TestRoomAfterCrash(t *testing.T) {
	b := newRoomBed(t, 2*asked)
	b.runs(t, "", "a")
	b.must(t)(b.Hibernate(t.Context(), "a"))
	stray := filepath.Join(b.ram, "of-nobody")
	must.OK(t, os.Mkdir(stray, 0o700))
	must.OK(t, os.WriteFile(filepath.Join(stray, "checkpoint.img"), make([]byte, 2*asked-thoughts/2), 0o600))
	b.open(t)
	const patience = 500 * time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	began := time.Now()
	if _, err := b.Wake(ctx, "a"); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "waiting for room") {
		t.Errorf("it woke where there is no room: %v", err)
	}
	if waited := time.Since(began); waited < patience {
		t.Errorf("it waited for %v", waited)
	}
	if i := b.must(t)(b.Get("a")); i.State != sandbox.Hibernated {
		t.Errorf("it is %v", i.State)
	}
	must.OK(t, os.RemoveAll(stray))
	b.must(t)(b.Wake(t.Context(), "a"))
}
