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

// note tells the guard where a container's memory is. While it is locked the guard
// waits; one that is unlocked and empty is of memory that is not to be had, also
// where this process has ended, whose locks end with it (flock(2)). It is empty too,
// and stays, once the engine has said that the container does not start: what it has
// begun may come to the guard still, as where the engine died, and would run then
// without anybody's knowing. Below the folder the guard writes, under the lock, that
// it begins.
type note struct {
	f       *os.File
	path    string
	mu      sync.Mutex // guards revoked
	revoked bool
}

// What the guard writes into a note.
const (
	begun  = "begun"
	spared = "spared" // nothing of it ran
)

// besides ends the name of the mark that guards made beside a note before they wrote
// into it: one that an upgrade finds is believed.
const besides = ".begun"

// next ends the name of a note until it is locked.
const next = ".next"

// newNote puts one in the place of what there may be: a guard that comes late to that
// finds one of the two, since without any it would start the container afresh.
func newNote(path string) (_ *note, err error) {
	f, err := os.OpenFile(path+next, os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	n := &note{f: f, path: path}
	defer func() {
		if err != nil {
			n.close()
			err = errors.Join(err, forget(path+next)) // and what there was stays
		}
	}()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, fmt.Errorf("locking %s: %w", f.Name(), err)
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return nil, err
	}
	return n, forget(path + besides)
}

// openNote opens one that there is.
func openNote(path string) (*note, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	return &note{f: f, path: path}, nil
}

// say unlocks it, and has it say where the memory is, or nothing for "".
func (n *note) say(dir string) (err error) {
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

// guardPatience is for how long a guard may have a note locked: it reads a line, and
// writes one.
const guardPatience = 5 * time.Second

// revoke has it say nothing, now and later. It is ErrRan where the guard has begun,
// unless nothing ran of that; the note tells the next who asks the same.
func (n *note) revoke() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.revoked = true
	for deadline := time.Now().Add(guardPatience); ; time.Sleep(time.Millisecond) {
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
	_, old := os.Lstat(n.path + besides)
	if old == nil || strings.Count("\n"+string(text), "\n"+begun) > strings.Count(string(text), "\n"+spared) {
		_, err := n.f.WriteAt([]byte("\n"), 0) // in one step: the folder is gone, the marks are not
		return errors.Join(sandbox.ErrRan, err)
	}
	return n.f.Truncate(0)
}

func (n *note) unlock() { _ = unix.Flock(int(n.f.Fd()), unix.LOCK_UN) }
func (n *note) close()  { _ = n.f.Close() }
func (n *note) remove() { _ = forgetNote(n.path) }

// forgetNote removes what there may be of a note.
func forgetNote(path string) error {
	return errors.Join(forget(path), forget(path+besides), forget(path+next))
}

func forget(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
