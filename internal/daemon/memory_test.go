package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"sallyport/internal/test/must"
	"sallyport/memory"
)

// A secret that is set without a daemon is one that the next daemon compares memories with.
func TestSetSecretMarksMemories(t *testing.T) {
	dir := t.TempDir()
	cfg := parse(t, dir, "")
	folder := filepath.Join(cfg.SandboxesDir(), "demo")
	must.OK(t, os.MkdirAll(folder, 0o700))
	if _, err := memory.Ensure(folder); err != nil {
		t.Fatal(err)
	}
	must.OK(t, SetSecret(t.Context(), cfg, "test", "key", map[string]string{"token": "opal-otter-9041-mirror"}))
	if _, err := os.Stat(filepath.Join(folder, memory.RecheckFile)); err != nil {
		t.Error(err)
	}
}

// A secret that could not be read is told of once it can be.
func TestReadings(t *testing.T) {
	r := newReadings()
	away := errors.New("sealed")
	for i, step := range []struct {
		name  string
		err   error
		again bool
	}{
		{"a", nil, false},
		{"a", away, false},
		{"a", away, false},
		{"b", nil, false},
		{"a", nil, true},
		{"a", nil, false},
		{"b", away, false},
		{"a", nil, false},
		{"b", nil, true},
	} {
		r.note(step.name, step.err)
		again := false
		select {
		case <-r.again:
			again = true
		default:
		}
		if again != step.again {
			t.Errorf("step %d: %t", i, again)
		}
	}
}
