package sandbox

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sallyport/memory"
	"sallyport/sandbox/agent/channel"
)

// folder is where the files of a test's sandbox lie.
type folder string

func (f folder) Layers(context.Context, string) (string, []string, error) {
	return string(f), nil, nil
}

// What a snapshot noted is what changes are told since, memory included.
func TestChanges(t *testing.T) {
	h, dir := newFaultHost(), t.TempDir()
	m := openWith(t, h, dir, channel.Options{})
	if err := m.Changes(t.Context(), "a", "", nil); !errors.Is(err, ErrNotFound) {
		t.Errorf("of none: %v", err)
	}
	i, _, err := m.GetOrCreate(t.Context(), "a", Spec{})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Changes(t.Context(), "a", "", nil); !errors.Is(err, ErrBadSpec) {
		t.Errorf("where nobody knows where files lie: %v", err)
	}
	layer := folder(t.TempDir())
	m.opt.Layers = layer
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(string(layer), "f"), "x")
	write(filepath.Join(i.Memory, "note.md"), "x")
	if i.Memory != memory.Dir(m.dir("a")) {
		t.Errorf("memory is in %s", i.Memory)
	}
	got := func(since string) map[string]string {
		t.Helper()
		got := map[string]string{}
		if err := m.Changes(t.Context(), "a", since, func(c Change) error { got[c.Path] = c.Kind; return nil }); err != nil {
			t.Fatal(err)
		}
		return got
	}
	if diff := cmp.Diff(map[string]string{"/f": "added"}, got("")); diff != "" {
		t.Errorf("since the image: -want +got\n%s", diff)
	}
	e, err := m.existing(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	err = m.takeStock(t.Context(), e.rec, "one")
	m.release(e)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{}, got("one")); diff != "" {
		t.Errorf("at once: -want +got\n%s", diff)
	}
	time.Sleep(10 * time.Millisecond)
	write(filepath.Join(string(layer), "f"), "y")
	write(filepath.Join(i.Memory, "note.md"), "y")
	if diff := cmp.Diff(map[string]string{"/f": "modified", "/memory/note.md": "modified"}, got("one")); diff != "" {
		t.Errorf("later: -want +got\n%s", diff)
	}
	for _, name := range []string{"none", "../a", "One"} {
		if err := m.Changes(t.Context(), "a", name, nil); !errors.Is(err, ErrNotNoted) {
			t.Errorf("since %q: %v", name, err)
		}
	}
}
