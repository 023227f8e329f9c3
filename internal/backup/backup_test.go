package backup

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"sallyport/internal/test/must"
)

// filled is a data directory with what is hard to copy.
func filled(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "data")
	for _, d := range []string{"sandboxes/a", "engine/docker/overlay2/x/diff", "engine/docker/tmp", "engine/containerd", "logs", "audit"} {
		must.OK(t, os.MkdirAll(filepath.Join(dir, d), 0o700))
	}
	for _, name := range []string{"audit/1.log", "logs/sallyport.log", "lock", "engine/containerd/meta.db", "engine/docker/overlay2/x/diff/sudo", "sandboxes/a/logs"} {
		must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600))
	}
	must.OK(t, os.Chmod(filepath.Join(dir, "engine/docker/overlay2/x/diff/sudo"), 0o755|os.ModeSetuid))
	must.OK(t, os.Link(filepath.Join(dir, "audit/1.log"), filepath.Join(dir, "audit/2.log")))
	must.OK(t, os.Symlink("/etc/passwd", filepath.Join(dir, "sandboxes/a/link")))
	must.OK(t, unix.Setxattr(filepath.Join(dir, "audit/1.log"), "user.note", []byte("here"), 0))
	disk, err := os.Create(filepath.Join(dir, "sandboxes/a/disk.img"))
	must.OK(t, err)
	_, err = disk.WriteAt([]byte("written"), 5<<20)
	must.OK(t, errors.Join(err, disk.Truncate(64<<20), disk.Close()))
	return dir
}

// listed is what is below a folder: names with mode, size, and content of what is
// small.
func listed(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.Walk(dir, func(path string, i os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		says := i.Mode().String()
		if i.Mode().IsRegular() && i.Size() < 1000 {
			data, _ := os.ReadFile(path)
			says += " " + string(data)
		}
		all[rel] = says
		return nil
	})
	must.OK(t, err)
	return all
}

func written(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "backup")
	f, err := os.Create(path)
	must.OK(t, err)
	m := Manifest{Version: "v", DataDir: dir, Created: time.Unix(1, 0).UTC(), Key: []byte("k")}
	must.OK(t, errors.Join(Write(t.Context(), f, m), f.Close()))
	return path
}

// A restored folder is the one that was backed up, but for what is made anew, and no larger.
func TestRoundTrip(t *testing.T) {
	dir := filled(t)
	want := listed(t, dir)
	for name := range want {
		for _, s := range []string{"logs", "lock", "engine/containerd", "engine/docker/tmp"} {
			if name == s || strings.HasPrefix(name, s+"/") {
				delete(want, name)
			}
		}
	}
	path := written(t, dir)
	if i, err := os.Stat(path); err != nil || i.Size() > 1<<20 {
		t.Errorf("holes were written out: %d bytes, %v", i.Size(), err)
	}
	a, err := Open(path)
	must.OK(t, err)
	defer a.Close()
	if a.DataDir != dir || a.Version != "v" || string(a.Key) != "k" {
		t.Errorf("the manifest is %+v", a.Manifest)
	}
	to := filepath.Join(t.TempDir(), "new", "data")
	must.OK(t, a.Extract(t.Context(), to))
	if d := cmp.Diff(listed(t, to), want); d != "" {
		t.Error(d)
	}
	if out, err := exec.Command("cmp", filepath.Join(dir, "sandboxes/a/disk.img"), filepath.Join(to, "sandboxes/a/disk.img")).CombinedOutput(); err != nil {
		t.Errorf("the disk is another: %s", out)
	}
	var disk, one, two syscall.Stat_t
	if err := errors.Join(syscall.Stat(filepath.Join(to, "sandboxes/a/disk.img"), &disk),
		syscall.Stat(filepath.Join(to, "audit/1.log"), &one), syscall.Stat(filepath.Join(to, "audit/2.log"), &two)); err != nil {
		t.Fatal(err)
	}
	if disk.Blocks*512 > 1<<20 || one.Ino != two.Ino {
		t.Errorf("the disk takes %d bytes, links lead to %d and %d", disk.Blocks*512, one.Ino, two.Ino)
	}
	note := make([]byte, 10)
	if n, err := unix.Getxattr(filepath.Join(to, "audit/1.log"), "user.note", note); err != nil || string(note[:n]) != "here" {
		t.Errorf("the attribute is %q, %v", note, err)
	}
	if err := a.Extract(t.Context(), to); !errors.Is(err, ErrNotEmpty) {
		t.Errorf("into a folder that is filled: %v", err)
	}
}

// Whatever byte is another, and wherever it ends, nothing is taken of it.
func TestDamaged(t *testing.T) {
	path := written(t, filled(t))
	whole, err := os.ReadFile(path)
	must.OK(t, err)
	bad := map[string][]byte{"empty": nil, "more": append(append([]byte{}, whole...), '\n')}
	for _, at := range []int{0, 25, len(whole) / 2, len(whole) - endLength, len(whole) - 10} {
		b := append([]byte{}, whole...)
		b[at] ^= 1
		bad["byte "+strconv.Itoa(at)] = b
	}
	for _, n := range []int{1, endLength, len(whole) / 2, len(whole) - 1} {
		bad["cut off at "+strconv.Itoa(n)] = whole[:n]
	}
	for name, data := range bad {
		must.OK(t, os.WriteFile(path, data, 0o600))
		if _, err := Open(path); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A file that is changed after it was looked at leaves nothing behind.
func TestChangedMeanwhile(t *testing.T) {
	path := written(t, filled(t))
	a, err := Open(path)
	must.OK(t, err)
	defer a.Close()
	data, err := os.ReadFile(path)
	must.OK(t, err)
	at := strings.LastIndex(string(data), "audit/1.log")
	data[at] ^= 1
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	must.OK(t, err)
	if _, err := f.WriteAt(data, 0); err != nil {
		t.Fatal(err)
	}
	f.Close()
	to := filepath.Join(t.TempDir(), "data")
	if err := a.Extract(t.Context(), to); err == nil {
		t.Error("it was taken")
	}
	if err := Empty(to); err != nil {
		t.Error(err)
	}
}
