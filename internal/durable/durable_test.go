package durable_test

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"sallyport/internal/durable"
	"sallyport/internal/test/must"
)

func TestWriteFile(t *testing.T) {
	tests := []struct {
		name   string
		before func(t *testing.T, path string)
		perm   fs.FileMode
	}{
		{"new", func(*testing.T, string) {}, 0o600},
		{"wider than the umask", func(*testing.T, string) {}, 0o666},
		{"replaces", func(t *testing.T, p string) { write(t, p, "a longer text than before", 0o644) }, 0o600},
		{"replaces a link", func(t *testing.T, p string) {
			write(t, p+".target", "untouched", 0o644)
			must.OK(t, os.Symlink(p+".target", p))
		}, 0o640},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			defer syscall.Umask(syscall.Umask(0o077))
			dir := t.TempDir()
			path := filepath.Join(dir, "f")
			tt.before(t, path)
			must.OK(t, durable.WriteFile(path, []byte("new"), tt.perm))
			info, err := os.Lstat(path)
			must.OK(t, err)
			if info.Mode() != tt.perm {
				t.Errorf("mode = %v, want %v", info.Mode(), tt.perm)
			}
			if got, _ := os.ReadFile(path); string(got) != "new" {
				t.Errorf("content = %q, want %q", got, "new")
			}
			if got, err := os.ReadFile(path + ".target"); err == nil && string(got) != "untouched" {
				t.Errorf("the link's target was written: %q", got)
			}
			noLeftovers(t, dir)
		})
	}
}

func TestWriteFileFails(t *testing.T) {
	t.Run("no directory", func(t *testing.T) {
		err := durable.WriteFile(filepath.Join(t.TempDir(), "none", "f"), nil, 0o600)
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("err = %v, want not exist", err)
		}
	})
	t.Run("a directory in the way", func(t *testing.T) {
		dir := t.TempDir()
		must.OK(t, os.Mkdir(filepath.Join(dir, "d"), 0o700))
		if err := durable.WriteFile(filepath.Join(dir, "d"), []byte("x"), 0o600); err == nil {
			t.Error("no error")
		}
		noLeftovers(t, dir)
	})
}

func TestMkdirAll(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a", "b", "c")
	for _, attempt := range []string{"new", "again"} {
		if err := durable.MkdirAll(path, 0o700); err != nil {
			t.Fatalf("%s: %v", attempt, err)
		}
	}
	for _, p := range []string{path, filepath.Dir(path)} {
		info, err := os.Stat(p)
		must.OK(t, err)
		if got := info.Mode().Perm(); got != 0o700 {
			t.Errorf("%s: mode = %v, want 0700", p, got)
		}
	}
	write(t, filepath.Join(dir, "file"), "", 0o600)
	for _, p := range []string{"file", "file/below"} {
		if err := durable.MkdirAll(filepath.Join(dir, p), 0o700); err == nil {
			t.Errorf("MkdirAll(%s): no error", p)
		}
	}
}

// TestSyscalls asks the kernel, not us: the data is synced before the rename,
// and the directory after it.
func TestSyscalls(t *testing.T) {
	if path := os.Getenv("DURABLE_TEST_CHILD"); path != "" {
		must.OK(t, durable.WriteFile(path, []byte("payload"), 0o600))
		return
	}
	strace := must.Program(t, "strace")
	dir := t.TempDir()
	trace := filepath.Join(t.TempDir(), "trace")
	cmd := exec.Command(strace, "-f", "-y", "-o", trace, "-e", "trace=write,fsync,fdatasync,rename,renameat,renameat2",
		os.Args[0], "-test.run=^TestSyscalls$")
	cmd.Env = append(os.Environ(), "DURABLE_TEST_CHILD="+filepath.Join(dir, "f"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	raw, err := os.ReadFile(trace)
	must.OK(t, err)
	text := string(raw)
	at := 0
	for _, want := range []string{`"payload"`, "fsync(", "rename", "fsync("} {
		i := strings.Index(text[at:], want)
		if i < 0 {
			t.Fatalf("%q does not follow in\n%s", want, text)
		}
		at += i + len(want)
	}
	if !strings.Contains(text[at:], dir+">") {
		t.Errorf("the last fsync is not of the directory:\n%s", text)
	}
}

func write(t *testing.T, path, text string, perm fs.FileMode) {
	t.Helper()
	must.OK(t, os.WriteFile(path, []byte(text), perm))
}

func noLeftovers(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must.OK(t, err)
	for _, e := range entries {
		if strings.Contains(e.Name(), ".tmp-") {
			t.Errorf("left behind: %s", e.Name())
		}
	}
}

func TestRemove(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	must.OK(t, os.WriteFile(path, nil, 0o600))
	for _, what := range []string{"a file", "none"} {
		if err := durable.Remove(path); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", what, err)
		}
	}
	if err := durable.Remove(filepath.Join(dir, "no folder", "a")); err != nil {
		t.Errorf("without its folder: %v", err)
	}
	if err := os.Mkdir(path, 0o700); err != nil || os.WriteFile(filepath.Join(path, "b"), nil, 0o600) != nil {
		t.Fatal(err)
	}
	if err := durable.Remove(path); err == nil {
		t.Error("a folder with a file in it was removed")
	}
}
