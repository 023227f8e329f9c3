// Package secretfile reads files that hold secrets, where nobody else can read them.
package secretfile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
)

// ErrUnsafe refuses a file that somebody else can read, write or replace.
var ErrUnsafe = errors.New("the file is not kept safe")

// Read returns what a file holds, up to most bytes. The file must be a regular one of
// root or of the process's user that nobody else can use (0600 or less), which errors
// that wrap ErrUnsafe say how to make it. A symbolic link is followed.
func Read(path string, most int64) ([]byte, error) { return read(path, most, 0) }

// ReadMounted is Read for a file of a volume that a driver of Kubernetes mounts: root's
// group may read it too (0440), as cert-manager's csi-driver has it.
func ReadMounted(path string, most int64) ([]byte, error) { return read(path, most, 0o040) }

// read takes these permissions of root's group for root's own.
func read(path string, most int64, group os.FileMode) ([]byte, error) {
	// O_NONBLOCK: opening a pipe that somebody put there must not hang.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: %s is not a regular file", ErrUnsafe, path)
	}
	if info.Sys().(*syscall.Stat_t).Gid != 0 {
		group = 0
	}
	if perm := info.Mode().Perm(); perm&0o077&^group != 0 {
		return nil, fmt.Errorf("%w: %s has mode %04o, so others can use it; run: chmod 600 %s", ErrUnsafe, path, perm, path)
	}
	if owner := info.Sys().(*syscall.Stat_t).Uid; owner != 0 && owner != uint32(os.Geteuid()) {
		return nil, fmt.Errorf("%w: %s belongs to user %d; make it root's or the daemon's: chown %d %s", ErrUnsafe, path, owner, os.Geteuid(), path)
	}
	return io.ReadAll(io.LimitReader(f, most))
}
