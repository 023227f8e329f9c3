package memory_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"sallyport/internal/test/must"
	"sallyport/memory"
)

func open(t *testing.T, dir string) *memory.Folder {
	t.Helper()
	f, err := memory.Open(dir)
	must.OK(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

func TestWrite(t *testing.T) {
	dir, secret := plant(t)
	f := open(t, dir)
	must.OK(t, f.Write("new/deep/a.md", []byte("one"), ""))
	for path, mode := range map[string]fs.FileMode{"new": 0o777, "new/deep": 0o777, "new/deep/a.md": 0o666} {
		if info, err := os.Stat(filepath.Join(dir, path)); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
	}
	one, large := memory.DigestOf([]byte("one")), make([]byte, 16<<20+1)
	for _, tt := range []struct {
		name string
		data []byte
		old  memory.Digest
		want error
	}{
		{"new/deep/a.md", nil, "", fs.ErrExist},
		{"new/deep/a.md", nil, memory.DigestOf([]byte("other")), memory.ErrChanged},
		{"none", nil, one, memory.ErrChanged},
		{"new", nil, one, memory.ErrChanged},
		{"pipe", nil, one, memory.ErrChanged},
		{"out", nil, memory.DigestOf([]byte("the secret")), memory.ErrChanged},
		{"large", large, "", memory.ErrTooLarge},
		{"../x", nil, "", memory.ErrBadName},
		{"/x", nil, "", memory.ErrBadName},
		{".", nil, "", memory.ErrBadName},
		{"new/..", nil, "", memory.ErrBadName},
	} {
		if err := f.Write(tt.name, tt.data, tt.old); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
	}
	for _, name := range []string{"outdir/x", "outdir/secret", "proc/tmp/x", "loop/x", "a\x00b", strings.Repeat("n", 300), "new/deep/a.md/x"} {
		if err := f.Write(name, nil, ""); err == nil {
			t.Errorf("%q was written", name)
		}
	}
	if got, err := os.ReadFile(secret); err != nil || string(got) != "the secret" {
		t.Errorf("outside: %q, %v", got, err)
	}
	if left, _ := os.ReadDir(filepath.Dir(secret)); len(left) != 1 {
		t.Errorf("outside: %v", left)
	}
	must.OK(t, f.Write("new/deep/a.md", []byte("two"), one))
	if got, err := f.Read("new/deep/a.md"); err != nil || string(got) != "two" {
		t.Errorf("%q, %v", got, err)
	}
	noTemporary(t, dir)
}

func noTemporary(t *testing.T, dir string) {
	t.Helper()
	_ = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err == nil && strings.HasPrefix(filepath.Base(path), ".sallyport-") {
			t.Errorf("left: %s", path)
		}
		return nil
	})
}

func TestRemoveAndRename(t *testing.T) {
	dir, secret := plant(t)
	f := open(t, dir)
	for _, name := range []string{".", "", "..", "../secret", "none", "outdir/secret", "in/none"} {
		if err := f.Remove(name); err == nil {
			t.Errorf("Remove(%q) succeeded", name)
		}
		if err := f.Rename(name, "other"); err == nil {
			t.Errorf("Rename(%q) succeeded", name)
		}
	}
	for _, to := range []string{".", "../out", "outdir/x", "memories.md", "in"} {
		if err := f.Rename("notes/a.md", to); err == nil {
			t.Errorf("Rename to %q succeeded", to)
		}
	}
	if err := f.Rename("notes/none", "made/for/nothing"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("renaming what is not there: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "made")); err == nil {
		t.Error("a folder was made for nothing")
	}
	must.OK(t, f.Rename("notes/a.md", "more/b.md"))
	for _, name := range []string{"outdir", "out", "pipe", "more"} {
		if err := f.Remove(name); err != nil {
			t.Errorf("Remove(%q): %v", name, err)
		}
	}
	if got, err := os.ReadFile(secret); err != nil || string(got) != "the secret" {
		t.Errorf("outside: %q, %v", got, err)
	}
}

// Eight writers add a hundred lines each to one file, and each takes the others' lines
// over.
func TestWriters(t *testing.T) {
	dir := ensure(t)
	f := open(t, dir)
	var all sync.WaitGroup
	for n := range 8 {
		all.Go(func() {
			if err := write100(f, fmt.Sprint(n), io.Discard); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	got, err := f.Read("shared.md")
	must.OK(t, err)
	seen := map[string]int{}
	for line := range strings.Lines(string(got)) {
		seen[strings.TrimSpace(line)]++
	}
	for n := range 8 {
		for i := range lines {
			if c := seen[fmt.Sprintf("%d %d", n, i)]; c != 1 {
				t.Fatalf("line %d of %d is there %d times", i, n, c)
			}
		}
	}
	noTemporary(t, dir)
}

const (
	lines   = 100
	writing = "SALLYPORT_TEST_WRITER"
)

func TestMain(m *testing.M) {
	if dir, n, ok := strings.Cut(os.Getenv(writing), "|"); ok {
		f, err := memory.Open(dir)
		if err == nil {
			err = write100(f, n, os.Stdout)
		}
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// write100 adds lines to a file, and tells of each once it is written.
func write100(f *memory.Folder, n string, told io.Writer) error {
	for i := 0; i < lines; {
		switch err := add(f, fmt.Sprintf("%s %d\n", n, i)); {
		case err == nil:
			fmt.Fprintln(told, i)
			i++
		case !errors.Is(err, memory.ErrChanged) && !errors.Is(err, fs.ErrExist):
			return err
		}
	}
	return nil
}

// add reads the file and writes it with one more line.
func add(f *memory.Folder, line string) error {
	old, err := f.Read("shared.md")
	if errors.Is(err, fs.ErrNotExist) {
		return f.Write("shared.md", []byte(line), "")
	}
	if err != nil {
		return err
	}
	return f.Write("shared.md", append(old, line...), memory.DigestOf(old))
}

func writer(dir, n string) *exec.Cmd {
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), writing+"="+dir+"|"+n)
	return c
}

// A writer that is killed leaves the file as it was or as it is to be, and loses no line
// that it has written.
func TestKilledWriter(t *testing.T) {
	dir := ensure(t)
	for n := range 20 {
		c := writer(dir, fmt.Sprint(n))
		out, err := c.StdoutPipe()
		if err == nil {
			err = c.Start()
		}
		must.OK(t, err)
		said := bufio.NewScanner(out)
		written := -1
		for range 3 + n {
			if said.Scan() {
				written++
			}
		}
		_ = c.Process.Kill()
		rest, _ := io.ReadAll(out)
		written += bytes.Count(rest, []byte("\n"))
		_ = c.Wait()
		got, err := open(t, dir).Read("shared.md")
		must.OK(t, err)
		if len(got) > 0 && got[len(got)-1] != '\n' || !bytes.Contains(got, fmt.Appendf(nil, "%d %d\n", n, written)) {
			t.Fatalf("after %d lines of %d: %q", written, n, got)
		}
	}
}

func TestNames(t *testing.T) {
	dir, _ := plant(t)
	f := open(t, dir)
	all, err := f.Names(".", 100)
	if err != nil || len(all) < 5 {
		t.Fatalf("%q, %v", all, err)
	}
	for most, want := range map[int]error{len(all) - 1: memory.ErrTruncated, len(all): nil, 0: memory.ErrTruncated} {
		if got, err := f.Names(".", most); len(got) != most || !errors.Is(err, want) {
			t.Errorf("at most %d: %d, %v", most, len(got), err)
		}
	}
	for _, name := range []string{"outdir", "out", "pipe", "memories.md", "..", "none"} {
		if got, err := f.Names(name, 100); err == nil {
			t.Errorf("%s: %q", name, got)
		}
		if _, err := f.Readlink(name); (err == nil) != (name == "out" || name == "outdir") {
			t.Errorf("the target of %s: %v", name, err)
		}
	}
	if info, err := f.Lstat("out"); err != nil || info.Mode().Type() != fs.ModeSymlink {
		t.Errorf("%v, %v", info, err)
	}
	if _, err := f.Lstat("outdir/secret"); err == nil {
		t.Error("described what is outside")
	}
}

func TestAppendLine(t *testing.T) {
	dir, _ := plant(t)
	f := open(t, dir)
	for _, line := range []string{"one", "", "two"} {
		if err := f.AppendLine("deep/turns.jsonl", []byte(line)); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(dir, "deep/turns.jsonl")
	if got, _ := os.ReadFile(path); string(got) != "one\n\ntwo\n" {
		t.Errorf("%q", got)
	}
	if err := os.WriteFile(path, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := f.AppendLine("deep/turns.jsonl", []byte("three")); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(path); string(got) != "half\nthree\n" {
		t.Errorf("%q", got)
	}
	for name, want := range map[string]error{"../x": memory.ErrBadName, "deep": memory.ErrNotFile, "pipe": memory.ErrNotFile, "out": nil} {
		if err := f.AppendLine(name, nil); err == nil || want != nil && !errors.Is(err, want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := f.AppendLine("x", make([]byte, 16<<20)); !errors.Is(err, memory.ErrTooLarge) {
		t.Error(err)
	}
}

func TestScanIn(t *testing.T) {
	dir, _ := plant(t)
	f := open(t, dir)
	for _, name := range []string{"a/b/c", "a/d", "e"} {
		if err := f.Write(name, nil, ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("a", filepath.Join(dir, "to-a")); err != nil {
		t.Fatal(err)
	}
	entries, err := f.ScanIn("a/", 10)
	var paths []string
	for _, e := range entries {
		paths = append(paths, e.Path)
	}
	if got := strings.Join(paths, " "); got != "a/b a/b/c a/d" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	for name, want := range map[string]error{"none": fs.ErrNotExist, "../x": memory.ErrBadName, "e": nil, "to-a": nil, "pipe": nil} {
		if entries, err := f.ScanIn(name, 10); err == nil || want != nil && !errors.Is(err, want) {
			t.Errorf("%s: %v, %v", name, entries, err)
		}
	}
}

// A file that begins with "#!" may be run, also after it is replaced.
func TestWriteScript(t *testing.T) {
	dir := t.TempDir()
	f := open(t, dir)
	old := memory.Digest("")
	for _, text := range []string{"#!/bin/sh\n", "#!/bin/sh\necho\n", "text"} {
		if err := f.Write("x", []byte(text), old); err != nil {
			t.Fatal(err)
		}
		old = memory.DigestOf([]byte(text))
		info, err := os.Stat(filepath.Join(dir, "x"))
		if err != nil || (info.Mode().Perm() == 0o777) != strings.HasPrefix(text, "#!") {
			t.Errorf("%q: %v, %v", text, info.Mode(), err)
		}
	}
}
