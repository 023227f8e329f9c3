package manager

import (
	"testing"

	"sallyport/sandbox"
)

// What is set for the next session and restricts holds in every session that begins,
// also in one that begins with processes of before; and a fork, whose session is a new
// one, has of each limit the stricter: what is, or what is wanted.
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
