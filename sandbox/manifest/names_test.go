package manifest_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sallyport/internal/test/must"
	"sallyport/sandbox/manifest"
)

// nest makes folders in one another, each with a file before and one behind the next.
func nest(t *testing.T, dir string, depth int) {
	t.Helper()
	sh(t, dir, fmt.Sprintf(`python3 -c 'import os
for i in range(%d): open("a","w").close(); open("z","w").close(); os.mkdir("d"); os.chdir("d")'`, depth))
	t.Cleanup(func() { sh(t, dir, "rm -rf d") })
}

// Folders are nested as deep as a sandbox likes: all that is in them is told, and few are
// open at a time.
func TestDeep(t *testing.T) {
	const depth = 3000
	dir := t.TempDir()
	nest(t, dir, depth)
	sh(t, dir, "mkdir -p d/d/d/e/e/e; echo >d/d/d/e/e/e/f")
	most := 0
	got := map[string]bool{}
	must.OK(t, manifest.Compare(t.Context(), []manifest.Root{{At: "/", Folder: dir}}, func(c manifest.Change) error {
		got[c.Path] = true
		if len(got)%100 == 0 {
			open, err := os.ReadDir("/proc/self/fd")
			must.OK(t, err)
			most = max(most, len(open))
		}
		return nil
	}))
	if want := 3*depth + 4; len(got) != want {
		t.Errorf("%d are told, want %d", len(got), want)
	}
	for _, p := range []string{strings.Repeat("/d", depth), strings.Repeat("/d", depth-1) + "/z", "/z", "/d/d/d/e/e/e/f"} {
		if !got[p] {
			t.Errorf("%.20q of %d bytes is not told", p, len(p))
		}
	}
	if most > 100 {
		t.Errorf("%d files are open", most)
	}
}

// A folder that is moved while it is looked into takes nothing of the host's with it, and
// the rest is told.
func TestMovedMeanwhile(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	nest(t, dir, 300)
	sh(t, outside, "touch z1 z2 secret")
	moved := strings.Repeat("/d", 150)
	got := map[string]bool{}
	err := manifest.Compare(t.Context(), []manifest.Root{{At: "/", Folder: dir}}, func(c manifest.Change) error {
		got[c.Path] = true
		if c.Path == strings.Repeat("/d", 290) {
			must.OK(t, os.Rename(dir+moved, outside+"/d"))
		}
		return nil
	})
	if !got["/z"] || !got[strings.Repeat("/d", 140)+"/z"] {
		t.Errorf("what was not moved is not told: %v", err)
	}
	for p := range got {
		if strings.Contains(p, "secret") {
			t.Errorf("%s is told", p)
		}
	}
	sh(t, outside, "rm -rf d")
}

// Names without number are refused before they are all in memory, and many are not. A change
// outside of that folder is told all the same, and at the end that something is missing.
func TestNamesWithoutNumber(t *testing.T) {
	defer manifest.Names(2 << 20)()
	dir := t.TempDir()
	long := strings.Repeat("x", 240)
	for _, folder := range []string{"a", "b"} { // beside each other they are not held together
		must.OK(t, os.Mkdir(filepath.Join(dir, folder), 0o700))
		for i := range 5000 {
			must.OK(t, os.WriteFile(filepath.Join(dir, folder, fmt.Sprintf("%s%06d", long, i)), nil, 0o600))
		}
	}
	root := manifest.Root{At: "/", Folder: dir}
	must.OK(t, manifest.Compare(t.Context(), []manifest.Root{root}, func(manifest.Change) error { return nil }))
	must.OK(t, os.Rename(filepath.Join(dir, "b"), filepath.Join(dir, "a", long+"002500b")))
	must.OK(t, os.Mkdir(filepath.Join(dir, "c"), 0o700))
	must.OK(t, os.WriteFile(filepath.Join(dir, "c", "file"), nil, 0o600))
	got := map[string]bool{}
	err := manifest.Compare(t.Context(), []manifest.Root{root}, func(c manifest.Change) error { got[c.Path] = true; return nil })
	if err == nil || !strings.Contains(err.Error(), "more files than can be listed") {
		t.Errorf("got %v", err)
	}
	if !got["/a"] || !got["/c/file"] {
		t.Errorf("the rest is not told, of %d", len(got))
	}
}

// Files with several names beyond those that are held in memory are compared all the same.
func TestLinksWithoutNumber(t *testing.T) {
	defer manifest.Names(4 << 10)()
	dir := t.TempDir()
	sh(t, dir, `for d in a b c d e f g h i j; do mkdir $d; for n in 0 1 2 3 4 5 6 7 8 9; do echo $n >$d/${n}x; ln $d/${n}x $d/${n}y; done; done`)
	root := manifest.Root{At: "/", Folder: dir}
	then := keep(t, dir)
	if got := since(t, then, root); len(got) > 0 {
		t.Errorf("the same: %v", got)
	}
	sh(t, dir, "echo x >>j/9x; cp -p a/0y new; mv new a/0y")
	want := map[string]string{"/j/9x": "modified", "/j/9y": "modified", "/a/0y": "modified"}
	if got := since(t, then, root); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	// One side's table has room for what the other's has not.
	sh(t, then, "rm -r a b c d e f g h")
	got := since(t, then, root)
	for _, name := range []string{"/i/0x", "/i/5y", "/j/0y"} {
		if kind := got[name]; kind != "" {
			t.Errorf("%s is told as %s", name, kind)
		}
	}
}

// Folders that cannot be listed, on either side, keep nothing else from being compared.
func TestManyUnlisted(t *testing.T) {
	defer manifest.Names(4 << 10)()
	dir := t.TempDir()
	sh(t, dir, `for d in a b/c d e/f g; do mkdir -p $d; for n in $(seq 100 199); do >$d/$(printf %060d $n); done; echo x >$d.file; done; mkdir e/f/sub; mkdir h; >h/h`)
	then := keep(t, dir)
	sh(t, dir, "find a e -type f -name '0*1??' -delete; echo y >b/c.file; echo y >h/h; rm g.file")
	sh(t, then, "find d -type f -name '0*1?[1-9]' -delete")
	got := map[string]string{}
	root := manifest.Root{At: "/", Folder: dir, Then: then}
	err := manifest.Compare(t.Context(), []manifest.Root{root}, func(c manifest.Change) error { got[c.Path] = c.Kind; return nil })
	want := map[string]string{"/b/c.file": "modified", "/h/h": "modified", "/g.file": "removed"}
	if err == nil || !maps.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
}
