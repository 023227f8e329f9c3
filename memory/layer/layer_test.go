package layer_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sallyport/internal/test/must"
	"sallyport/memory"
	"sallyport/memory/layer"
	"sallyport/memory/search"

	"go.uber.org/goleak"
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

// TestMain is also the processes that TestProcesses and TestCompactKilled start.
func TestMain(m *testing.M) {
	dir := os.Getenv("LAYER_DIR")
	if dir == "" {
		goleak.VerifyTestMain(m)
		return
	}
	f, err := memory.Open(dir)
	if err != nil {
		panic(err)
	}
	l := &layer.Layers{Folder: f, Session: os.Getenv("LAYER_SESSION")}
	if os.Getenv("LAYER_DO") == "compact" {
		fmt.Println("ready")
		_, err = l.Compact(ctx, layer.CompactOptions{Before: day})
	} else {
		for i := range writes {
			text := fmt.Sprintf("%s wrote %d", l.Session, i)
			if i%2 == 0 {
				_, storeErr := l.Store(ctx, text, layer.Observation, nil)
				err = errors.Join(err, storeErr)
			} else {
				err = errors.Join(err, l.AppendTurn(ctx, "user", text))
			}
		}
	}
	if err != nil {
		panic(err)
	}
}

const processes, writes = 8, 1000

func process(t *testing.T, dir, do, session string) *exec.Cmd {
	t.Helper()
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), "LAYER_DIR="+dir, "LAYER_DO="+do, "LAYER_SESSION="+session)
	c.Stderr = t.Output()
	return c
}

// No write of several processes is lost.
func TestProcesses(t *testing.T) {
	t.Parallel()
	_, dir := remember(t)
	var started []*exec.Cmd
	for i := range processes {
		c := process(t, dir, "write", fmt.Sprint("p", i))
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		started = append(started, c)
	}
	for _, c := range started {
		if err := c.Wait(); err != nil {
			t.Error(err)
		}
	}
	texts := map[string]int{}
	turns := turns(t, dir)
	for _, turn := range turns {
		texts[turn.Content]++
	}
	files, _ := os.ReadDir(filepath.Join(dir, "memories/observation"))
	for _, f := range files {
		_, text, _ := strings.Cut(read(t, dir, "memories/observation/"+f.Name()), "\n---\n")
		texts[strings.TrimSpace(text)]++
	}
	for i := range processes {
		for j := range writes {
			if text := fmt.Sprintf("p%d wrote %d", i, j); texts[text] != 1 {
				t.Errorf("%q is there %d times", text, texts[text])
			}
		}
	}
	if len(turns)+len(files) != processes*writes {
		t.Errorf("%d turns, %d entries", len(turns), len(files))
	}
}

func TestState(t *testing.T) {
	l, dir := remember(t)
	for key, value := range map[string]string{"step": `{"n": 3}`, "a.b-c_D": `"x"`, "..": `null`} {
		for range 2 {
			if err := l.SetState(ctx, key, []byte(value), ""); err != nil {
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
		if err := l.SetState(ctx, key, []byte(value), ""); !errors.Is(err, layer.ErrInvalid) {
			t.Errorf("%q: %v", key, err)
		}
	}
	if _, err := l.State(ctx, "broken"); !errors.Is(err, layer.ErrInvalid) {
		t.Error(err)
	}
}
