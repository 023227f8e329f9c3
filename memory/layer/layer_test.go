package layer_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"sallyport/internal/test/must"
	"sallyport/memory"
	"sallyport/memory/layer"
	"sallyport/memory/search"
)

var day = time.Date(2026, 11, 26, 18, 28, 5, 0, time.UTC)

// remember opens the layers of a new memory, and returns its folder.
func remember(t *testing.T) (*layer.Layers, string) {
	t.Helper()
	dir, err := memory.Ensure(t.TempDir())
	must.OK(t, err)
	return open(t, dir), dir
}

func open(t *testing.T, dir string) *layer.Layers {
	t.Helper()
	f, err := memory.Open(dir)
	must.OK(t, err)
	t.Cleanup(func() { f.Close() })
	x, err := search.Open(t.Context(), filepath.Join(t.TempDir(), "index"), search.Options{})
	must.OK(t, err)
	t.Cleanup(func() { x.Close() })
	return &layer.Layers{Folder: f, Search: x, Session: "s1", Now: func() time.Time { return day }}
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	path := filepath.Join(dir, name)
	must.OK(t, os.MkdirAll(filepath.Dir(path), 0o777))
	must.OK(t, os.WriteFile(path, []byte(text), 0o666))
}

func read(t *testing.T, dir, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, name))
	must.OK(t, err)
	return string(data)
}

func store(t *testing.T, l *layer.Layers, kind, text string) layer.Entry {
	t.Helper()
	e, err := l.Store(t.Context(), text, kind, nil)
	must.OK(t, err)
	return e
}

var ctx = context.Background()

func TestState(t *testing.T) {
	l, dir := remember(t)
	for key, value := range map[string]string{"step": `{"n": 3}`, "a.b-c_D": `"x"`, "..": `null`} {
		for range 2 {
			if err := l.SetState(ctx, key, []byte(value)); err != nil {
				t.Fatalf("%s: %v", key, err)
			}
		}
		if got, err := l.State(ctx, key); err != nil || string(got) != value {
			t.Errorf("%s: %s, %v", key, got, err)
		}
	}
	write(t, dir, "state/broken.json", "{")
	write(t, dir, "state/not a key.json", "{}")
	if got, err := l.States(ctx); err != nil || len(got) != 4 {
		t.Errorf("%v, %v", got, err)
	}
	if err := l.RemoveState(ctx, "step"); err != nil {
		t.Error(err)
	}
	if _, err := l.State(ctx, "step"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	for key, value := range map[string]string{"": "1", "a/b": "1", "../x": "1", "a\x00": "1", "é": "1", "x": "{", "y": "", "z": `"` + string(make([]byte, 1<<20)) + `"`} {
		if err := l.SetState(ctx, key, []byte(value)); !errors.Is(err, layer.ErrInvalid) {
			t.Errorf("%q: %v", key, err)
		}
	}
	if _, err := l.State(ctx, "broken"); !errors.Is(err, layer.ErrInvalid) {
		t.Error(err)
	}
}

func TestRetrieve(t *testing.T) {
	l, _ := remember(t)
	e := store(t, l, layer.LearnedFact, "The deploy key of acme expires in March.")
	store(t, l, layer.Observation, "The weather is fine.")
	got, err := l.Retrieve(ctx, "when does the deploy key expire?", 5, layer.RetrieveOptions{})
	if err != nil || len(got) == 0 || got[0].ID != e.ID || got[0].Text != e.Text || got[0].Session != "s1" || !got[0].Time.Equal(day) {
		t.Errorf("%+v, %v", got, err)
	}
}
