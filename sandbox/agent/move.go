package agent

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// move renames within one file system. Unless it may replace, what is there stays,
// also where it has come only just now.
func move(from, to string, replace bool) error {
	if replace {
		return os.Rename(from, to)
	}
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) {
		// Files that gVisor shares with the host have no such flag (gofer's RenameAt).
		err = moveNew(from, to)
	}
	var why syscall.Errno
	if errors.As(err, &why) {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: why}
	}
	return err
}

// moveNew is move without the kernel's flag, by calls that fail where something
// is: a folder takes the place of an empty one that is made for it, which a
// rename replaces only as long as it is empty; all else is linked there first, and
// has two names for a moment, or for good if we end in it.
func moveNew(from, to string) error {
	info, err := os.Lstat(from)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		if err := os.Link(from, to); err != nil {
			return err
		}
		err := os.Remove(from)
		if made, lerr := os.Lstat(to); err != nil && lerr == nil && os.SameFile(info, made) {
			_ = os.Remove(to)
		}
		return err
	}
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	// os.Rename would look first, and find what was made.
	if err := unix.Rename(from, to); err != nil {
		_ = unix.Rmdir(to) // as long as it is empty
		return err
	}
	return nil
}
