package kill_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sallyport/internal/test/kill"
)

func TestAt(t *testing.T) {
	if dir := os.Getenv("KILL_TEST_CHILD"); dir != "" {
		os.WriteFile(filepath.Join(os.TempDir(), filepath.Base(dir)), nil, 0o600)
		os.WriteFile(filepath.Join(dir, "a"), []byte("a"), 0o600)
		os.Stdout.WriteString("made\n")
		if err := os.Rename(filepath.Join(dir, "a"), filepath.Join(dir, "b")); err != nil {
			t.Error(err)
		}
		return
	}
	for i, want := range []string{"openat:", "openat: a", "write: a", "write: a", "renameat: a", "renameat: b", ": b"} {
		dir := t.TempDir()
		cmd := exec.Command(os.Args[0], "-test.run=^TestAt$")
		cmd.Env = append(os.Environ(), "KILL_TEST_CHILD="+dir, "TMPDIR="+t.TempDir())
		var said bytes.Buffer
		cmd.Stdout = &said
		call, err := kill.At(cmd, dir, i+1)
		if err != nil {
			t.Fatal(err)
		}
		files, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		got := call + ":"
		for _, f := range files {
			got += " " + f.Name()
		}
		if got != want || strings.Contains(said.String(), "made") != (i > 3) {
			t.Errorf("stop %d: %q, want %q; it said %q", i+1, got, want, &said)
		}
	}
}
