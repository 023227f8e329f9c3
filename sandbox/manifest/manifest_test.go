package manifest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sallyport/internal/lab"
	"sallyport/sandbox/manifest"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func take(t *testing.T, roots ...manifest.Root) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	must(t, manifest.Take(t.Context(), &b, roots...))
	return &b
}

func changes(t *testing.T, since *bytes.Buffer, roots ...manifest.Root) map[string]string {
	t.Helper()
	got := map[string]string{}
	tell := func(c manifest.Change) error {
		if had, twice := got[c.Path]; twice {
			t.Errorf("%s is told twice: %s and %s", c.Path, had, c.Kind)
		}
		got[c.Path] = c.Kind
		return nil
	}
	if since == nil {
		must(t, manifest.Compare(t.Context(), nil, roots, tell))
	} else {
		must(t, manifest.Compare(t.Context(), since, roots, tell))
	}
	return got
}

func sh(t *testing.T, dir, script string) {
	t.Helper()
	c := exec.Command("sh", "-ec", script)
	c.Dir = dir
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", script, err, out)
	}
}

// What has been done to a tree is told, whatever its files' times say.
func TestCompare(t *testing.T) {
	for script, want := range map[string]map[string]string{
		":":                                 {},
		"echo x >new":                       {"/new": "added"},
		"mkdir -p d/e && >d/e/f":            {"/d/e": "added", "/d/e/f": "added"},
		"rm a":                              {"/a": "removed"},
		"rm -r d":                           {"/d": "removed", "/d/f": "removed", "/d/sub": "removed", "/d/sub/g": "removed"},
		"echo x >>a":                        {"/a": "modified"},
		"echo b >a; touch -d @1000000000 a": {"/a": "modified"}, // same size and time
		"chmod 600 a":                       {"/a": "modified"},
		"chmod 700 d":                       {"/d": "modified"},
		"mv a b":                            {"/a": "removed", "/b": "added"},
		"mv d e":                            {"/d": "removed", "/d/f": "removed", "/d/sub": "removed", "/d/sub/g": "removed", "/e": "added", "/e/f": "added", "/e/sub": "added", "/e/sub/g": "added"},
		"rm a && mkdir a":                   {"/a": "modified"},
		"rm l && ln -s d l":                 {"/l": "modified"},
		"cp -p a b && mv b a":               {"/a": "modified"}, // same all, but another file
		"ln -s /etc/passwd zz":              {"/zz": "added"},
		"cat a d/f d/sub/g":                 {},
		`>"$(printf 'esc\033[31m\377')"`:    {"/esc\x1b[31m\xff": "added"},
		">d-x; >d.x; >dx":                   {"/d-x": "added", "/d.x": "added", "/dx": "added"},
	} {
		dir := t.TempDir()
		sh(t, dir, "echo a >a; mkdir -p d/sub; echo f >d/f; echo g >d/sub/g; ln -s a l; touch -d @1000000000 a d/f")
		root := manifest.Root{At: "/", Folder: dir}
		since := take(t, root)
		time.Sleep(10 * time.Millisecond) // the kernel's clock for files goes by ticks
		sh(t, dir, script)
		if diff := cmp.Diff(want, changes(t, since, root)); diff != "" {
			t.Errorf("%s: -want +got\n%s", script, diff)
		}
	}
}

// No link is followed, on either side.
func TestFollowsNothing(t *testing.T) {
	outside, dir := t.TempDir(), t.TempDir()
	sh(t, outside, "echo x >f; mkdir d; echo y >d/g")
	must(t, os.Symlink(outside, filepath.Join(dir, "out")))
	root := manifest.Root{At: "/", Folder: dir, Lower: []string{dir}}
	if got := changes(t, nil, manifest.Root{At: "/", Folder: dir}); !cmp.Equal(got, map[string]string{"/out": "added"}) {
		t.Errorf("got %v", got)
	}
	upper := t.TempDir()
	sh(t, upper, "mkdir out; echo x >out/f")
	root.Folder = upper
	if got := changes(t, nil, root); !cmp.Equal(got, map[string]string{"/out": "modified", "/out/f": "added"}) {
		t.Errorf("got %v", got)
	}
}

// An overlay's upper folder is read as the overlay shows it.
func TestOverlay(t *testing.T) {
	lab.Privileged(t)
	dir := t.TempDir()
	sh(t, dir, "mkdir low top upper work merged memory; mkdir -p low/d/e; for f in a b c d/f d/g d/e/h; do echo $f >low/$f; done; echo t >top/t; mkdir top/d; echo x >top/d/x")
	at := func(name string) string { return filepath.Join(dir, name) }
	must(t, syscall.Mount("overlay", at("merged"), "overlay", 0, fmt.Sprintf("lowerdir=%s:%s,upperdir=%s,workdir=%s", at("top"), at("low"), at("upper"), at("work"))))
	t.Cleanup(func() { syscall.Unmount(at("merged"), 0) })
	roots := []manifest.Root{{At: "/", Folder: at("upper"), Lower: []string{at("top"), at("low")}}, {At: "/memory", Folder: at("memory")}}
	sh(t, dir, "cd merged; echo x >>a; rm b; echo n >n; echo x >>d/f; rm d/x; echo m >../memory/m")
	want := map[string]string{"/a": "modified", "/b": "removed", "/n": "added", "/d/f": "modified", "/d/x": "removed", "/memory/m": "added"}
	if diff := cmp.Diff(want, changes(t, nil, roots...)); diff != "" {
		t.Errorf("since the image: -want +got\n%s", diff)
	}
	since := take(t, roots...)
	time.Sleep(10 * time.Millisecond)
	sh(t, dir, "cd merged; echo x >>a; echo b >b; rm n; rm c; echo x >>d/g; rm -r d/e; echo x >>t; chmod 700 d; echo m >>../memory/m; echo k >../memory/k")
	want = map[string]string{"/a": "modified", "/b": "added", "/n": "removed", "/c": "removed", "/d/g": "modified", "/d/e": "removed",
		"/t": "modified", "/d": "modified", "/memory/m": "modified", "/memory/k": "added"}
	if diff := cmp.Diff(want, changes(t, since, roots...)); diff != "" {
		t.Errorf("since it was noted: -want +got\n%s", diff)
	}
}

// A list that was cut or changed is refused.
func TestDamaged(t *testing.T) {
	dir := t.TempDir()
	sh(t, dir, "mkdir d; >a; >d/b; >c")
	root := manifest.Root{At: "/", Folder: dir}
	whole := take(t, root).Bytes()
	tell := func(manifest.Change) error { return nil }
	for n := range len(whole) {
		if err := manifest.Compare(t.Context(), bytes.NewReader(whole[:n]), []manifest.Root{root}, tell); !errors.Is(err, manifest.ErrDamaged) {
			t.Fatalf("cut at %d of %d: %v", n, len(whole), err)
		}
	}
	deep := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(deep, strings.Repeat("d/", 600)), 0o755))
	if err := manifest.Take(t.Context(), &bytes.Buffer{}, manifest.Root{At: "/", Folder: deep}); err == nil {
		t.Error("nested without end")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := manifest.Take(ctx, &bytes.Buffer{}, root); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func FuzzRead(f *testing.F) {
	dir := f.TempDir()
	os.WriteFile(filepath.Join(dir, "a"), nil, 0o600)
	root := manifest.Root{At: "/", Folder: dir}
	var b bytes.Buffer
	manifest.Take(f.Context(), &b, root)
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		_ = manifest.Compare(t.Context(), bytes.NewReader(data), []manifest.Root{root}, func(manifest.Change) error { return nil })
	})
}
