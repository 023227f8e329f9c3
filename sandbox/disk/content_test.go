package disk_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/internal/test/must"
	"sallyport/internal/test/testnet"
	"sallyport/sandbox/disk"
)

// hostile fills a folder with what no program that goes by names copies: paths that the
// kernel cannot name, names of any bytes, many names of one file.
func hostile(t *testing.T, dir string) {
	t.Helper()
	at, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
	for range 3000 {
		if err == nil {
			err = unix.Mkdirat(at, "deep", 0o700)
		}
		was := at
		if err == nil {
			at, err = unix.Openat(was, "deep", unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
		}
		_ = unix.Close(was)
	}
	must.OK(t, err)
	f, err := unix.Openat(at, "bottom", unix.O_CREAT|unix.O_WRONLY, 0o600)
	if err == nil {
		_, err = unix.Write(f, []byte("found"))
	}
	must.OK(t, err)
	_, _ = unix.Close(f), unix.Close(at)
	one := filepath.Join(dir, "one")
	for _, err := range []error{
		os.WriteFile(one, []byte("x"), 0o600),
		unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600),
		os.Symlink("/etc/shadow", filepath.Join(dir, "link")),
		unix.Setxattr(dir, "trusted.overlay.opaque", []byte("y"), 0),
		os.WriteFile(filepath.Join(dir, "odd \xff\n\x1b[31m"), nil, 0o600),
	} {
		must.OK(t, err)
	}
	for i := range 2000 {
		must.OK(t, os.Link(one, fmt.Sprintf("%s%d-%0200d", one, i, i)))
	}
	sparse, err := os.Create(filepath.Join(dir, "sparse"))
	if err == nil {
		_, err = sparse.WriteAt([]byte("end"), 1<<40)
		err = errors.Join(err, sparse.Close())
	}
	must.OK(t, err)
}

// bottom reads what lies at the end of the deepest path.
func bottom(t *testing.T, dir string) string {
	t.Helper()
	at, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
	must.OK(t, err)
	for {
		next, err := unix.Openat(at, "deep", unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			break
		}
		_ = unix.Close(at)
		at = next
	}
	defer unix.Close(at)
	f, err := unix.Openat(at, "bottom", unix.O_RDONLY, 0)
	must.OK(t, err)
	b := make([]byte, 16)
	n, err := unix.Read(f, b)
	must.OK(t, err)
	_ = unix.Close(f)
	return string(b[:n])
}

func checkSpace() error { return nil }

// Whatever there is on a disk, the one that is copied or packed has it too, also while
// it is attached; and looking at it leaves nothing behind.
func TestContentOfHostileTree(t *testing.T) {
	from := made(t)
	tree := filepath.Join(disk.Layer(from), "t")
	must.OK(t, os.Mkdir(tree, 0o700))
	hostile(t, tree)
	if err := exec.Command("cp", "-a", tree, t.TempDir()).Run(); err == nil {
		t.Error("cp can copy it: it shows nothing")
	}
	thaw, err := disk.Freeze(from)
	must.OK(t, err)
	var packed bytes.Buffer
	copied, unpacked := made(t), t.TempDir()
	if err := disk.Copy(t.Context(), from, copied, checkSpace); !errors.Is(err, unix.EBUSY) {
		t.Errorf("over a disk that is attached: %v", err)
	}
	err = errors.Join(disk.Detach(copied), disk.Copy(t.Context(), from, copied, checkSpace), disk.Pack(t.Context(), from, &packed))
	if err = errors.Join(err, thaw()); err != nil {
		t.Fatal(err)
	}
	// Later writes are not in them.
	must.OK(t, os.WriteFile(filepath.Join(tree, "later"), nil, 0o600))
	if packed.Len() > 16<<20 {
		t.Errorf("holes have become %d bytes", packed.Len())
	}
	must.OK(t, disk.Unpack(t.Context(), unpacked, bytes.NewReader(packed.Bytes()), checkSpace))
	t.Cleanup(func() { _ = disk.Detach(unpacked) })
	for name, folder := range map[string]string{"copied": copied, "unpacked": unpacked} {
		must.OK(t, disk.Attach(folder))
		at := filepath.Join(disk.Layer(folder), "t")
		if got := bottom(t, at); got != "found" {
			t.Errorf("%s: at the bottom there is %q", name, got)
		}
		all, err := os.ReadDir(at)
		if err != nil || len(all) != 2006 { // 2000 names and one, deep, pipe, link, odd, sparse
			t.Errorf("%s: %d names, %v", name, len(all), err)
		}
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(at, "one"), &st); err != nil || st.Nlink != 2001 {
			t.Errorf("%s: %d links, %v", name, st.Nlink, err)
		}
		if n, err := disk.Used(folder); err != nil || n > 32<<20 {
			t.Errorf("%s: it takes %d bytes of the host's: %v", name, n, err)
		}
	}

	looked := filepath.Join(t.TempDir(), "looked")
	must.OK(t, errors.Join(os.Mkdir(looked, 0o700), disk.Unpack(t.Context(), looked, &packed, checkSpace)))
	root, err := disk.Look(looked)
	must.OK(t, err)
	if text, err := os.ReadFile(fmt.Sprintf("/proc/self/fd/%d/layer/t/one", root.Fd())); err != nil || string(text) != "x" {
		t.Errorf("looking: %q, %v", text, err)
	}
	if _, err := os.Lstat(looked); !os.IsNotExist(err) {
		t.Errorf("its folder: %v", err)
	}
	if err := root.Close(); err != nil {
		t.Error(err)
	}
}

// A disk that is moved is the same one; what is not, stays where it is.
func TestMoveAndDrop(t *testing.T) {
	from, to := made(t), t.TempDir()
	if err := disk.Move(from, to); !errors.Is(err, unix.EBUSY) {
		t.Errorf("one that is attached: %v", err)
	}
	if err := disk.Drop(from); !errors.Is(err, unix.EBUSY) {
		t.Errorf("removing one that is attached: %v", err)
	}
	must.OK(t, disk.Detach(from))
	for range 2 {
		if err := disk.Move(from, to); err != nil || disk.Exists(from) || !disk.Exists(to) {
			t.Fatalf("moved: %v, %v %v", err, disk.Exists(from), disk.Exists(to))
		}
	}
	for range 2 {
		if err := disk.Drop(to); err != nil || disk.Exists(to) {
			t.Errorf("removed: %v", err)
		}
	}
}

// Writes to a frozen disk wait, and go on when another process thaws what one that has
// ended froze.
func TestFreeze(t *testing.T) {
	folder := made(t)
	if _, err := disk.Freeze(folder); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- os.WriteFile(filepath.Join(disk.Layer(folder), "f"), []byte("x"), 0o600) }()
	select {
	case err := <-done:
		t.Errorf("it did not wait: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	for range 2 {
		must.OK(t, disk.Thaw(folder))
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	// It is detached even if nobody thaws it.
	if _, err := disk.Freeze(folder); err != nil {
		t.Fatal(err)
	}
	must.OK(t, disk.Detach(folder))
	must.OK(t, disk.Attach(folder))
	if _, err := os.Stat(filepath.Join(disk.Layer(folder), "f")); err != nil {
		t.Error(err)
	}
}

// A file that is no packed disk, or cut, or given up, replaces none.
func TestUnpackRefuses(t *testing.T) {
	testnet.Privileged(t)
	folder := made(t)
	must.OK(t, disk.Detach(folder))
	var packed bytes.Buffer
	must.OK(t, disk.Pack(t.Context(), folder, &packed))
	whole := packed.Bytes()
	full := errors.New("there is no room")
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, err := range map[string]error{
		"nothing":  disk.Unpack(t.Context(), folder, bytes.NewReader(nil), checkSpace),
		"an image": disk.Unpack(t.Context(), folder, bytes.NewReader(make([]byte, 1<<20)), checkSpace),
		"cut":      disk.Unpack(t.Context(), folder, bytes.NewReader(whole[:len(whole)-1]), checkSpace),
		"longer":   disk.Unpack(t.Context(), folder, io.MultiReader(bytes.NewReader(whole), bytes.NewReader([]byte("x"))), checkSpace),
		"given up": disk.Unpack(cancelled, folder, bytes.NewReader(whole), checkSpace),
	} {
		if err == nil {
			t.Errorf("%s: it is a disk", name)
		}
	}
	if _, err := os.Stat(filepath.Join(folder, "disk.img.part")); !os.IsNotExist(err) {
		t.Errorf("left: %v", err)
	}
	if err := disk.Attach(folder); err != nil {
		t.Error(err)
	}
	// A large one is asked for room.
	data := bytes.Repeat([]byte("data"), 4<<20)
	must.OK(t, os.WriteFile(filepath.Join(disk.Layer(folder), "large"), data, 0o600))
	must.OK(t, disk.Detach(folder))
	to := made(t)
	must.OK(t, disk.Detach(to))
	if err := disk.Copy(t.Context(), folder, to, func() error { return full }); err != nil && !errors.Is(err, full) {
		t.Errorf("copied without room: %v", err)
	}
	packed.Reset()
	must.OK(t, disk.Pack(t.Context(), folder, &packed))
	if err := disk.Unpack(t.Context(), to, &packed, func() error { return full }); !errors.Is(err, full) {
		t.Errorf("unpacked without room: %v", err)
	}
	if err := disk.Attach(to); err != nil {
		t.Error(err)
	}
}

// A disk that was detached has all that was written, also where a program with a mount
// namespace of its own has it mounted still.
func TestDetachedDiskIsWhole(t *testing.T) {
	folder := made(t)
	holder := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", "echo; exec sleep 600")
	out, err := holder.StdoutPipe()
	must.OK(t, errors.Join(err, holder.Start()))
	t.Cleanup(func() { _, _ = holder.Process.Kill(), holder.Wait() })
	_, err = out.Read(make([]byte, 1))
	must.OK(t, err)
	must.OK(t, os.WriteFile(filepath.Join(disk.Layer(folder), "late"), bytes.Repeat([]byte("data"), 4<<20), 0o600))
	must.OK(t, disk.Detach(folder))
	var packed bytes.Buffer
	must.OK(t, disk.Pack(t.Context(), folder, &packed))
	to := made(t)
	must.OK(t, disk.Detach(to))
	must.OK(t, disk.Unpack(t.Context(), to, &packed, checkSpace))
	must.OK(t, disk.Attach(to))
	data, err := os.ReadFile(filepath.Join(disk.Layer(to), "late"))
	if err != nil || len(data) != 16<<20 || bytes.Count(data, []byte("data")) != 4<<20 {
		t.Errorf("got %d bytes, %v", len(data), err)
	}
}

// A disk that the kernel has made read-only, since its file could not grow on a host that is
// full, can be detached.
func TestReadOnlyDiskIsDetached(t *testing.T) {
	testnet.Privileged(t)
	host := filepath.Join(t.TempDir(), "host")
	must.OK(t, os.Mkdir(host, 0o700))
	must.OK(t, unix.Mount("tmpfs", host, "tmpfs", 0, "size=64m"))
	t.Cleanup(func() { must.OK(t, unix.Unmount(host, 0)) })
	folder := filepath.Join(host, "sandbox")
	must.OK(t, os.Mkdir(folder, 0o700))
	must.OK(t, disk.Make(folder, disk.Min))
	t.Cleanup(func() { _ = disk.Detach(folder) })

	data := bytes.Repeat([]byte("x"), 1<<20)
	rest, err := os.Create(filepath.Join(host, "rest"))
	for err == nil {
		_, err = rest.Write(data)
	}
	must.OK(t, rest.Close())
	at := disk.Layer(folder)
	for n := 0; !errors.Is(err, unix.EROFS); n++ { // of a write
		if n == 1000 {
			t.Fatalf("the disk takes writes still: %v", err)
		}
		if err = os.WriteFile(filepath.Join(at, fmt.Sprint(n)), data, 0o600); err == nil {
			err = exec.Command("sync", "--file-system", at).Run()
		}
	}
	must.OK(t, disk.Detach(folder))
	must.OK(t, os.RemoveAll(folder))
}
