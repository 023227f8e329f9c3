package manager

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sallyport/internal/test/must"
	"sallyport/sandbox"
)

// Nothing that a sandbox does to itself forbids its restore: where no copy can be made
// of what it is now, its disk is kept as it lies there, and that is the way back too.
func TestRestoreIsNotDenied(t *testing.T) {
	for name, deny := range map[string]func(*testing.T, *bed, sandbox.Info){
		"no checkpoint of its processes": func(_ *testing.T, b *bed, _ sandbox.Info) { b.h.fault = "checkpoint" },
		"it does not stand still":        func(_ *testing.T, b *bed, _ sandbox.Info) { b.h.fault = "pause" },
		"no room for a copy of its disk": func(t *testing.T, b *bed, i sandbox.Info) {
			must.OK(t, os.WriteFile(filepath.Join(b.h.layers, i.ID, "big"), []byte(strings.Repeat("now", 12<<20)), 0o600))
			s := &measured{dir: filepath.Dir(b.dir)}
			free, err := s.Free()
			must.OK(t, err)
			s.total = testReserve + 20<<20 - free
			b.opt.Space, b.opt.Reserve = s, testReserve
		},
		"as many snapshots as there can be": func(t *testing.T, b *bed, _ sandbox.Info) {
			for range maxSnapshots - 1 {
				b.keeps(t, "a", sandbox.SnapshotSpec{})
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			i := b.live(t, "a")
			b.put(t, i, "before")
			b.keeps(t, "a", sandbox.SnapshotSpec{Name: "s", Memory: true})
			b.put(t, i, "now")
			deny(t, b, i)
			r := b.must(t)(b.Restore(t.Context(), "a", sandbox.RestoreSpec{Snapshot: "s"}))
			b.h.fault = ""
			b.opt.Space = nil
			b.has(t, r, "before")
			if r.State != sandbox.Running || b.h.memory[i.ID] != "what it was thinking of" {
				t.Errorf("restored: %+v with %q", r, b.h.memory[i.ID])
			}
			list, err := b.Snapshots(t.Context(), "a")
			if err != nil || len(list) < 2 {
				t.Fatalf("%+v, %v", list, err)
			}
			last := list[len(list)-1]
			if sealed := name == "as many snapshots as there can be"; !last.Safety || last.Unsealed == sealed {
				t.Errorf("what it was is kept as %+v", last)
			}
			// It can be forked, and gone back to.
			c := b.fork(t, "a", sandbox.ForkSpec{Snapshot: last.Name, Names: []string{"c"}})[0]
			b.has(t, c, "now")
			b.has(t, b.must(t)(b.Restore(t.Context(), "a", sandbox.RestoreSpec{Snapshot: last.Name})), "now")
			b.has(t, b.must(t)(b.Restore(t.Context(), "a", sandbox.RestoreSpec{Snapshot: "s"})), "before")
		})
	}
}

// A restore that discards the sandbox as it is now needs no room for it, and has no snapshot
// of it.
func TestRestoreDiscards(t *testing.T) {
	b := newBed(t)
	i := b.live(t, "a")
	b.put(t, i, "before")
	b.keeps(t, "a", sandbox.SnapshotSpec{Name: "s"})
	b.put(t, i, "now")
	s := &space{free: testReserve - 1, used: map[string]int64{"a": 1 << 20}} // more than the snapshot takes
	b.opt.Space, b.opt.Reserve = s, testReserve
	_, err := b.Restore(t.Context(), "a", sandbox.RestoreSpec{Snapshot: "s"})
	if !errors.Is(err, sandbox.ErrDiskFull) || !strings.Contains(err.Error(), "--discard a s") {
		t.Errorf("below the reserve: %v", err)
	}
	b.has(t, i, "now")
	s.free = testReserve // as the fake's disks give nothing back
	b.h.fault = "checkpoint"
	b.has(t, b.must(t)(b.Restore(t.Context(), "a", sandbox.RestoreSpec{Snapshot: "s", Discard: true})), "before")
	if list, err := b.Snapshots(t.Context(), "a"); err != nil || len(list) != 1 {
		t.Errorf("%+v, %v", list, err)
	}
}

// A daemon that ends at any step of setting a disk aside loses neither that nor the
// snapshot.
func TestRestoreAsideCrashes(t *testing.T) {
	for at := 1; ; at++ {
		b := newBed(t)
		i := b.live(t, "a")
		b.put(t, i, "before")
		b.keeps(t, "a", sandbox.SnapshotSpec{Name: "s"})
		b.put(t, i, "now")
		b.h.calls, b.h.crash, b.h.fault = 0, at, "checkpoint"
		crashed := ends(func() { b.must(t)(b.Restore(t.Context(), "a", sandbox.RestoreSpec{Snapshot: "s"})) })
		b.h.crash, b.h.fault = 0, ""
		b.open(t)
		r := b.must(t)(b.Start(t.Context(), "a"))
		list, err := b.Snapshots(t.Context(), "a")
		must.OK(t, err)
		if len(list) == 1 {
			b.has(t, r, "now") // it was not begun
		} else {
			b.has(t, r, "before")
			b.has(t, b.fork(t, "a", sandbox.ForkSpec{Snapshot: list[1].Name, Names: []string{"c"}})[0], "now")
		}
		if t.Failed() {
			t.Fatalf("crash at call %d", at)
		}
		if !crashed {
			if at < 5 {
				t.Error("the restore has no calls to crash at")
			}
			return
		}
	}
}
