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

// restoreHandshake tells the guard where a container's memory is. While it is locked the guard
// waits; one that is unlocked and empty is of memory that is not to be had, also
// where this process has ended, whose locks end with it (flock(2)). It is empty too,
// and stays, once the engine has said that the container does not start: what it has
// begun may come to the guard still, as where the engine died, and would run then
// without anybody's knowing. Below the folder the guard writes, under the lock, that
// it begins.
type restoreHandshake struct {
	f       *os.File
	path    string
	mu      sync.Mutex // guards revoked
	revoked bool
}

// What the guard writes into a note.
const (
	markBegun  = "begun"
	markSpared = "spared" // nothing of it ran
)

// oldMarkSuffix ends the name of the mark that guards made beside a note before they wrote
// into it: one that an upgrade finds is believed.
const oldMarkSuffix = ".begun"

// unlockedSuffix ends the name of a note until it is locked.
const unlockedSuffix = ".next"

// newHandshake puts one in the place of what there may be: a guard that comes late to that
// finds one of the two, since without any it would start the container afresh.
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
	return n, removeFile(path + oldMarkSuffix)
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

// shimPatience is for how long a guard may have a note locked: it reads a line, and
// writes one.
const shimPatience = 5 * time.Second

// revoke has it say nothing, now and later. It is ErrRan where the guard has begun,
// unless nothing ran of that; the note tells the next who asks the same.
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
	_, old := os.Lstat(n.path + oldMarkSuffix)
	if old == nil || strings.Count("\n"+string(text), "\n"+markBegun) > strings.Count(string(text), "\n"+markSpared) {
		_, err := n.f.WriteAt([]byte("\n"), 0) // in one step: the folder is gone, the marks are not
		return errors.Join(sandbox.ErrRan, err)
	}
	return n.f.Truncate(0)
}

func (n *restoreHandshake) unlock() { _ = unix.Flock(int(n.f.Fd()), unix.LOCK_UN) }
func (n *restoreHandshake) close()  { _ = n.f.Close() }
func (n *restoreHandshake) remove() { _ = removeHandshake(n.path) }

// removeHandshake removes what there may be of a note.
func removeHandshake(path string) error {
	return errors.Join(removeFile(path), removeFile(path+oldMarkSuffix), removeFile(path+unlockedSuffix))
}

func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
