package manager

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sallyport/internal/test/must"
	"sallyport/internal/tmpfs"
	"sallyport/sandbox"
)

const spare = 1 << 20 // bytes of room that nobody needs

// checkQuotaLocked has another take all room but what is spare.
func (b *roomBed) full(t *testing.T) (others *tmpfs.Reservation) {
	t.Helper()
	others, err := b.memory.Reserve(t.Context(), "another", b.ramSize-spare, 0)
	must.OK(t, err)
	return others
}

// waits tells whether somebody stands in line for room: whoever comes later waits, be
// it for what is spare.
func (b *roomBed) waits(t *testing.T) bool {
	l, err := b.memory.Reserve(t.Context(), "", 1, 0)
	l.Release()
	return errors.Is(err, sandbox.ErrMemoryBusy)
}

// free checks that all room was given back.
func (b *roomBed) free(t *testing.T) {
	t.Helper()
	l, err := b.memory.Reserve(t.Context(), "", b.ramSize, 0)
	if err != nil {
		t.Errorf("not all room was given back: %v", err)
	}
	l.Release()
}

// TestStopDoesNotWaitForRoom: whatever waits for room for a sandbox's memory, who
// stops or removes it does so at once, and then nothing waits.
func TestStopDoesNotWaitForRoom(t *testing.T) {
	const atOnce = 20 * time.Second // on a busy machine: room is waited for for longer
	for name, call := range map[string]struct {
		asleep, waitsOn bool
		do              func(b *roomBed, ctx context.Context) error
	}{
		"wake":  {true, false, func(b *roomBed, ctx context.Context) error { _, err := b.Wake(ctx, "a"); return err }},
		"start": {true, false, func(b *roomBed, ctx context.Context) error { _, err := b.Start(ctx, "a"); return err }},
		// As by an exposed port and over SSH.
		"connect": {true, false, func(b *roomBed, ctx context.Context) error { _, err := b.Connect(ctx, "a", "", 80); return err }},
		"changes": {true, false, func(b *roomBed, ctx context.Context) error {
			_, _, done, err := b.startOrAttach(ctx, "a", "s")
			if err == nil {
				done()
			}
			return err
		}},
		"hibernate": {false, false, func(b *roomBed, ctx context.Context) error { _, err := b.Hibernate(ctx, "a"); return err }},
		"snapshot": {false, false, func(b *roomBed, ctx context.Context) error {
			_, err := b.Snapshot(ctx, "a", sandbox.SnapshotSpec{Memory: true})
			return err
		}},
		"fork": {false, false, func(b *roomBed, ctx context.Context) error {
			_, err := b.Fork(ctx, "a", sandbox.ForkSpec{})
			return err
		}},
		"fork of asleep": {true, false, func(b *roomBed, ctx context.Context) error {
			_, err := b.Fork(ctx, "a", sandbox.ForkSpec{})
			return err
		}},
		"restore": {false, true, func(b *roomBed, ctx context.Context) error {
			_, err := b.Restore(ctx, "a", sandbox.RestoreSpec{Snapshot: "s"})
			return err
		}},
	} {
		for _, end := range []string{"stop", "rm"} {
			t.Run(name+", "+end, func(t *testing.T) {
				t.Parallel()
				b := newRoomBed(t, 4*asked)
				b.runs(t, "", "a")
				b.keeps(t, "a", sandbox.SnapshotSpec{Name: "s", Memory: true})
				if call.asleep {
					b.must(t)(b.Hibernate(t.Context(), "a"))
				}
				others := b.full(t)
				over := make(chan error, 1)
				go func() { over <- call.do(b, t.Context()) }()
				must.Soon(t, "it waits", func() bool { return b.waits(t) })

				began := time.Now()
				want := sandbox.ErrState
				if end == "rm" {
					want = sandbox.ErrNotFound
					if err := b.Remove(t.Context(), "a"); err != nil {
						t.Error(err)
					}
				} else if i := b.must(t)(b.Stop(t.Context(), "a")); i.State != sandbox.Stopped {
					t.Errorf("it is %v", i.State)
				}
				if took := time.Since(began); took > atOnce {
					t.Errorf("it took %v", took)
				}
				if end == "stop" && call.waitsOn {
					others.Release() // what is to come of it needs room as before
					want = nil
				}
				select {
				case err := <-over:
					if !errors.Is(err, want) {
						t.Errorf("who waited was told: %v", err)
					}
				case <-time.After(atOnce):
					t.Fatal("it waits on")
				}
				if i, err := b.Get("a"); end == "rm" && !errors.Is(err, sandbox.ErrNotFound) || end == "stop" && !call.waitsOn && i.State != sandbox.Stopped {
					t.Errorf("it is %v, %v", i.State, err)
				}
				others.Release()
				b.free(t)
			})
		}
	}
}

// TestAnotherHasTheName: what waits for room for a sandbox that is removed is not done
// to one that is made under its name before the wait has ended.
func TestAnotherHasTheName(t *testing.T) {
	for name, call := range map[string]func(b *roomBed, ctx context.Context) error{
		"start":     func(b *roomBed, ctx context.Context) error { _, err := b.Start(ctx, "a"); return err },
		"hibernate": func(b *roomBed, ctx context.Context) error { _, err := b.Hibernate(ctx, "a"); return err },
		"snapshot": func(b *roomBed, ctx context.Context) error {
			_, err := b.Snapshot(ctx, "a", sandbox.SnapshotSpec{Memory: true})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newRoomBed(t, 4*asked)
			b.runs(t, "", "a")
			if name == "start" {
				b.must(t)(b.Hibernate(t.Context(), "a"))
			}
			others := b.full(t)
			over := make(chan error, 1)
			go func() { over <- call(b, t.Context()) }()
			must.Soon(t, "it waits", func() bool { return b.waits(t) })

			old := b.entry("a")
			spec := old.Rec.Spec
			must.OK(t, errors.Join(b.halt(t.Context(), old, "being removed"), b.remove(t.Context(), old, "asked to")))
			another := b.entry("a") // before who waits knows
			b.release(old)
			err := b.create(t.Context(), another, "a", spec)
			if err == nil {
				err = b.Manager.start(t.Context(), another)
			}
			others.Release()
			b.release(another)
			must.OK(t, err)
			if err := <-over; !errors.Is(err, sandbox.ErrNotFound) {
				t.Errorf("who waited was told: %v", err)
			}
			if i, err := b.Get("a"); err != nil || i.State != sandbox.Running {
				t.Errorf("the other is %v, %v", i.State, err)
			}
			b.free(t)
		})
	}
}

// TestOneOfASandboxStandsInLine: however many want the same sandbox to wake, they need
// its room once, and come when it has woken, or are refused when each has waited for
// as long as one does.
func TestOneOfASandboxStandsInLine(t *testing.T) {
	const many = 1100 // more than one owner may have stand in line
	for name, comes := range map[string]bool{"room": true, "no room": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newRoomBed(t, 4*asked)
				b.runs(t, "", "a")
				b.must(t)(b.Hibernate(t.Context(), "a"))
				others, starts := b.full(t), b.h.starts
				var over sync.WaitGroup
				began := time.Now()
				errs := make([]error, many)
				for i := range many {
					over.Go(func() { _, errs[i] = b.Start(t.Context(), "a") })
				}
				synctest.Wait()
				want, wait, woken := sandbox.ErrMemoryBusy, memoryWait, 0
				if comes {
					others.Release()
					want, wait, woken = nil, 0, 1
				}
				over.Wait()
				for _, err := range errs {
					if !errors.Is(err, want) {
						t.Fatalf("one was told: %v", err)
					}
				}
				if took := time.Since(began); took != wait {
					t.Errorf("it took %v", took)
				}
				if n := b.h.starts - starts; n != woken {
					t.Errorf("it was started %d times", n)
				}
				others.Release()
				b.free(t)
			})
		})
	}
}

// TestWhoStandsInLineGoes: who waits behind another that gives up, comes.
func TestWhoStandsInLineGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newRoomBed(t, 4*asked)
		b.runs(t, "", "a")
		b.must(t)(b.Hibernate(t.Context(), "a"))
		others, began := b.full(t), time.Now()
		gone := make(chan error, 2)
		var leave []context.CancelFunc
		for range 2 {
			ctx, cancel := context.WithCancel(t.Context())
			leave = append(leave, cancel)
			go func() { _, err := b.Wake(ctx, "a"); gone <- err }()
			synctest.Wait()
		}
		over := make(chan error, 1)
		go func() { _, err := b.Wake(t.Context(), "a"); over <- err }()
		for _, cancel := range leave {
			synctest.Wait()
			cancel()
			if err := <-gone; !errors.Is(err, context.Canceled) {
				t.Errorf("who gave up was told: %v", err)
			}
		}
		synctest.Wait()
		others.Release()
		if err := <-over; err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > 0 {
			t.Errorf("it took %v", took)
		}
		b.free(t)
	})
}

// TestIdleIsStopped: that an idle sandbox was stopped while it waited for room to be
// hibernated is what was wanted of it, or more.
func TestIdleIsStopped(t *testing.T) {
	b := newRoomBed(t, 4*asked)
	i := b.runs(t, "", "a")
	i.Spec.OnIdle = sandbox.IdleHibernate
	others := b.full(t)
	over := make(chan error, 1)
	go func() { over <- b.sleepIdle(t.Context(), i, "it was idle") }()
	must.Soon(t, "it waits", func() bool { return b.waits(t) })
	b.must(t)(b.Stop(t.Context(), "a"))
	if err := <-over; err != nil {
		t.Error(err)
	}
	others.Release()
	b.free(t)
}
