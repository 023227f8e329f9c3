package agent

import (
	"errors"
	"sync"
	"syscall"
)

// children starts processes and gives each the status of its end, though
// whoever is PID 1 collects everybody's.
type children struct {
	// all says that every child of this process is reaped here, also those
	// that were others' and lost their parents.
	all bool

	// starting is held for reading from before a fork until the child is
	// known, so that reap never meets a child of ours that it does not know,
	// nor one whose exec failed, for which ForkExec itself waits.
	starting sync.RWMutex
	mu       sync.Mutex
	ended    map[int]chan<- syscall.WaitStatus
}

func newChildren(all bool) *children {
	return &children{all: all, ended: map[int]chan<- syscall.WaitStatus{}}
}

// start runs a program; the channel gets its status once.
func (c *children) start(path string, args []string, attr *syscall.ProcAttr) (int, <-chan syscall.WaitStatus, error) {
	ended := make(chan syscall.WaitStatus, 1)
	c.starting.RLock()
	defer c.starting.RUnlock()
	// It shares our memory until its exec, as vfork does: see clone(2) on
	// CLONE_VFORK and CLONE_VM.
	pid, err := syscall.ForkExec(path, args, attr)
	if err != nil {
		return 0, nil, err
	}
	if !c.all {
		go func() { ended <- wait(pid) }()
		return pid, ended, nil
	}
	c.mu.Lock()
	c.ended[pid] = ended
	c.mu.Unlock()
	return pid, ended, nil
}

// reap collects every child that has ended.
func (c *children) reap() {
	c.starting.Lock()
	defer c.starting.Unlock()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if pid <= 0 || err != nil {
			return
		}
		c.mu.Lock()
		if ended, ours := c.ended[pid]; ours {
			delete(c.ended, pid)
			ended <- status
		}
		c.mu.Unlock()
	}
}

// wait collects one child.
func wait(pid int) (status syscall.WaitStatus) {
	for {
		_, err := syscall.Wait4(pid, &status, 0, nil)
		if !errors.Is(err, syscall.EINTR) {
			return status
		}
	}
}
