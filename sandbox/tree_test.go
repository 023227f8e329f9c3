package sandbox

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"sallyport/internal/lab"
)

// TestTrees: what overlayfs means by devices and attributes comes along, and no
// link is followed.
func TestTrees(t *testing.T) {
	lab.Privileged(t)
	outside := filepath.Join(t.TempDir(), "outside")
	from := t.TempDir()
	at := func(name string) string { return filepath.Join(from, name) }
	for _, err := range []error{
		os.WriteFile(outside, []byte("kept"), 0o600),
		unix.Mknod(at("gone"), unix.S_IFCHR, 0),
		os.Mkdir(at("opaque"), 0o751),
		unix.Setxattr(at("opaque"), "trusted.overlay.opaque", []byte("y"), 0),
		os.WriteFile(at("opaque/file"), []byte("text"), 0o4755),
		os.Chown(at("opaque/file"), 1000, 1001),
		os.Chmod(at("opaque/file"), 0o4755|fs.ModeSetuid),
		unix.Setxattr(at("opaque/file"), "user.x", []byte("v"), 0),
		os.Link(at("opaque/file"), at("twin")),
		os.Symlink(outside, at("link")),
		unix.Mkfifo(at("pipe"), 0o600),
		os.WriteFile(at(`odd "name"`+"\n\x1b"), nil, 0o600),
		os.Chmod(from, 0o711),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	sparse, err := os.Create(at("sparse"))
	if err == nil {
		_, err = sparse.WriteAt([]byte("end"), 64<<20)
		sparse.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	want := describe(t, from)
	copied := t.TempDir()
	if err := copyTree(t.Context(), from, copied); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, describe(t, copied)); diff != "" {
		t.Errorf("copied: %s", diff)
	}
	var archive, again bytes.Buffer
	if err := packTree(t.Context(), from, &archive); err != nil {
		t.Fatal(err)
	}
	if err := packTree(t.Context(), copied, &again); err != nil || !bytes.Equal(archive.Bytes(), again.Bytes()) {
		t.Errorf("a copy's archive is another: %v", err)
	}
	if archive.Len() > 1<<20 {
		t.Errorf("holes have become %d bytes", archive.Len())
	}
	unpacked := t.TempDir()
	if err := unpackTree(t.Context(), &archive, unpacked); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, describe(t, unpacked)); diff != "" {
		t.Errorf("unpacked: %s", diff)
	}
	if err := emptyTree(t.Context(), unpacked); err != nil {
		t.Fatal(err)
	}
	if left := describe(t, unpacked); len(left) != 1 {
		t.Errorf("left: %v", left)
	}
	if text, err := os.ReadFile(outside); string(text) != "kept" {
		t.Errorf("what a link led to: %q, %v", text, err)
	}
	if err := unpackTree(t.Context(), bytes.NewReader([]byte("no archive")), unpacked); err == nil {
		t.Error("what is no archive was unpacked")
	}
}

type thing struct {
	Mode, UID, GID, Links uint32
	Device                uint64
	Size                  int64
	Target, Opaque, User  string
	Modified              int64
}

func describe(t *testing.T, dir string) map[string]thing {
	t.Helper()
	all := map[string]thing{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		x := thing{Mode: st.Mode, UID: st.Uid, GID: st.Gid, Modified: st.Mtim.Nano()}
		if !d.IsDir() {
			x.Size, x.Links, x.Device = st.Size, uint32(st.Nlink), st.Rdev
		}
		x.Target, _ = os.Readlink(path)
		var b [8]byte
		if n, err := unix.Lgetxattr(path, "trusted.overlay.opaque", b[:]); err == nil {
			x.Opaque = string(b[:n])
		}
		if n, err := unix.Lgetxattr(path, "user.x", b[:]); err == nil {
			x.User = string(b[:n])
		}
		name, _ := filepath.Rel(dir, path)
		all[name] = x
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// A tree that is nested deeper than files can be open is removed all the same, and
// the daemon has its files for others meanwhile.
func TestDeepTree(t *testing.T) {
	const deep = 1000
	dir := t.TempDir()
	nest(t, dir, deep)
	var had unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &had); err != nil {
		t.Fatal(err)
	}
	few := had
	few.Cur = 200
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	err := emptyTree(t.Context(), dir)
	if rerr := unix.Setrlimit(unix.RLIMIT_NOFILE, &had); rerr != nil {
		t.Fatal(rerr)
	}
	if err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	nest(t, dir, deep)
	if err := removeTree(t.Context(), dir); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(dir); !os.IsNotExist(err) {
		t.Errorf("it is there: %v", err)
	}
}

func nest(t *testing.T, dir string, deep int) {
	t.Helper()
	at, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_RDONLY, 0)
	for range deep {
		if err == nil {
			err = unix.Mkdirat(at, "d", 0o700)
		}
		was := at
		if err == nil {
			at, err = unix.Openat(was, "d", unix.O_DIRECTORY|unix.O_RDONLY, 0)
		}
		unix.Close(was)
	}
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(at)
}

// What reads a sandbox's files has bounds of its own, whatever there is to read and
// to say.
func TestRunBounds(t *testing.T) {
	if err := run(t.Context(), nil, nil, "sh", "-c", "ulimit -v"); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := run(t.Context(), nil, &out, "sh", "-c", "ulimit -v"); err != nil || out.String() != "1048576\n" {
		t.Errorf("its memory: %q, %v", out.String(), err)
	}
	err := run(t.Context(), nil, nil, "sh", "-c", `printf 'first\n\033[31m' >&2; head -c 10000000 /dev/zero | tr '\0' x >&2; printf 'last\n' >&2; exit 3`)
	if err == nil || len(err.Error()) > 400 || !bytes.Contains([]byte(err.Error()), []byte("last")) || bytes.Contains([]byte(err.Error()), []byte("\x1b")) {
		t.Errorf("what it says: %q", err)
	}
}
