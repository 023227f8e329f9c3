package manager

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sallyport/internal/test/must"
	"sallyport/sandbox"
	"sallyport/sandbox/agent/channel"
	"sallyport/sandbox/manifest"
)

// upper is where the files of the test's containers lie.
type upper struct{ *bed }

func (u upper) Layers(_ context.Context, id string) (string, []string, error) {
	return filepath.Join(u.h.layers, id), nil, nil
}

// changed is what is told of a sandbox since a snapshot.
func (b *bed) changed(t *testing.T, name, since string) map[string]string {
	t.Helper()
	got := map[string]string{}
	must.OK(t, b.Changes(t.Context(), name, since, func(c sandbox.Change) error { got[c.Path] = c.Kind; return nil }))
	return got
}

func TestChangesOfNothing(t *testing.T) {
	m := openWith(t, newFaultHost(), t.TempDir(), channel.Options{})
	if err := m.Changes(t.Context(), "a", "", nil); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("of none: %v", err)
	}
	if _, _, err := m.GetOrCreate(t.Context(), "a", sandbox.Spec{}); err != nil {
		t.Fatal(err)
	}
	if err := m.Changes(t.Context(), "a", "", nil); !errors.Is(err, sandbox.ErrBadSpec) {
		t.Errorf("where nobody knows where files lie: %v", err)
	}
}

// Changes are told since the snapshot's own files, memory included, whatever the sandbox was
// doing as it was made.
func TestChanges(t *testing.T) {
	for state, to := range map[string]func(*bed, context.Context, string) (sandbox.Info, error){
		"running":    func(b *bed, _ context.Context, name string) (sandbox.Info, error) { return b.Get(name) },
		"paused":     func(b *bed, ctx context.Context, name string) (sandbox.Info, error) { return b.Pause(ctx, name) },
		"hibernated": func(b *bed, ctx context.Context, name string) (sandbox.Info, error) { return b.Hibernate(ctx, name) },
		"stopped":    func(b *bed, ctx context.Context, name string) (sandbox.Info, error) { return b.Stop(ctx, name) },
	} {
		t.Run(state, func(t *testing.T) {
			b := newBed(t)
			b.opt.Layers = upper{b}
			i := b.live(t, "a")
			b.put(t, i, "x")
			b.must(t)(to(b, t.Context(), "a"))
			b.keeps(t, "a", sandbox.SnapshotSpec{Name: "one"})
			if got := b.must(t)(b.Get("a")); string(got.State) != state {
				t.Errorf("after the snapshot it is %s", got.State)
			}
			if diff := cmp.Diff(map[string]string{"/file": manifest.Added}, b.changed(t, "a", "")); diff != "" {
				t.Errorf("since the image: -want +got\n%s", diff)
			}
			if diff := cmp.Diff(map[string]string{}, b.changed(t, "a", "one")); diff != "" {
				t.Errorf("at once: -want +got\n%s", diff)
			}
			time.Sleep(10 * time.Millisecond)
			b.put(t, i, "y")
			all := map[string]string{"/file": manifest.Modified, "/memory/note": manifest.Modified}
			if diff := cmp.Diff(all, b.changed(t, "a", "one")); diff != "" {
				t.Errorf("later: -want +got\n%s", diff)
			}
			b.keeps(t, "a", sandbox.SnapshotSpec{Name: "two"})

			b.fork(t, "a", sandbox.ForkSpec{Snapshot: "one", Names: []string{"child"}})
			if diff := cmp.Diff(map[string]string{}, b.changed(t, "child", "one")); diff != "" {
				t.Errorf("in a fork: -want +got\n%s", diff)
			}
			c := b.must(t)(b.Get("child"))
			b.put(t, c, "z")
			if diff := cmp.Diff(all, b.changed(t, "child", "one")); diff != "" {
				t.Errorf("later in a fork: -want +got\n%s", diff)
			}

			b.must(t)(b.Restore(t.Context(), "a", sandbox.RestoreSpec{Snapshot: "one"}))
			for since, want := range map[string]map[string]string{"one": {}, "two": all} {
				if diff := cmp.Diff(want, b.changed(t, "a", since)); diff != "" {
					t.Errorf("after a restore, since %s: -want +got\n%s", since, diff)
				}
			}
			for _, tt := range []struct{ name, since string }{{"a", "none"}, {"a", "../a"}, {"a", "One"}, {"child", "two"}} {
				if err := b.Changes(t.Context(), tt.name, tt.since, nil); !errors.Is(err, sandbox.ErrNoSnapshot) {
					t.Errorf("of %s since %q: %v", tt.name, tt.since, err)
				}
			}
		})
	}
}

// A fork's snapshot is its parent's, and nobody's who has taken the parent's name.
func TestChangesSinceAnothers(t *testing.T) {
	b := newBed(t)
	b.opt.Layers = upper{b}
	b.put(t, b.live(t, "a"), "x")
	b.keeps(t, "a", sandbox.SnapshotSpec{Name: "s"})
	b.fork(t, "a", sandbox.ForkSpec{Snapshot: "s", Names: []string{"child"}})
	must.OK(t, b.Remove(t.Context(), "a"))
	b.live(t, "a")
	b.keeps(t, "a", sandbox.SnapshotSpec{Name: "s"})
	if err := b.Changes(t.Context(), "child", "s", nil); !errors.Is(err, sandbox.ErrNoSnapshot) {
		t.Errorf("got %v", err)
	}
}

// A snapshot that is not what was written tells nothing.
func TestChangesSinceDamaged(t *testing.T) {
	b := newBed(t)
	b.opt.Layers = upper{b}
	b.put(t, b.live(t, "a"), "x")
	b.keeps(t, "a", sandbox.SnapshotSpec{Name: "s"})
	shrink(t, filepath.Join(b.dir, "a", "snapshots", "s", "disk"))
	got := map[string]string{}
	err := b.Changes(t.Context(), "a", "s", func(c sandbox.Change) error { got[c.Path] = c.Kind; return nil })
	if !errors.Is(err, sandbox.ErrDamaged) || len(got) > 0 {
		t.Errorf("got %v, %v", err, got)
	}
}

// A change of a sandbox's files while they are read is told or not, and does no more.
func TestChangesMeanwhile(t *testing.T) {
	b := newBed(t)
	b.opt.Layers = upper{b}
	i := b.live(t, "a")
	b.put(t, i, "x")
	b.keeps(t, "a", sandbox.SnapshotSpec{Name: "s"})
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		at := func(name string) string { return filepath.Join(b.h.layers, i.ID, name) }
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			_ = os.Mkdir(at("d"), 0o755)
			for _, f := range []string{"d/1", "d/2", "d/3"} {
				_ = os.WriteFile(at(f), make([]byte, 1<<20*(n%3)), 0o600)
			}
			_ = os.RemoveAll(at("d"))
			_ = os.Symlink("/", at("d"))
			_ = os.Remove(at("d"))
		}
	}()
	for range 30 {
		got := b.changed(t, "a", "s")
		maps.DeleteFunc(got, func(path, kind string) bool {
			return kind == manifest.Added && (path == "/d" || filepath.Dir(path) == "/d")
		})
		if len(got) > 0 {
			t.Errorf("got %v", got)
		}
	}
	close(stop)
	<-done
}

// A fault that keeps a sandbox from starting keeps nobody from seeing what has changed of it.
func TestChangesOfWhatDoesNotStart(t *testing.T) {
	b := newBed(t)
	b.opt.Layers = upper{b}
	i := b.live(t, "a")
	b.keeps(t, "a", sandbox.SnapshotSpec{Name: "one"})
	b.put(t, i, "x")
	b.must(t)(b.Stop(t.Context(), "a"))
	b.h.fault = "start"
	for since, want := range map[string]map[string]string{
		"":    {"/file": manifest.Added},
		"one": {"/file": manifest.Added, "/memory/note": manifest.Added},
	} {
		if diff := cmp.Diff(want, b.changed(t, "a", since)); diff != "" {
			t.Errorf("since %q: -want +got\n%s", since, diff)
		}
	}
	if i, err := b.Get("a"); err != nil || i.State != sandbox.Stopped {
		t.Errorf("it is %s, %v", i.State, err)
	}
}
