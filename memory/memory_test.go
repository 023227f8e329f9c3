package memory_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/internal/test/must"
	"sallyport/memory"
)

func ensure(t *testing.T) string {
	t.Helper()
	dir, err := memory.Ensure(t.TempDir())
	must.OK(t, err)
	return dir
}

func list(dir string) ([]memory.Entry, error) {
	f, err := memory.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.List()
}

func read(dir, name string) ([]byte, error) {
	f, err := memory.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Read(name)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	must.OK(t, os.MkdirAll(filepath.Dir(path), 0o700))
	must.OK(t, os.WriteFile(path, []byte(text), 0o600))
}

func link(t *testing.T, target, path string) {
	t.Helper()
	must.OK(t, os.Symlink(target, path))
}

func TestEnsure(t *testing.T) {
	sandbox := filepath.Join(t.TempDir(), "sandboxes", "demo")
	dir, err := memory.Ensure(sandbox)
	must.OK(t, err)
	if want := filepath.Join(sandbox, "memory"); dir != want || memory.Dir(sandbox) != want {
		t.Errorf("dir = %s, %s, want %s", dir, memory.Dir(sandbox), want)
	}
	for path, want := range map[string]fs.FileMode{sandbox: 0o700, dir: 0o777, filepath.Join(dir, "memories.md"): 0o666} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v, want %v", path, info.Mode(), err, want)
		}
	}
	write(t, filepath.Join(dir, "memories.md"), "what the agent wrote")
	must.OK(t, os.Chmod(dir, 0o755))
	if _, err := memory.Ensure(sandbox); err != nil {
		t.Fatal(err)
	}
	if got, err := read(dir, memory.Index); err != nil || string(got) != "what the agent wrote" {
		t.Errorf("after a second Ensure: %q, %v", got, err)
	}
	if info, _ := os.Stat(dir); info.Mode().Perm() != 0o755 {
		t.Errorf("the sandbox's mode was changed to %v", info.Mode())
	}
}

func TestEnsureRefuses(t *testing.T) {
	outside := t.TempDir()
	tests := []struct {
		name    string
		prepare func(t *testing.T, sandbox string)
		ok      bool
	}{
		{"a link in the folder's place", func(t *testing.T, s string) { link(t, outside, memory.Dir(s)) }, false},
		{"a file in the folder's place", func(t *testing.T, s string) { write(t, memory.Dir(s), "") }, false},
		{"memories.md is a link out", func(t *testing.T, s string) {
			must.OK(t, os.Mkdir(memory.Dir(s), 0o700))
			link(t, filepath.Join(outside, "made"), filepath.Join(memory.Dir(s), memory.Index))
		}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			sandbox := t.TempDir()
			tt.prepare(t, sandbox)
			if _, err := memory.Ensure(sandbox); (err == nil) != tt.ok {
				t.Errorf("err = %v, want success %t", err, tt.ok)
			}
			if left, _ := os.ReadDir(outside); len(left) > 0 {
				t.Errorf("made outside: %v", left)
			}
		})
	}
}

// plant fills a memory with what a hostile sandbox would. The secret lies
// outside.
func plant(t *testing.T) (dir, secret string) {
	t.Helper()
	dir = ensure(t)
	secret = filepath.Join(t.TempDir(), "secret")
	write(t, secret, "the secret")
	write(t, filepath.Join(dir, "notes", "a.md"), "a note")
	link(t, secret, filepath.Join(dir, "out"))
	link(t, filepath.Dir(secret), filepath.Join(dir, "outdir"))
	link(t, "../../../../../../../../etc/passwd", filepath.Join(dir, "up"))
	link(t, "notes", filepath.Join(dir, "in"))
	link(t, "loop", filepath.Join(dir, "loop"))
	link(t, "/proc/self/root", filepath.Join(dir, "proc"))
	must.OK(t, unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	must.OK(t, err)
	defer unix.Close(fd)
	must.OK(t, unix.Bind(fd, &unix.SockaddrUnix{Name: filepath.Join(dir, "socket")}))
	return dir, secret
}

func TestList(t *testing.T) {
	dir, _ := plant(t)
	const evil = "x\x1b[2J\n\xff"
	write(t, filepath.Join(dir, evil), "12345")
	entries, err := list(dir)
	must.OK(t, err)
	var got []string
	for _, e := range entries {
		if time.Since(e.Modified) > time.Minute {
			t.Errorf("%q: modified %v", e.Path, e.Modified)
		}
		got = append(got, fmt.Sprintf("%s %q %d", e.Kind, e.Path, e.Size))
	}
	want := []string{`link "in" 0`, `link "loop" 0`, `file "memories.md" 11`, `folder "notes" 0`, `file "notes/a.md" 6`,
		`link "out" 0`, `link "outdir" 0`, `other "pipe" 0`, `link "proc" 0`, `other "socket" 0`, `link "up" 0`,
		fmt.Sprintf("file %q 5", evil)}
	if g, w := strings.Join(got, "\n"), strings.Join(want, "\n"); g != w {
		t.Errorf("got\n%s\nwant\n%s", g, w)
	}
	if _, err := list(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no memory: %v", err)
	}
}

func TestLinkInPlaceOfTheMemory(t *testing.T) {
	dir := ensure(t)
	at := filepath.Join(t.TempDir(), "memory")
	link(t, dir, at)
	if f, err := memory.Open(at); err == nil {
		t.Errorf("Open = %v", f)
	}
}

func TestListIsBounded(t *testing.T) {
	t.Run("many", func(t *testing.T) {
		dir := ensure(t)
		for i := range 10_050 {
			f, err := os.Create(filepath.Join(dir, fmt.Sprint(i)))
			must.OK(t, err)
			f.Close()
		}
		entries, err := list(dir)
		if len(entries) != 10_000 || !errors.Is(err, memory.ErrTruncated) {
			t.Errorf("%d entries, %v", len(entries), err)
		}
	})
	t.Run("deep", func(t *testing.T) {
		dir := ensure(t)
		write(t, filepath.Join(dir, strings.Repeat("d/", 100), "f"), "")
		entries, err := list(dir)
		if len(entries) != 65 || !errors.Is(err, memory.ErrTruncated) {
			t.Errorf("%d entries, %v", len(entries), err)
		}
	})
}

// Long names cost the host no more memory than short ones.
func TestLongPathsAreBounded(t *testing.T) {
	dir := ensure(t)
	long := dir
	for range 14 {
		long = filepath.Join(long, strings.Repeat("d", 250))
	}
	must.OK(t, os.MkdirAll(long, 0o755))
	for i := range 12_000 {
		write(t, filepath.Join(long, strconv.Itoa(i)), "")
	}
	f, err := memory.Open(dir)
	must.OK(t, err)
	defer f.Close()
	entries, err := f.Scan(100_000)
	if !errors.Is(err, memory.ErrTruncated) {
		t.Errorf("got %v", err)
	}
	n := 0
	for _, e := range entries {
		n += len(e.Path)
	}
	if n == 0 || n > 32<<20 {
		t.Errorf("%d bytes of paths", n)
	}
}

func TestRead(t *testing.T) {
	dir, secret := plant(t)
	write(t, filepath.Join(dir, "empty"), "")
	write(t, filepath.Join(dir, "large"), "")
	must.OK(t, os.Truncate(filepath.Join(dir, "large"), 16<<20+1))
	up, err := filepath.Rel(dir, secret)
	must.OK(t, err)
	tests := []struct {
		name, path string
		want       string
		err        error // nil with want "": any error
	}{
		{"file", "notes/a.md", "a note", nil},
		{"through a link within", "in/a.md", "a note", nil},
		{"unclean", "notes//./a.md", "a note", nil},
		{"not there", "none", "", fs.ErrNotExist},
		{"folder", "notes", "", memory.ErrNotFile},
		{"the memory itself", ".", "", memory.ErrNotFile},
		{"link out", "out", "", memory.ErrNotFile},
		{"link up", "up", "", memory.ErrNotFile},
		{"link in", "in", "", memory.ErrNotFile},
		{"through a link out", "outdir/secret", "", nil},
		{"through /proc", "proc" + secret, "", nil},
		{"loop", "loop/x", "", nil},
		{"pipe", "pipe", "", memory.ErrNotFile},
		{"socket", "socket", "", memory.ErrNotFile},
		{"absolute", secret, "", memory.ErrBadName},
		{"dots", up, "", memory.ErrBadName},
		{"dots in between", "notes/../../x", "", memory.ErrBadName},
		{"no name", "", "", memory.ErrBadName},
		{"NUL", "a\x00b", "", nil},
		{"too large", "large", "", memory.ErrTooLarge},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := read(dir, tt.path)
			if string(got) != tt.want || (err == nil) != (tt.want != "") || tt.err != nil && !errors.Is(err, tt.err) {
				t.Errorf("got %q, %v, want %q, %v", got, err, tt.want, tt.err)
			}
		})
	}
	if got, err := read(dir, "empty"); err != nil || len(got) != 0 {
		t.Errorf("empty file: %q, %v", got, err)
	}
}

func TestErrorsAreEscaped(t *testing.T) {
	dir := ensure(t)
	for _, name := range []string{"\x1b[2J\n", "/\x1b[2J\n"} {
		if _, err := read(dir, name); err == nil || strings.ContainsAny(err.Error(), "\x1b\n") {
			t.Errorf("error %q", err)
		}
	}
}

// TestRace swaps files, folders, links and pipes under the reader: nothing from
// outside is ever returned and nothing blocks.
func TestRace(t *testing.T) {
	dir, secret := plant(t)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		target, folder := filepath.Join(dir, "swap"), filepath.Join(dir, "swapdir")
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			os.Remove(target)
			os.RemoveAll(folder)
			switch i % 3 {
			case 0:
				os.WriteFile(target, []byte("fine"), 0o600)
				os.Mkdir(folder, 0o700)
				os.WriteFile(filepath.Join(folder, "secret"), []byte("fine"), 0o600)
			case 1:
				os.Symlink(secret, target)
				os.Symlink(filepath.Dir(secret), folder)
			case 2:
				unix.Mkfifo(target, 0o600)
				unix.Mkfifo(folder, 0o600)
			}
		}
	})
	defer wg.Wait()
	defer close(stop)
	for deadline := time.Now().Add(time.Second); time.Now().Before(deadline); {
		for _, name := range []string{"swap", "swapdir/secret"} {
			if got, err := read(dir, name); err == nil && bytes.Contains(got, []byte("secret")) {
				t.Fatalf("Read(%s) = %q", name, got)
			}
		}
		entries, err := list(dir)
		must.OK(t, err)
		for _, e := range entries {
			if e.Path == "swapdir/secret" && e.Size != 0 && e.Size != 4 {
				t.Fatalf("listed from outside: %+v", e)
			}
		}
	}
}
