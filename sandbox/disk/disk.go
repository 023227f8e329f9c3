// Package disk gives a sandbox a file system of its own, in a file of the host:
// what the sandbox can write is bounded by the file system's size, whatever
// writes it, and a full one fills nobody else's.
//
// The file is sparse, so that it takes of the host what was written, and gives
// back what was removed (discard, see mount(8)). It holds what the sandbox
// changes of its image, below layer, and its memory. The file system is the
// kernel's ext4 throughout: a sandbox writes files in it and never its blocks.
//
// It guarantees nothing against a host that is full: files together may promise
// more than there is. Mounts are the host's, outlive the process, and are gone
// after a reboot; each call finds out what is there.
package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Names in the folder of a sandbox.
const (
	image = "disk.img"
	point = "disk"
)

// Folders on the disk.
const (
	layer  = "layer"
	memory = "memory"
)

const (
	note   = "ASLEEP"
	asleep = "The sandbox does not run: its memory is in ../" + image + ", and `sallyport memory` shows it.\n"
)

// ErrDamaged is of a disk that only an operator can mend.
var ErrDamaged = errors.New("its file system cannot be mended by itself")

// Min is the size of the smallest disk, in bytes: below it ext4 keeps no journal.
const Min = 64 << 20

// Disks are a manager.Manager's.
type Disks struct{}

func (Disks) Make(folder string, bytes int64) (string, error) {
	if Exists(folder) { // of a container that is made again
		return Layer(folder), Attach(folder)
	}
	return Layer(folder), Make(folder, bytes)
}

func (Disks) Attach(folder string) error { return errors.Join(Attach(folder), Yield(folder)) }
func (Disks) Settle(folder string) error { return Settle(folder) }
func (Disks) Detach(folder string) error { return Detach(folder) }

func (Disks) Layer(folder string) string                    { return Layer(folder) }
func (Disks) Freeze(folder string) (func() error, error)    { return Freeze(folder) }
func (Disks) Thaw(folder string) error                      { return Thaw(folder) }
func (Disks) Move(from, to string) error                    { return Move(from, to) }
func (Disks) Drop(folder string) error                      { return Drop(folder) }
func (Disks) Look(folder string) (root *os.File, err error) { return Look(folder) }

func (Disks) Pack(ctx context.Context, folder string, w io.Writer) error {
	return Pack(ctx, folder, w)
}

func (Disks) Unpack(ctx context.Context, folder string, r io.Reader, checkSpace func() error) error {
	return Unpack(ctx, folder, r, checkSpace)
}

func (Disks) Copy(ctx context.Context, from, to string, checkSpace func() error) error {
	return Copy(ctx, from, to, checkSpace)
}

// Make makes the disk of the sandbox whose own folder is given, of so many bytes,
// and attaches it. Its files are gone again when it fails.
func Make(folder string, size int64) (err error) {
	if size < Min {
		return fmt.Errorf("a disk of %d bytes: use at least %d", size, int64(Min))
	}
	path := filepath.Join(folder, image)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("making a disk: %w", err)
	}
	err = errors.Join(f.Truncate(size), f.Close())
	unlock := func() {}
	defer func() {
		if err != nil {
			err = errors.Join(err, detach(folder), os.Remove(path))
		}
		unlock()
	}()
	if err == nil {
		unlock, err = lock(folder)
	}
	if errors.Is(err, unix.EFBIG) {
		return fmt.Errorf("a disk of %d bytes: %w for the host's file system: use less", size, unix.EFBIG)
	}
	if err != nil {
		return fmt.Errorf("making a disk: %w", err)
	}
	// A sparse file reads as zeros: nothing has to be written for that. Nothing
	// is kept back for root, whom the sandbox writes as.
	if err := run("mke2fs", "-q", "-F", "-t", "ext4", "-m", "0", "-E", "assume_storage_prezeroed=1,nodiscard", path); err != nil {
		return fmt.Errorf("making a disk: %w", err)
	}
	if err := mount(folder); err != nil {
		return err
	}
	for _, name := range []string{layer, memory} {
		if err := os.Mkdir(filepath.Join(folder, point, name), 0o700); err != nil {
			return fmt.Errorf("making a disk: %w", err)
		}
	}
	return attach(folder)
}

// Exists tells whether the sandbox whose own folder is given has a disk.
func Exists(folder string) bool {
	_, err := os.Lstat(filepath.Join(folder, image))
	return err == nil
}

// Layer is the folder on an attached disk for what the sandbox changes of its
// image.
func Layer(folder string) string { return filepath.Join(folder, point, layer) }

// Attach makes the disk's files to be seen: the layer's, and the sandbox's memory
// where it always is. It may be called again. Without a disk it does nothing.
func Attach(folder string) error {
	if !Exists(folder) {
		return nil
	}
	unlock, err := lock(folder)
	if err != nil {
		return err
	}
	defer unlock()
	return attach(folder)
}

func attach(folder string) error {
	if err := mount(folder); err != nil {
		return err
	}
	to := filepath.Join(folder, memory)
	if err := os.MkdirAll(to, 0o700); err != nil {
		return err
	}
	if !mounted(to) {
		// For who looks into the folder while the disk is not attached.
		if err := os.WriteFile(filepath.Join(to, note), []byte(asleep), 0o600); err != nil {
			return err
		}
	}
	return Bind(filepath.Join(folder, point, memory), to)
}

// Detach takes the disk's files from sight. It may be called again, and fails
// while something uses them.
func Detach(folder string) error {
	unlock, err := lock(folder)
	if err != nil {
		return err
	}
	defer unlock()
	return detach(folder)
}

func detach(folder string) error {
	if err := Thaw(folder); err != nil {
		return err
	}
	flush(filepath.Join(folder, point))
	for deadline := time.Now().Add(busyWait); ; time.Sleep(2 * time.Millisecond) {
		err := Unbind(filepath.Join(folder, memory))
		if err == nil {
			err = Unbind(filepath.Join(folder, point))
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return err
		}
	}
}

// busyWait is for how long detach waits until nothing uses the disk's files. A process that
// was forked has what was open here until it runs its program.
const busyWait = time.Second

// flush writes what is on a disk to its file (syncfs(2)), which is copied next. The kernel
// does so at an unmount of its own, but not while another mount namespace has a copy of the
// mount, as that of a program which unshare(1) has started.
//
// An error is not returned: it means that the host's disk takes no more, or has made this one
// read-only, and then the unmount could not write either. A sandbox can be stopped and
// removed all the same.
func flush(at string) {
	if !mounted(at) {
		return
	}
	if f, err := os.Open(at); err == nil {
		_ = unix.Syncfs(int(f.Fd()))
		_ = f.Close()
	}
}

// Hold keeps the disk of a sandbox as it is for as long as its memory is looked at, and
// attached, which it may not be: who attaches or detaches it, in any process, waits for
// release.
func Hold(folder string) (release func() error, err error) {
	if !Exists(folder) {
		return func() error { return nil }, nil
	}
	unlock, err := lock(folder)
	if err != nil {
		return nil, err
	}
	if mounted(filepath.Join(folder, memory)) {
		return func() error { unlock(); return nil }, nil
	}
	if err := attach(folder); err != nil {
		err = errors.Join(err, detach(folder))
		unlock()
		return nil, err
	}
	return func() error {
		defer unlock()
		if err := detach(folder); !errors.Is(err, unix.EBUSY) {
			return err
		}
		return nil // somebody else looks at it, whose it is to leave
	}, nil
}

// lockWait is for how long lock waits: memory is looked at for milliseconds.
const lockWait = 10 * time.Second

// lock waits for whoever looks at the memory of a sandbox, or attaches or detaches its
// disk (flock(2), on the disk's file). unlock can be called in any case. Where there is no
// disk there is nobody to wait for.
func lock(folder string) (unlock func(), err error) {
	none, path := func() {}, filepath.Join(folder, image)
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return none, nil
	}
	if err != nil {
		return none, err
	}
	for deadline := time.Now().Add(lockWait); ; time.Sleep(2 * time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil && !current(f, path) { // another disk has taken its place
			_ = f.Close()
			return lock(folder)
		}
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) || time.Now().After(deadline) {
			_ = f.Close()
			return none, fmt.Errorf("%s is being looked at (`sallyport memory`, or lsof %s says by what): end that, and try again: %w", path, path, err)
		}
	}
}

// current tells whether an open file is the one at a path.
func current(f *os.File, path string) bool {
	is, err := f.Stat()
	now, nerr := os.Lstat(path)
	return err == nil && nerr == nil && os.SameFile(is, now)
}

// Used is how much of the host's disk a sandbox's takes, in bytes.
func Used(folder string) (int64, error) {
	var st unix.Stat_t
	err := unix.Lstat(filepath.Join(folder, image), &st)
	if errors.Is(err, unix.ENOENT) {
		return 0, nil
	}
	return st.Blocks * 512, err
}

// mount mounts the file system, having mended it where the host went down with
// it. No device and no set-user-ID bit on it means anything to the host.
func mount(folder string) error {
	at := filepath.Join(folder, point)
	if mounted(at) {
		return nil
	}
	if err := os.Mkdir(at, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	path := filepath.Join(folder, image)
	try := func() error { return run("mount", "-t", "ext4", "-o", "loop,"+options, "--", path, at) }
	err := try()
	if err != nil {
		// e2fsck(8): 1 is mended.
		if merr := run("e2fsck", "-p", path); merr != nil && code(merr) != 1 {
			return fmt.Errorf("attaching %s: %w: %w: %w: mend it with `e2fsck %s`", path, err, ErrDamaged, merr, path)
		}
		if err = try(); err != nil {
			return fmt.Errorf("attaching %s: %w", path, err)
		}
	}
	return nil
}

const options = "noatime,nodev,nosuid,discard"

// Bind shows the folder from at to as well. It may be called again.
func Bind(from, to string) error {
	if mounted(to) {
		if same(from, to) {
			return nil
		}
		return fmt.Errorf("something else is mounted at %s: unmount it", to)
	}
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		return &os.PathError{Op: "bind", Path: to, Err: err}
	}
	return nil
}

// Unbind takes back what Bind or Attach has mounted at a folder, if anything is.
func Unbind(at string) error {
	if !mounted(at) {
		return nil
	}
	if err := unix.Unmount(at, unix.UMOUNT_NOFOLLOW); err != nil {
		return &os.PathError{Op: "unmount", Path: at, Err: err}
	}
	return nil
}

// mounted tells whether something is mounted at a folder itself (statx(2)).
func mounted(at string) bool {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, at, unix.AT_SYMLINK_NOFOLLOW, 0, &st)
	return err == nil && st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}

func same(a, b string) bool {
	x, err1 := os.Lstat(a)
	y, err2 := os.Lstat(b)
	return err1 == nil && err2 == nil && os.SameFile(x, y)
}

// run runs a program of e2fsprogs or util-linux, and gives what it says as the
// error.
func run(name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		said, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
		return fmt.Errorf("%s: %w: %s", name, err, said)
	}
	return nil
}

func code(err error) int {
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		return e.ExitCode()
	}
	return -1
}
