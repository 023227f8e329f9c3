package manager

import (
	"context"
	"errors"
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
	"sallyport/sandbox"
)

const quota = 64 << 20

// stored is a bed whose sandboxes' disks take a MiB each, and whose owners may have 64.
func stored(t *testing.T) (*bed, *space) {
	t.Helper()
	b := newBed(t)
	b.subnet, b.ramSize = netip.MustParsePrefix("10.9.0.0/24"), 2*margin
	b.open(t)
	s := &space{free: 1 << 40, used: map[string]int64{}}
	b.opt.Space, b.opt.Reserve, b.opt.StoragePerOwner = s, testReserve, quota
	return b, s
}

func (b *bed) owned(t *testing.T, ctx context.Context, name string) sandbox.Info {
	t.Helper()
	if _, _, err := b.GetOrCreate(ctx, name, sandbox.Spec{}); err != nil {
		t.Fatal(err)
	}
	i, err := b.Start(ctx, name)
	must.OK(t, err)
	b.h.memory[i.ID] = "what it was thinking of"
	return i
}

// The space of an owner's sandboxes, with their snapshots and their memory on disk, is counted
// and bounded, however it comes to be; others, and the host's own, have theirs.
func TestStorageOfAnOwner(t *testing.T) {
	for name, write := range map[string]func(*bed, context.Context) error{
		"snapshot": func(b *bed, ctx context.Context) error {
			_, err := b.Snapshot(ctx, "a", sandbox.SnapshotSpec{})
			return err
		},
		"memory": func(b *bed, ctx context.Context) error {
			_, err := b.Snapshot(ctx, "a", sandbox.SnapshotSpec{Memory: true})
			return err
		},
		"fork": func(b *bed, ctx context.Context) error { _, err := b.Fork(ctx, "a", sandbox.ForkSpec{}); return err },
		"forks": func(b *bed, ctx context.Context) error {
			_, err := b.Fork(ctx, "a", sandbox.ForkSpec{Snapshot: "s", Count: 3})
			return err
		},
		"hibernate": func(b *bed, ctx context.Context) error { _, err := b.Hibernate(ctx, "a"); return err },
		"restore": func(b *bed, ctx context.Context) error {
			_, err := b.Restore(ctx, "a", sandbox.RestoreSpec{Snapshot: "s"})
			return err
		},
		"create": func(b *bed, ctx context.Context) error {
			_, _, err := b.GetOrCreate(ctx, "new", sandbox.Spec{})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			b, s := stored(t)
			tenant := sandbox.ForOwner(t.Context(), "acme")
			i := b.owned(t, tenant, "a")
			b.put(t, i, "before")
			b.keeps(t, "a", sandbox.SnapshotSpec{Name: "s"})
			b.put(t, i, "now")
			s.used["a"] = quota
			err := write(b, tenant)
			if !errors.Is(err, sandbox.ErrStorageQuota) || !strings.Contains(err.Error(), "acme") || !strings.Contains(err.Error(), "of their 64MiB (sandbox.storagePerTenant)") || !strings.Contains(err.Error(), "remove snapshots or sandboxes") {
				t.Errorf("beyond its share: %v", err)
			}
			if now := b.must(t)(b.Get("a")); now.State != sandbox.Running || now.Session != i.Session || len(b.List()) != 1 {
				t.Errorf("something has changed: %+v", now)
			}
			b.has(t, i, "now")
			// The host's own has no bound, and another owner its own.
			b.owned(t, t.Context(), "host")
			b.owned(t, sandbox.ForOwner(t.Context(), "other"), "b")
			for _, of := range []string{"host", "b"} {
				b.keeps(t, of, sandbox.SnapshotSpec{})
			}
			s.used["a"] = 1 << 20
			if err := write(b, tenant); err != nil {
				t.Errorf("within its share: %v", err)
			}
			if len(b.booked) > 0 {
				t.Errorf("booked for ever: %v", b.booked)
			}
		})
	}
}

// A restore that gives up what there is makes room by that, and one for which there is
// none says so.
func TestRestoreWithinAShare(t *testing.T) {
	b, s := stored(t)
	tenant := sandbox.ForOwner(t.Context(), "acme")
	i := b.owned(t, tenant, "a")
	b.put(t, i, "before")
	b.keeps(t, "a", sandbox.SnapshotSpec{Name: "s"})
	s.used["a"] = quota
	_, err := b.Restore(tenant, "a", sandbox.RestoreSpec{Snapshot: "s"})
	if !errors.Is(err, sandbox.ErrStorageQuota) || !strings.Contains(err.Error(), "restore --discard a s") {
		t.Errorf("got %v", err)
	}
	b.has(t, b.must(t)(b.Restore(tenant, "a", sandbox.RestoreSpec{Snapshot: "s", Discard: true})), "before")
}

// Calls at the same time do not have the same room.
func TestStorageIsBookedOnce(t *testing.T) {
	b, s := stored(t)
	tenant := sandbox.ForOwner(t.Context(), "acme")
	for _, name := range []string{"a", "b", "c", "d"} {
		b.owned(t, tenant, name)
		s.used[name] = 10 << 20 // memory for two more
	}
	var made, refused atomic.Int32
	var all sync.WaitGroup
	begun := make(chan struct{})
	b.h.writing = func() { <-begun }
	for _, name := range []string{"a", "b", "c", "d"} {
		all.Go(func() {
			done, err := b.reserveStorage("acme", name, 10<<20)
			if err == nil {
				made.Add(1)
				<-begun
				done()
			} else if refused.Add(1); !errors.Is(err, sandbox.ErrStorageQuota) {
				t.Error(err)
			}
		})
	}
	must.Soon(t, "an answer to each", func() bool { return made.Load()+refused.Load() == 4 })
	close(begun)
	all.Wait()
	if made.Load() != 2 {
		t.Errorf("%d had room, want 2", made.Load())
	}
}

// Listings tell what each takes.
func TestStorageIsTold(t *testing.T) {
	b, s := stored(t)
	i := b.live(t, "a")
	s.used["a"] = 5 << 20
	if i = b.must(t)(b.Get("a")); i.Storage != (sandbox.Storage{Disk: 5 << 20}) {
		t.Errorf("it takes %+v", i.Storage)
	}
	must.OK(t, os.WriteFile(filepath.Join(b.h.layers, i.ID, "big"), make([]byte, 1<<20), 0o600))
	b.keeps(t, "a", sandbox.SnapshotSpec{})
	i = b.must(t)(b.Hibernate(t.Context(), "a"))
	if i.Storage.Snapshots < 1<<20 || i.Storage.Snapshots > 3<<20 || i.Storage.Memory == 0 || i.Storage.Total() != i.Storage.Disk+i.Storage.Snapshots+i.Storage.Memory {
		t.Errorf("it takes %+v", i.Storage)
	}
	if list := b.List(); list[0].Storage != i.Storage {
		t.Errorf("listed with %+v", list[0].Storage)
	}
}

// An owner that has most of a disk that is nearly full, by what it keeps, is refused
// before a neighbour that writes a little: its disks, and what is written down for it.
func TestWhoHasMostIsRefusedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, s, m := reserved(t, 3*testReserve)
		tenant := sandbox.ForOwner(t.Context(), "acme")
		running(t, m, tenant, "keeper", "second")
		running(t, m, t.Context(), "neighbour")
		// As if the snapshots were large.
		kept := filepath.Join(m.snapshotsDir("keeper"), "s")
		must.OK(t, os.MkdirAll(kept, 0o700))
		must.OK(t, os.WriteFile(filepath.Join(kept, "disk"), make([]byte, 30<<20), 0o600))
		stop := watching(t, m)
		time.Sleep(time.Minute)
		s.write("neighbour", 20<<20)
		s.write("second", 1<<20)
		s.write("", 80<<20) // 199 MiB are left, by what others write
		time.Sleep(time.Second)
		capped(t, m, "keeper", "second")
		if _, _, err := m.GetOrCreate(tenant, "third", sandbox.Spec{}); !errors.Is(err, sandbox.ErrStorageQuota) || !strings.Contains(err.Error(), "tenant acme has most of it") {
			t.Errorf("another of theirs: %v", err)
		}
		if _, _, err := m.GetOrCreate(t.Context(), "other", sandbox.Spec{}); err != nil {
			t.Errorf("another's: %v", err)
		}
		s.write("second", 50<<20) // in vain
		time.Sleep(time.Minute)
		capped(t, m, "keeper", "second")
		states(t, m, "keeper running, neighbour running, other stopped, second running")
		must.OK(t, os.RemoveAll(kept))
		s.write("", -60<<20)
		time.Sleep(time.Second)
		capped(t, m)
		// An owner beyond its share is kept from growing whatever is left.
		m.opt.StoragePerOwner = quota
		s.write("", -10*testReserve)
		s.write("second", quota)
		time.Sleep(time.Second)
		capped(t, m, "keeper", "second")
		s.used["second"] = quota / 2
		time.Sleep(time.Second)
		capped(t, m)
		stop()
		if strings.Contains(strings.Join(h.events, "\n"), "stopped") {
			t.Errorf("somebody was stopped: %v", h.events)
		}
	})
}
