package manager

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sallyport/internal/test/must"
	"sallyport/memory"
	"sallyport/sandbox"
	"sallyport/sandbox/state"
)

// put writes files of a sandbox's: one that the container has, and one in its
// memory store.
func (b *bed) put(t *testing.T, i sandbox.Info, text string) {
	t.Helper()
	for _, path := range []string{filepath.Join(b.h.layers, i.ID, "file"), filepath.Join(i.Memory, "note")} {
		must.OK(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)))
	}
}

// has checks them.
func (b *bed) has(t *testing.T, i sandbox.Info, want string) {
	t.Helper()
	for _, path := range []string{filepath.Join(b.h.layers, i.ID, "file"), filepath.Join(i.Memory, "note")} {
		if got, err := os.ReadFile(path); string(got) != want {
			t.Errorf("%s of %s: %q, %v, want %q", filepath.Base(path), i.Name, got, err, want)
		}
	}
}

func (b *bed) keeps(t *testing.T, name string, spec sandbox.SnapshotSpec) sandbox.Snapshot {
	t.Helper()
	s, err := b.Snapshot(t.Context(), name, spec)
	must.OK(t, err)
	return s
}

func TestSnapshotAndRestore(t *testing.T) {
	b := newBed(t)
	i := b.live(t, "a")
	b.put(t, i, "before, thinking of it")
	s := b.keeps(t, "a", sandbox.SnapshotSpec{Name: "s", Memory: true})
	if !s.Memory || s.Size == 0 || s.Build != "1" || len(s.Sums) != 2 || s.Session != i.Session {
		t.Errorf("%+v", s)
	}
	if got := b.plain(t, filepath.Join(b.dir, "a", "snapshots"), b.ram); len(got) > 0 {
		t.Errorf("in the clear: %v", got)
	}
	b.put(t, i, "after")
	b.h.memory[i.ID] = "something else"
	b.h.events = nil
	r := b.must(t)(b.Restore(t.Context(), "a", sandbox.RestoreSpec{Snapshot: "s"}))
	b.has(t, r, "before, thinking of it")
	if r.State != sandbox.Running || b.h.memory[i.ID] != "what it was thinking of" || r.Session == i.Session || r.ID != i.ID || r.Address != i.Address || r.Lost != "" {
		t.Errorf("restored: %+v with %q", r, b.h.memory[i.ID])
	}
	if want := []string{"a snapshot", "a stopped", "a restored", "a started"}; !slices.Equal(b.h.events, want) {
		t.Errorf("events %v, want %v", b.h.events, want)
	}
	list, err := b.Snapshots(t.Context(), "a")
	if err != nil || len(list) != 2 || !list[1].Safety || !list[1].Memory {
		t.Fatalf("%+v, %v", list, err)
	}
	// The way back.
	r = b.must(t)(b.Restore(t.Context(), "a", sandbox.RestoreSpec{Snapshot: list[1].Name}))
	b.has(t, r, "after")
	if b.h.memory[i.ID] != "something else" {
		t.Errorf("went back to %q", b.h.memory[i.ID])
	}
	c := b.fork(t, "a", sandbox.ForkSpec{Snapshot: "s", Names: []string{"c"}})[0]
	b.has(t, c, "before, thinking of it")
	if c.State != sandbox.Running || b.h.memory[c.ID] != "what it was thinking of" || c.Lineage.Snapshot != "s" {
		t.Errorf("a fork of a snapshot: %+v", c)
	}
	b.must(t)(b.Stop(t.Context(), "a"))
	disk := b.keeps(t, "a", sandbox.SnapshotSpec{Name: "disk"})
	if _, err := b.Snapshot(t.Context(), "a", sandbox.SnapshotSpec{Memory: true}); !errors.Is(err, sandbox.ErrState) {
		t.Errorf("processes of a stopped one: %v", err)
	}
	if r := b.must(t)(b.Restore(t.Context(), "a", sandbox.RestoreSpec{Snapshot: "disk"})); r.State != sandbox.Stopped || disk.Memory {
		t.Errorf("what was stopped is %s", r.State)
	}
	must.OK(t, b.RemoveSnapshot(t.Context(), "a", "s"))
	if err := b.RemoveSnapshot(t.Context(), "a", "s"); !errors.Is(err, sandbox.ErrNoSnapshot) {
		t.Errorf("removed twice: %v", err)
	}
	must.OK(t, b.Remove(t.Context(), "a"))
	if _, err := os.Stat(filepath.Join(b.dir, "a")); err == nil {
		t.Error("its folder is left")
	}
}

// TestSnapshotHarm: a disk that is not what was written is refused before anything
// changes; memory that cannot be had is done without, aloud.
func TestSnapshotHarm(t *testing.T) {
	for name, tt := range map[string]struct {
		harm func(t *testing.T, b *bed, dir string)
		lost string
	}{
		"disk cut":   {func(t *testing.T, _ *bed, dir string) { shrink(t, filepath.Join(dir, "disk")) }, ""},
		"disk gone":  {func(_ *testing.T, _ *bed, dir string) { _ = os.Remove(filepath.Join(dir, "disk")) }, ""},
		"record cut": {func(t *testing.T, _ *bed, dir string) { shrink(t, filepath.Join(dir, "record")) }, ""},
		"of another snapshot": {func(t *testing.T, b *bed, dir string) {
			b.keeps(t, "a", sandbox.SnapshotSpec{Name: "t"})
			must.OK(t, os.Rename(filepath.Join(filepath.Dir(dir), "t", "disk"), filepath.Join(dir, "disk")))
		}, ""},
		"memory cut":  {func(t *testing.T, _ *bed, dir string) { shrink(t, filepath.Join(dir, "memory")) }, "damaged"},
		"memory gone": {func(_ *testing.T, _ *bed, dir string) { _ = os.Remove(filepath.Join(dir, "memory")) }, "gone"},
		"build":       {func(_ *testing.T, b *bed, _ string) { b.h.build = "2" }, "gVisor 1 wrote it, and this is 2"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			i := b.live(t, "a")
			b.put(t, i, "before")
			b.keeps(t, "a", sandbox.SnapshotSpec{Name: "s", Memory: true})
			b.put(t, i, "after")
			tt.harm(t, b, filepath.Join(b.dir, "a", "snapshots", "s"))
			r, err := b.Restore(t.Context(), "a", sandbox.RestoreSpec{Snapshot: "s"})
			f, ferr := b.Fork(t.Context(), "a", sandbox.ForkSpec{Snapshot: "s", Names: []string{"c"}})
			if tt.lost == "" {
				if !errors.Is(err, sandbox.ErrDamaged) || !errors.Is(ferr, sandbox.ErrDamaged) {
					t.Fatalf("got %v and %v, want that it is damaged", err, ferr)
				}
				r = b.must(t)(b.Get("a"))
				b.has(t, r, "after")
				if r.Session != i.Session || b.h.memory[i.ID] != "what it was thinking of" || len(b.List()) != 1 {
					t.Errorf("something has changed: %+v", r)
				}
				return
			}
			if err != nil || ferr != nil {
				t.Fatal(err, ferr)
			}
			b.has(t, r, "before")
			b.has(t, f[0], "before")
			if r.State != sandbox.Running || b.h.memory[r.ID] != "fresh" || !strings.Contains(r.Lost, tt.lost) {
				t.Errorf("restored: %+v", r)
			}
			if f[0].State != sandbox.Stopped || !strings.Contains(f[0].Lost, tt.lost) {
				t.Errorf("forked: %+v", f[0])
			}
		})
	}
}

func TestRetention(t *testing.T) {
	b := newBed(t)
	b.live(t, "a")
	names := func() (list []string) {
		all, err := b.Snapshots(t.Context(), "a")
		must.OK(t, err)
		for _, s := range all {
			list = append(list, s.Name)
		}
		return list
	}
	for _, n := range []string{"one", "two", "three"} {
		b.keeps(t, "a", sandbox.SnapshotSpec{Name: n})
		time.Sleep(2 * time.Millisecond) // they are in order of their time
	}
	b.keeps(t, "a", sandbox.SnapshotSpec{Name: "four", KeepLast: 2, Expires: sandbox.Duration(time.Millisecond)})
	if got := names(); !slices.Equal(got, []string{"three", "four"}) {
		t.Errorf("kept %v", got)
	}
	time.Sleep(2 * time.Millisecond)
	b.open(t)
	if got := names(); !slices.Equal(got, []string{"three"}) {
		t.Errorf("after its time there are %v", got)
	}
	for range keptSafety + 1 {
		b.must(t)(b.Restore(t.Context(), "a", sandbox.RestoreSpec{Snapshot: "three"}))
	}
	if got := names(); len(got) != 1+keptSafety {
		t.Errorf("after many restores there are %v", got)
	}
	if _, err := b.Snapshot(t.Context(), "a", sandbox.SnapshotSpec{Name: "three"}); !errors.Is(err, sandbox.ErrTaken) {
		t.Errorf("a name twice: %v", err)
	}
	if _, err := b.Snapshot(t.Context(), "a", sandbox.SnapshotSpec{Name: "../x"}); !errors.Is(err, sandbox.ErrBadSpec) {
		t.Errorf("no name: %v", err)
	}
}

// TestSnapshotCrashes ends the daemon at every call, and starts another: what was
// begun is whole or gone, and the sandbox goes on.
func TestSnapshotCrashes(t *testing.T) {
	for name, change := range map[string]func(*bed, context.Context) error{
		"fork": func(b *bed, ctx context.Context) error {
			_, err := b.Fork(ctx, "a", sandbox.ForkSpec{Names: []string{"c"}})
			return err
		},
		"snapshot": func(b *bed, ctx context.Context) error {
			_, err := b.Snapshot(ctx, "a", sandbox.SnapshotSpec{Name: "t", Memory: true})
			return err
		},
		"remove": func(b *bed, ctx context.Context) error { return b.RemoveSnapshot(ctx, "a", "s") },
		"restore": func(b *bed, ctx context.Context) error {
			_, err := b.Restore(ctx, "a", sandbox.RestoreSpec{Snapshot: "s"})
			return err
		},
		"fork of a snapshot": func(b *bed, ctx context.Context) error {
			_, err := b.Fork(ctx, "a", sandbox.ForkSpec{Names: []string{"c"}, Snapshot: "s"})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			for at := 1; ; at++ {
				b := newBed(t)
				before := b.live(t, "a")
				b.put(t, before, "before")
				b.keeps(t, "a", sandbox.SnapshotSpec{Name: "s", Memory: true})
				b.put(t, before, "after")
				b.h.events = nil
				b.h.calls, b.h.crash = 0, at
				crashed := ends(func() {
					must.OK(t, change(b, t.Context()))
				})
				if !crashed {
					if at < 2 {
						t.Error("the change has no calls to crash at")
					}
					return
				}
				b.h.crash = 0
				b.open(t)
				restored := slices.Contains(b.h.events, "a restored")
				i := b.must(t)(b.Start(t.Context(), "a"))
				if i.State != sandbox.Running || b.h.paused[i.ID] {
					t.Errorf("crash at call %d: %+v, paused %v", at, i, b.h.paused[i.ID])
				}
				want := "after"
				if restored {
					want = "before"
				}
				b.has(t, i, want)
				if name != "restore" && (b.h.memory[i.ID] != "what it was thinking of" || i.Session != before.Session) {
					t.Errorf("crash at call %d: the sandbox does not go on", at)
				}
				if left, _ := os.ReadDir(b.ram); len(left) > 0 {
					t.Errorf("crash at call %d: left in RAM: %v", at, left)
				}
				if left, _ := filepath.Glob(filepath.Join(b.dir, "a", "snapshots", "*.*")); len(left) > 0 {
					t.Errorf("crash at call %d: left %v", at, left)
				}
				// A child is there with its memory, or nothing of it.
				n := len(b.List())
				if c, err := b.Get("c"); err == nil {
					if c.State != sandbox.Running || b.h.memory[c.ID] != "what it was thinking of" {
						t.Errorf("crash at call %d: the child %+v", at, c)
					}
				} else if _, err := os.Stat(memory.Dir(filepath.Join(b.dir, "c"))); err == nil {
					t.Errorf("crash at call %d: the child's files are left", at)
				}
				if len(b.h.containers) != n || len(b.h.roots) != n || len(b.h.endpoints) != n {
					t.Errorf("crash at call %d: %d sandboxes, %v, %v, %v", at, n, b.h.containers, b.h.roots, b.h.endpoints)
				}
				b.paired(t, at)
				list, err := b.Snapshots(t.Context(), "a")
				if err != nil {
					t.Error(err)
				}
				for _, s := range list {
					if err := b.verify(s); err != nil {
						t.Errorf("crash at call %d: %v", at, err)
					}
				}
				b.must(t)(b.Hibernate(t.Context(), "a"))
				b.must(t)(b.Wake(t.Context(), "a"))
			}
		})
	}
}

// A new sandbox has a name that its maker may give, also where the name is found for
// it; nobody is asked about one that is there.
func TestNaming(t *testing.T) {
	b := newBed(t)
	b.live(t, "a")
	errNot := errors.New("not this name")
	ctx := AllowNames(t.Context(), func(name string) error {
		if name == "a-2" || name == "a" {
			return errNot
		}
		return nil
	})
	if list, err := b.Fork(ctx, "a", sandbox.ForkSpec{Count: 2}); !errors.Is(err, errNot) || len(b.List()) != 1 {
		t.Errorf("names that are found: got %v, %v", list, err)
	}
	if list, err := b.Fork(ctx, "a", sandbox.ForkSpec{Names: []string{"b", "a-2"}}); !errors.Is(err, errNot) || len(b.List()) != 1 {
		t.Errorf("names that are given: got %v, %v", list, err)
	}
	if _, _, err := b.GetOrCreate(ctx, "a-2", sandbox.Spec{}); !errors.Is(err, errNot) {
		t.Errorf("one that is made: got %v", err)
	}
	if _, _, err := b.GetOrCreate(ctx, "a", sandbox.Spec{}); err != nil {
		t.Errorf("one that is there: got %v", err)
	}
}

// A removal that a crash has cut short is told once, wherever the next daemons end.
func TestRemovalCutShort(t *testing.T) {
	for at := 1; ; at++ {
		b := newBed(t)
		b.live(t, "a")
		b.keeps(t, "a", sandbox.SnapshotSpec{Name: "s"})
		dir := filepath.Join(b.dir, "a", "snapshots", "s")
		must.OK(t, os.Rename(dir, pendingPath(dir, state.Lifecycle(b.entries["a"].Rec, "snapshot removed", ""), goneSuffix)))
		b.h.events = nil
		b.h.calls, b.h.crash = 0, at
		crashed := ends(func() { b.open(t) })
		b.h.crash = 0
		b.open(t)
		if n := strings.Count(strings.Join(b.h.events, ", "), "snapshot removed"); n != 1 {
			t.Errorf("crash at call %d: told %d times: %v", at, n, b.h.events)
		}
		if left, _ := filepath.Glob(filepath.Join(b.dir, "a", "snapshots", "*")); len(left) > 0 {
			t.Errorf("crash at call %d: left %v", at, left)
		}
		if !crashed {
			if at < 2 {
				t.Error("the start has no calls to crash at")
			}
			return
		}
	}
}

// A snapshot is of one sandbox, wherever it is moved: that of another, also of one
// that had the same name, is damaged here, and not listed.
func TestSnapshotOfAnother(t *testing.T) {
	b := newBed(t)
	i := b.live(t, "a")
	b.put(t, i, "of a")
	other := b.live(t, "b")
	b.put(t, other, "of b")
	b.keeps(t, "b", sandbox.SnapshotSpec{Name: "s", Memory: true})
	at := func(name string) string { return filepath.Join(b.dir, name, "snapshots") }
	must.OK(t, os.CopyFS(at("a"), os.DirFS(at("b"))))
	refused := func(name string) {
		t.Helper()
		_, err := b.Restore(t.Context(), name, sandbox.RestoreSpec{Snapshot: "s"})
		_, ferr := b.Fork(t.Context(), name, sandbox.ForkSpec{Snapshot: "s", Names: []string{"c"}})
		if !errors.Is(err, sandbox.ErrDamaged) || !errors.Is(ferr, sandbox.ErrDamaged) {
			t.Errorf("got %v and %v, want that it is damaged", err, ferr)
		}
	}
	refused("a")
	b.has(t, i, "of a")
	if list, err := b.Snapshots(t.Context(), "a"); err != nil || len(list) != 0 {
		t.Errorf("it is listed: %v, %v", list, err)
	}
	must.OK(t, b.Remove(t.Context(), "b"))
	again := b.live(t, "b")
	b.put(t, again, "of another b")
	must.OK(t, os.CopyFS(at("b"), os.DirFS(at("a"))))
	refused("b")
	b.has(t, again, "of another b")
}

// paired checks that the log has one beginning of all that there is, and one end
// besides of all that was.
func (b *bed) paired(t *testing.T, at int) {
	t.Helper()
	begins, ends, there := map[string]int{}, map[string]int{}, map[string]int{}
	for _, d := range b.h.deeds {
		name, _, _ := strings.Cut(strings.ReplaceAll(d.Detail, ":", ","), ",")
		switch d.State {
		case "created":
			begins[d.ID]++
		case "removed":
			ends[d.ID]++
		case "started":
			begins[d.Session]++
		case "stopped":
			ends[d.Session]++
		case "snapshot":
			begins[d.Sandbox+"/"+name]++
		case "snapshot removed":
			ends[d.Sandbox+"/"+name]++
		}
	}
	for _, i := range b.List() {
		there[i.ID]++
		if i.Session != "" {
			there[i.Session]++
		}
		list, err := b.Snapshots(t.Context(), i.Name)
		if err != nil {
			t.Error(err)
		}
		for _, s := range list {
			there[i.Name+"/"+s.Name]++
		}
	}
	for _, of := range slices.Concat(slices.Collect(maps.Keys(begins)), slices.Collect(maps.Keys(ends)), slices.Collect(maps.Keys(there))) {
		if begins[of] > 1 || begins[of]-ends[of] != there[of] {
			t.Errorf("crash at call %d: %s began %d times, ended %d times, and there are %d: %v", at, of, begins[of], ends[of], there[of], b.h.events)
		}
	}
}

// TestSnapshotFails: of a snapshot that could not be made, at whatever step, nothing is
// left.
func TestSnapshotFails(t *testing.T) {
	for _, fault := range []string{"pause", "checkpoint", "checkpointed", "disk", "record snapshot"} {
		t.Run(fault, func(t *testing.T) {
			b := newBed(t)
			b.live(t, "a")
			b.h.fault = fault
			if _, err := b.Snapshot(t.Context(), "a", sandbox.SnapshotSpec{Name: "s", Memory: true}); !errors.Is(err, errFault) {
				t.Fatalf("got %v", err)
			}
			left, _ := os.ReadDir(b.snapshotsDir("a"))
			ram, _ := os.ReadDir(b.ram)
			if len(left)+len(ram) > 0 {
				t.Errorf("left: %v %v", left, ram)
			}
			b.h.fault = ""
			b.keeps(t, "a", sandbox.SnapshotSpec{Name: "s", Memory: true})
		})
	}
}
