package manager

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"sallyport/internal/test/must"
	"sallyport/sandbox"
	"sallyport/sandbox/state"
)

func (b *bed) fork(t *testing.T, name string, spec sandbox.ForkSpec) []sandbox.Info {
	t.Helper()
	list, err := b.Fork(t.Context(), name, spec)
	must.OK(t, err)
	return list
}

func TestForkRunning(t *testing.T) {
	b := newBed(t)
	parent := b.live(t, "a")
	b.put(t, parent, "thinking of files")
	b.h.events = nil
	list := b.fork(t, "a", sandbox.ForkSpec{Count: 2})
	if len(list) != 2 || list[0].Name != "a-1" || list[1].Name != "a-2" {
		t.Fatalf("children: %+v", list)
	}
	seen := map[any]bool{parent.ID: true, parent.Address: true, parent.Generation: true, parent.Session: true}
	for _, c := range list {
		for _, v := range []any{c.ID, c.Address, c.Generation, c.Session} {
			if seen[v] {
				t.Errorf("%v of %s is another's too", v, c.Name)
			}
			seen[v] = true
		}
		if c.State != sandbox.Running || b.h.memory[c.ID] != "what it was thinking of" || c.Lost != "" {
			t.Errorf("%s: %+v with %q", c.Name, c, b.h.memory[c.ID])
		}
		if b.h.parents[c.ID] != parent.ID {
			t.Errorf("the authority of %s is below that of %q", c.Name, b.h.parents[c.ID])
		}
		if l := c.Lineage; l == nil || l.Root != parent.ID || l.Parent != parent.ID || l.Name != "a" {
			t.Errorf("lineage %+v", l)
		}
		if got := c.Tags(); got[sandbox.TagFork] != "true" || got[sandbox.TagLineage] != parent.ID {
			t.Errorf("tags %v", got)
		}
		if ep := b.h.endpoints[c.Generation]; ep.ID != c.ID || ep.Address != c.Address {
			t.Errorf("endpoint %+v", ep)
		}
		b.has(t, c, "thinking of files")
	}
	if i := b.must(t)(b.Get("a")); i.State != sandbox.Running || b.h.paused[parent.ID] || b.h.memory[parent.ID] != "what it was thinking of" || i.Session != parent.Session {
		t.Errorf("the parent: %+v", i)
	}
	events := slices.Sorted(slices.Values(b.h.events))
	if want := []string{"a-1 created", "a-1 started", "a-2 created", "a-2 started"}; !slices.Equal(events, want) {
		t.Errorf("events %v, want %v", events, want)
	}
	if left, _ := os.ReadDir(b.ram); len(left) > 0 {
		t.Errorf("left in RAM: %v", left)
	}
	// A fork of a fork has the first one's root.
	c := b.fork(t, "a-1", sandbox.ForkSpec{Names: []string{"b"}})[0]
	if l := c.Lineage; l.Root != parent.ID || l.Parent != list[0].ID {
		t.Errorf("lineage of the grandchild %+v", l)
	}
	// It is a sandbox like another.
	b.must(t)(b.Hibernate(t.Context(), "b"))
	b.must(t)(b.Wake(t.Context(), "b"))
	must.OK(t, b.Remove(t.Context(), "a"))
	b.has(t, list[1], "thinking of files")
}

func TestForkAsleepAndStopped(t *testing.T) {
	b := newBed(t)
	i := b.live(t, "a")
	b.put(t, i, "x")
	b.must(t)(b.Pause(t.Context(), "a"))
	c := b.fork(t, "a", sandbox.ForkSpec{Names: []string{"p"}})[0]
	if c.State != sandbox.Running || b.h.memory[c.ID] != "what it was thinking of" || !b.h.paused[i.ID] {
		t.Errorf("of a paused one: %+v, parent paused: %v", c, b.h.paused[i.ID])
	}
	b.must(t)(b.Hibernate(t.Context(), "a"))
	c = b.fork(t, "a", sandbox.ForkSpec{Names: []string{"h"}})[0]
	if c.State != sandbox.Running || b.h.memory[c.ID] != "what it was thinking of" || b.must(t)(b.Get("a")).State != sandbox.Hibernated {
		t.Errorf("of a hibernated one: %+v", c)
	}
	b.must(t)(b.Stop(t.Context(), "a"))
	c = b.fork(t, "a", sandbox.ForkSpec{Names: []string{"s"}})[0]
	if c.State != sandbox.Stopped || c.Session != "" {
		t.Errorf("of a stopped one: %+v", c)
	}
	b.has(t, c, "x")
}

func TestForkRefusals(t *testing.T) {
	b := newBed(t)
	b.live(t, "a")
	for name, tt := range map[string]struct {
		spec sandbox.ForkSpec
		want error
	}{
		"a name that is taken":  {sandbox.ForkSpec{Names: []string{"x", "a"}}, sandbox.ErrTaken},
		"a name twice":          {sandbox.ForkSpec{Names: []string{"x", "x"}}, sandbox.ErrTaken},
		"no name":               {sandbox.ForkSpec{Names: []string{"../x"}}, sandbox.ErrBadName},
		"too many":              {sandbox.ForkSpec{Count: sandbox.MaxForks + 1}, sandbox.ErrBadSpec},
		"more than there names": {sandbox.ForkSpec{Count: 2, Names: []string{"x"}}, sandbox.ErrBadSpec},
		"no such snapshot":      {sandbox.ForkSpec{Snapshot: "s"}, sandbox.ErrNoSnapshot},
		"more than addresses":   {sandbox.ForkSpec{Count: 20}, sandbox.ErrNoAddress},
	} {
		if _, err := b.Fork(t.Context(), "a", tt.spec); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", name, err, tt.want)
		}
	}
	if n := len(b.List()); n != 1 || len(b.h.containers) != 1 {
		t.Errorf("%d sandboxes, containers %v", n, b.h.containers)
	}
	if _, _, err := b.GetOrCreate(t.Context(), "t", sandbox.Spec{Tags: map[string]string{sandbox.TagFork: "false"}}); !errors.Is(err, sandbox.ErrBadSpec) {
		t.Errorf("a tag of ours: %v", err)
	}
}

// TestForkFaults: all children are made or none, and the parent goes on.
func TestForkFaults(t *testing.T) {
	for _, fault := range []string{"create", "adopt", "pause", "checkpoint", "disk", "record created", "record started", "restore", "attach"} {
		t.Run(fault, func(t *testing.T) {
			b := newBed(t)
			i := b.live(t, "a")
			b.h.events, b.h.fault = nil, fault
			if _, err := b.Fork(t.Context(), "a", sandbox.ForkSpec{Count: 2}); !errors.Is(err, errFault) {
				t.Fatalf("got %v", err)
			}
			b.h.fault = ""
			if l := b.List(); len(l) != 1 || len(b.h.containers) != 1 || len(b.h.endpoints) != 1 || len(b.h.roots) != 1 {
				t.Errorf("left: %+v, %v, %v, %v", l, b.h.containers, b.h.endpoints, b.h.roots)
			}
			if left, _ := os.ReadDir(b.ram); len(left) > 0 {
				t.Errorf("left in RAM: %v", left)
			}
			if b.h.paused[i.ID] || b.h.memory[i.ID] != "what it was thinking of" {
				t.Error("the parent does not go on")
			}
			made, gone := 0, 0
			for _, e := range b.h.events {
				if strings.HasSuffix(e, " created") {
					made++
				} else if strings.HasSuffix(e, " removed") {
					gone++
				}
			}
			if made != gone {
				t.Errorf("events %v", b.h.events)
			}
			b.fork(t, "a", sandbox.ForkSpec{Count: 2})
		})
	}
}

// A sandbox restored by half is not forked.
func TestForkOfHalf(t *testing.T) {
	b := newBed(t)
	i := b.live(t, "a")
	b.put(t, i, "before")
	b.keeps(t, "a", sandbox.SnapshotSpec{Name: "s"})
	b.must(t)(b.Stop(t.Context(), "a"))
	b.h.fault = "disk"
	if _, err := b.Restore(t.Context(), "a", sandbox.RestoreSpec{Snapshot: "s"}); err == nil {
		t.Fatal("restored")
	}
	b.h.fault = ""
	if b.entries["a"].Rec.Restoring == "" { // the fault came before
		must.OK(t, b.journal.Commit(&b.entries["a"].Stored, func(r *state.Record) { r.Restoring = "s" }))
	}
	if _, err := b.Fork(t.Context(), "a", sandbox.ForkSpec{}); !errors.Is(err, sandbox.ErrState) {
		t.Errorf("forking it: %v, want %v", err, sandbox.ErrState)
	}
	if c := b.fork(t, "a", sandbox.ForkSpec{Snapshot: "s"}); len(c) != 1 {
		t.Errorf("forking its snapshot: %v", c)
	}
}

// A limit set for the next session that restricts holds in every session that begins, also in
// one that begins with processes of before; and a fork, whose session is a new one, has of
// each limit the stricter: what is, or what is wanted.
func TestPendingRestrictionsAreInherited(t *testing.T) {
	pending := func(t *testing.T) *bed {
		t.Helper()
		b := newBed(t)
		if _, _, err := b.GetOrCreate(t.Context(), "a", sandbox.Spec{CPUs: 1, Memory: 1 << 30, Env: map[string]string{"A": "1"}}); err != nil {
			t.Fatal(err)
		}
		i := b.live(t, "a")
		b.put(t, i, "x")
		b.keeps(t, "a", sandbox.SnapshotSpec{Name: "s", Memory: true})
		b.must(t)(b.Set(t.Context(), "a", sandbox.SpecChange{
			Offline: ptr(true), CPUs: ptr(4.0), Memory: ptr[int64](512 << 20), Pids: ptr[int64](64), User: ptr("app"), Env: map[string]string{},
		}))
		return b
	}
	check := func(t *testing.T, b *bed, i sandbox.Info, cpus float64) {
		t.Helper()
		s := i.Spec
		if !s.Offline || s.CPUs != cpus || s.Memory != 512<<20 || s.Pids != 64 || s.User != "app" || len(s.Env) > 0 || i.Next != nil {
			t.Errorf("%s has %+v, then %+v", i.Name, s, i.Next)
		}
		if ep := b.h.endpoints[i.Generation]; i.State == sandbox.Running && !ep.Offline {
			t.Errorf("%s is attached as %+v", i.Name, ep)
		}
	}
	for name, spec := range map[string]sandbox.ForkSpec{"as it is": {}, "of a snapshot": {Snapshot: "s"}} {
		t.Run("fork "+name, func(t *testing.T) {
			b := pending(t)
			c := b.fork(t, "a", spec)[0]
			check(t, b, c, 1) // the looser limit waits for nobody: it is the parent's
			check(t, b, b.fork(t, c.Name, sandbox.ForkSpec{})[0], 1)
			if i := b.must(t)(b.Get("a")); i.Spec.Offline || i.Next == nil {
				t.Errorf("the parent: %+v", i)
			}
		})
	}
	for name, lost := range map[string]bool{"with its processes": false, "without": true} {
		t.Run("restore "+name, func(t *testing.T) {
			b := pending(t)
			if lost {
				b.h.build = "2"
			}
			i := b.must(t)(b.Restore(t.Context(), "a", sandbox.RestoreSpec{Snapshot: "s"}))
			check(t, b, i, 4)
			if i.State != sandbox.Running || (i.Lost != "") != lost || b.h.limits.Memory != 512<<20 {
				t.Errorf("restored: %+v, limits %+v", i, b.h.limits)
			}
		})
	}
	// Tags and all else that is set at once is the child's too.
	b := newBed(t)
	b.live(t, "a")
	b.must(t)(b.Set(t.Context(), "a", sandbox.SpecChange{Tags: map[string]string{"team": "x"}, Lifetime: ptr(sandbox.Duration(1e12)), Idle: ptr(sandbox.Duration(1e11))}))
	if s := b.fork(t, "a", sandbox.ForkSpec{})[0].Spec; s.Tags["team"] != "x" || s.Lifetime != sandbox.Duration(1e12) || s.Idle != sandbox.Duration(1e11) {
		t.Errorf("it has %+v", s)
	}
}
