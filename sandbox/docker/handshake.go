package docker

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/sandbox"
)

// restoreHandshake is a file that tells the start shim where a container's memory is.
// While the file is locked the shim waits. A file that is unlocked and empty says that
// the memory is not to be had; so it is too when this process has ended, whose locks end
// with it (flock(2)). The file is emptied, and stays, once the engine has said that the
// container does not start: a start that the engine has begun may still reach the shim,
// as when the engine died, and would then run unnoticed. Below the folder the shim
// writes, under the lock, that it begins.
type restoreHandshake struct {
	f       *os.File
	path    string
	mu      sync.Mutex // guards revoked
	revoked bool
}

// Marks that the start shim writes into a handshake.
const (
	markBegun  = "begun"
	markSpared = "spared" // nothing of it ran
)

// unlockedSuffix ends the name of a handshake until it is locked.
const unlockedSuffix = ".next"

// newHandshake replaces any handshake at path. A shim that comes late to the old one finds
// one of the two: without any it would start the container afresh.
func newHandshake(path string) (_ *restoreHandshake, err error) {
	f, err := os.OpenFile(path+unlockedSuffix, os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	n := &restoreHandshake{f: f, path: path}
	defer func() {
		if err != nil {
			n.close()
			err = errors.Join(err, removeFile(path+unlockedSuffix)) // and what there was stays
		}
	}()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, fmt.Errorf("locking %s: %w", f.Name(), err)
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return nil, err
	}
	return n, nil
}

// openHandshake opens one that there is.
func openHandshake(path string) (*restoreHandshake, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	return &restoreHandshake{f: f, path: path}, nil
}

// publish unlocks it, and has it say where the memory is, or nothing for "".
func (n *restoreHandshake) publish(dir string) (err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.revoked {
		return nil
	}
	if dir != "" {
		_, err = n.f.WriteString(dir + "\n")
	}
	n.unlock()
	return err
}

// shimPatience is for how long a shim may hold the lock: it reads a line and writes one.
const shimPatience = 5 * time.Second

// revoke empties the handshake for good. The error is ErrRan if the shim has begun, unless
// nothing ran of that; a later revoke gives the same answer.
func (n *restoreHandshake) revoke() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.revoked = true
	for deadline := time.Now().Add(shimPatience); ; time.Sleep(time.Millisecond) {
		err := unix.Flock(int(n.f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(deadline) {
			return fmt.Errorf("%w: locking %s: %w", sandbox.ErrRan, n.path, err)
		}
	}
	defer n.unlock()
	text, err := io.ReadAll(io.NewSectionReader(n.f, 0, 2*unix.PathMax))
	if err != nil {
		return fmt.Errorf("%w: %w", sandbox.ErrRan, err)
	}
	if strings.Count("\n"+string(text), "\n"+markBegun) > strings.Count(string(text), "\n"+markSpared) {
		_, err := n.f.WriteAt([]byte("\n"), 0) // in one step: the folder is gone, the marks are not
		return errors.Join(sandbox.ErrRan, err)
	}
	return n.f.Truncate(0)
}

func (n *restoreHandshake) unlock() { _ = unix.Flock(int(n.f.Fd()), unix.LOCK_UN) }
func (n *restoreHandshake) close()  { _ = n.f.Close() }
func (n *restoreHandshake) remove() { _ = removeHandshake(n.path) }

// removeHandshake removes a handshake, locked or not yet, if it is there.
func removeHandshake(path string) error {
	return errors.Join(removeFile(path), removeFile(path+unlockedSuffix))
}

func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
