package manifest_test

import (
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

	"sallyport/internal/test/must"
	"sallyport/internal/test/testnet"
	"sallyport/sandbox/manifest"
)

// keep copies a folder as a snapshot keeps it.
func keep(t *testing.T, folder string) string {
	t.Helper()
	to := t.TempDir()
	sh(t, folder, "cp -a --sparse=always . "+to)
	return to
}

// told gathers what is told.
func told(t *testing.T, roots ...manifest.Root) map[string]string {
	t.Helper()
	got := map[string]string{}
	must.OK(t, manifest.Compare(t.Context(), roots, func(c manifest.Change) error {
		if had, twice := got[c.Path]; twice {
			t.Errorf("%s is told twice: %s and %s", c.Path, had, c.Kind)
		}
		got[c.Path] = c.Kind
		return nil
	}))
	return got
}

// since is what has changed since a folder was as it is in another.
func since(t *testing.T, then string, r manifest.Root) map[string]string {
	t.Helper()
	r.Then = then
	return told(t, r)
}

func sh(t *testing.T, dir, script string) {
	t.Helper()
	c := exec.Command("sh", "-ec", script)
	c.Dir = dir
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", script, err, out)
	}
}

// Changes of a tree are told, whatever its files' times say.
func TestCompare(t *testing.T) {
	for script, want := range map[string]map[string]string{
		":":                                      {},
		"echo x >new":                            {"/new": "added"},
		"mkdir -p d/e && >d/e/f":                 {"/d/e": "added", "/d/e/f": "added"},
		"rm a":                                   {"/a": "removed"},
		"rm -r d":                                {"/d": "removed", "/d/f": "removed", "/d/sub": "removed", "/d/sub/g": "removed"},
		"echo x >>a":                             {"/a": "modified"},
		"touch a":                                {"/a": "modified"},
		"echo b >a; touch -d @1000000000 a":      {"/a": "modified"}, // same size and time
		"chmod 600 a":                            {"/a": "modified"},
		"chmod 4644 a":                           {"/a": "modified"},
		"chown 5:6 a":                            {"/a": "modified"},
		"chmod 700 d":                            {"/d": "modified"},
		"mv a b":                                 {"/a": "removed", "/b": "added"},
		"mv d e":                                 {"/d": "removed", "/d/f": "removed", "/d/sub": "removed", "/d/sub/g": "removed", "/e": "added", "/e/f": "added", "/e/sub": "added", "/e/sub/g": "added"},
		"rm a && mkdir a":                        {"/a": "modified"},
		"rm l && ln -s d l":                      {"/l": "modified"},
		"cp -p a b && mv b a":                    {}, // all that can be seen is the same
		"mv a b; mv b a; chmod 1 d; chmod 755 d": {},
		"ln -s /etc/passwd zz":                   {"/zz": "added"},
		"cat a d/f d/sub/g":                      {},
		`>"$(printf 'esc\033[31m\377\nx')"`:      {"/esc\x1b[31m\xff\nx": "added"},
		">d-x; >d.x; >dx":                        {"/d-x": "added", "/d.x": "added", "/dx": "added"},
		"mknod p p; mknod c c 1 3; >$(printf %0200d 1)": {"/p": "added", "/c": "added", "/" + fmt.Sprintf("%0200d", 1): "added"},
		// Holes and zeros are the same, contents are not.
		"cp --sparse=never -p holes h; mv h holes":                                                     {},
		"printf y | dd of=holes bs=1 seek=500000 conv=notrunc 2>/dev/null; touch -d @1000000000 holes": {"/holes": "modified"},
		"printf x | dd of=holes bs=1 seek=9000 conv=notrunc 2>/dev/null; touch -d @1000000000 holes":   {"/holes": "modified"},
		"truncate -s 1000001 holes; touch -d @1000000000 holes":                                        {"/holes": "modified"},
		// Names of one file.
		"ln a a2":                               {"/a2": "added"},
		"echo x >>one":                          {"/one": "modified", "/two": "modified"},
		"rm one":                                {"/one": "removed", "/two": "modified"},
		"cp -p two x; mv x two":                 {"/two": "modified"},
		"echo b >two; touch -d @1000000000 two": {"/one": "modified", "/two": "modified"},
	} {
		dir := t.TempDir()
		sh(t, dir, `echo a >a; mkdir -p d/sub; echo f >d/f; echo g >d/sub/g; ln -s a l; echo a >one; ln one two
			truncate -s 1M holes; printf x | dd of=holes bs=1 seek=500000 conv=notrunc 2>/dev/null; truncate -s 1000000 holes
			touch -d @1000000000 a d/f one holes`)
		root := manifest.Root{At: "/", Folder: dir}
		then := keep(t, dir)
		time.Sleep(10 * time.Millisecond) // the kernel's clock for files goes by ticks
		sh(t, dir, script)
		if diff := cmp.Diff(want, since(t, then, root)); diff != "" {
			t.Errorf("%s: -want +got\n%s", script, diff)
		}
	}
}

// A tree that has gone through an archive or a copy and back is the same.
func TestBackAgain(t *testing.T) {
	testnet.Privileged(t) // to have owners, and attributes of the system's
	dir, copied, unpacked := t.TempDir(), t.TempDir(), t.TempDir()
	sh(t, dir, `mkdir -p d/e; echo f >d/f; ln d/f d/g; ln -s f d/l; chown -h 7:8 d/l d/f; mkfifo p; mknod c c 0 0; ln c c2; mknod b b 7 1
		i=0; while [ $i -lt 200 ]; do printf x | dd of=parts bs=1 seek=$((i*65536)) conv=notrunc 2>/dev/null; i=$((i+1)); done
		touch -d '1960-01-01 00:00:00.25' d/f; touch -d 2200-01-01 p; chmod 2751 d/e; chmod 4755 parts; >$(printf '\001\377')`)
	for name, value := range map[string]string{"trusted.overlay.opaque": "y", "trusted.own": "a\n=b", "user.x": "\x00\xff"} {
		must.OK(t, syscall.Setxattr(filepath.Join(dir, "d"), name, []byte(value), 0))
	}
	then := keep(t, dir)
	sh(t, dir, "cp -a . "+copied+`; tar --create --file=- --format=posix --numeric-owner --sparse --xattrs --xattrs-include='*' --acls . |
		tar --extract --file=- --numeric-owner --same-owner --preserve-permissions --sparse --xattrs --xattrs-include='*' --acls --delay-directory-restore --directory=`+unpacked)
	for _, folder := range []string{dir, copied, unpacked} {
		if got := since(t, then, manifest.Root{At: "/", Folder: folder}); len(got) > 0 {
			t.Errorf("%s: %v", folder, got)
		}
	}
	must.OK(t, syscall.Setxattr(filepath.Join(copied, "d"), "trusted.own", []byte("c"), 0))
	must.OK(t, syscall.Setxattr(filepath.Join(copied, "d"), "trusted.overlay.impure", []byte("y"), 0))
	if got := since(t, then, manifest.Root{At: "/", Folder: copied}); !cmp.Equal(got, map[string]string{"/d": "modified"}) {
		t.Errorf("another attribute: %v", got)
	}
}

// No link is followed, on either side.
func TestFollowsNothing(t *testing.T) {
	outside, dir := t.TempDir(), t.TempDir()
	sh(t, outside, "echo x >f; mkdir d; echo y >d/g")
	must.OK(t, os.Symlink(outside, filepath.Join(dir, "out")))
	if got := told(t, manifest.Root{At: "/", Folder: dir}); !cmp.Equal(got, map[string]string{"/out": "added"}) {
		t.Errorf("got %v", got)
	}
	upper := t.TempDir()
	sh(t, upper, "mkdir out; echo x >out/f")
	if got := told(t, manifest.Root{At: "/", Folder: upper, Lower: []string{dir}}); !cmp.Equal(got, map[string]string{"/out": "modified", "/out/f": "added"}) {
		t.Errorf("got %v", got)
	}
}

// An overlay's upper folder is read as the overlay shows it.
func TestOverlay(t *testing.T) {
	testnet.Privileged(t)
	dir := t.TempDir()
	sh(t, dir, `mkdir low top upper work merged; mkdir -p low/d/e low/k/m/n low/z low/q; for f in a b c u v w d/f d/g d/e/h k/i k/j k/m/n/o z/1 z/2 q/1; do echo $f >low/$f; done
		echo t >top/t; mkdir top/d top/k; echo x >top/d/x; mknod top/k/j c 0 0; ln -s a low/l`)
	at := func(name string) string { return filepath.Join(dir, name) }
	mount := func() {
		must.OK(t, syscall.Mount("overlay", at("merged"), "overlay", 0, fmt.Sprintf("lowerdir=%s:%s,upperdir=%s,workdir=%s", at("top"), at("low"), at("upper"), at("work"))))
	}
	mount()
	t.Cleanup(func() { syscall.Unmount(at("merged"), 0) })
	root := manifest.Root{At: "/", Folder: at("upper"), Lower: []string{at("top"), at("low")}}
	sh(t, dir, `cd merged; echo x >>a; rm b; echo n >n; echo x >>d/f; rm d/x
		: >>u; chmod 600 v; chmod 644 v; echo W >w; touch -r ../low/w w; touch -ch -r l l; rm -r z; mkdir z; echo 2 >z/2; rm -r q`)
	want := map[string]string{"/a": "modified", "/b": "removed", "/n": "added", "/d/f": "modified", "/d/x": "removed",
		"/w": "modified", "/z/1": "removed", "/z/2": "modified", "/q": "removed"}
	if diff := cmp.Diff(want, told(t, root)); diff != "" {
		t.Errorf("since the image: -want +got\n%s", diff)
	}
	then := keep(t, root.Folder)
	if diff := cmp.Diff(map[string]string{}, since(t, then, root)); diff != "" {
		t.Errorf("at once: -want +got\n%s", diff)
	}
	time.Sleep(10 * time.Millisecond)
	sh(t, dir, `cd merged; echo x >>a; echo b >b; rm n; rm c; echo x >>d/g; rm -r d/e; echo x >>t; chmod 700 d; : >>u; echo 3 >z/1
		rm -r k; mkdir k; mkdir k/m; echo k >k/new; echo i >k/i; mkdir q; echo 1 >q/1`)
	want = map[string]string{"/a": "modified", "/b": "added", "/n": "removed", "/c": "removed", "/d/g": "modified", "/d/e": "removed",
		"/t": "modified", "/d": "modified", "/k/new": "added", "/k/i": "modified", "/k/m/n": "removed", "/z/1": "added", "/q": "added", "/q/1": "added"}
	if diff := cmp.Diff(want, since(t, then, root)); diff != "" {
		t.Errorf("since the archive: -want +got\n%s", diff)
	}
	// The other way round is what a restore does.
	back := map[string]string{"/a": "modified", "/b": "removed", "/n": "added", "/c": "added", "/d/g": "modified", "/d/e": "added",
		"/t": "modified", "/d": "modified", "/k/new": "removed", "/k/i": "modified", "/z/1": "removed", "/q": "removed", "/q/1": "removed"}
	got := since(t, keep(t, root.Folder), manifest.Root{At: root.At, Folder: then, Lower: root.Lower})
	delete(got, "/k/m")   // hides what is below it no more
	delete(got, "/k/m/n") // the same
	if diff := cmp.Diff(back, got); diff != "" {
		t.Errorf("back: -want +got\n%s", diff)
	}
	sh(t, dir, "cd merged; rm -r d; mkdir d; echo f >d/f")
	want = map[string]string{"/d/f": "modified", "/d/g": "removed"}
	got = since(t, then, root)
	for path := range got {
		if !strings.HasPrefix(path, "/d") {
			delete(got, path)
		}
	}
	delete(got, "/d/e")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("a folder replaced: -want +got\n%s", diff)
	}
}

// A call that is cancelled ends.
func TestCancelled(t *testing.T) {
	dir := t.TempDir()
	sh(t, dir, "mkdir d; echo a >a; >d/b")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, r := range []manifest.Root{{At: "/", Folder: dir}, {At: "/", Folder: dir, Then: keep(t, dir)}} {
		if err := manifest.Compare(ctx, []manifest.Root{r}, func(manifest.Change) error { return nil }); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
	}
}
