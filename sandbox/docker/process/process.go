// Package process keeps a long-lived program of the engine running beside the daemon: it
// outlives the daemon, and the next daemon finds it by its command line. A command line is
// believed only of processes that this user started in this PID namespace.
package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// logLimit is the size in bytes at which a process's log is moved aside; one
// old log is kept.
const logLimit = 8 << 20

// ErrRetired says that a process was ended on purpose and stays so.
var ErrRetired = errors.New("the engine was stopped")

// Process is one program of the engine. It runs in a session of its own and outlives the
// daemon.
type Process struct {
	Name string   // for the log
	Path string   // absolute
	Args []string // without argv[0]: an option and a file that only this engine has
	Env  []string
	Log  string // file

	mu    sync.Mutex
	pidfd int // of the running process, 0 before the first
	ended bool
}

// Adopt takes over the process if it runs already.
func (p *Process) Adopt() (bool, error) {
	pid := p.Find()
	if pid == 0 {
		return false, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.hold(pid)
}

// hold keeps a handle on pid, which must be ours or verified just now.
func (p *Process) hold(pid int) (bool, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("watching %s: %w", p.Name, err)
	}
	if p.pidfd != 0 {
		unix.Close(p.pidfd)
	}
	p.pidfd = fd
	return true, nil
}

// Find returns the PID of the process with this command line, 0 when there is none. A
// child that the process has just forked has the same command line from clone(2) until
// execve(2), and may have the lower number; Find does not return it.
func (p *Process) Find() int {
	parents := map[int]int{} // of those that match
	for pid, words := range Commands() {
		if !p.matches(words) {
			continue
		}
		if ppid, err := Parent(pid); err == nil {
			parents[pid] = ppid
		}
	}
	for pid, ppid := range parents {
		if _, child := parents[ppid]; !child {
			return pid
		}
	}
	return 0
}

// matches compares a command line with the process's own.
func (p *Process) matches(words []string) bool {
	return filepath.Base(words[0]) == filepath.Base(p.Path) && slices.Equal(words[1:], p.Args)
}

// Start runs the process anew.
func (p *Process) Start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return ErrRetired
	}
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("opening the log of %s: %w", p.Name, err)
	}
	defer log.Close()
	cmd := exec.Command(p.Path, p.Args...)
	cmd.Env = p.Env
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting %s: %w", p.Name, err)
	}
	_, err = p.hold(cmd.Process.Pid)
	go cmd.Wait() // collects it, whenever it ends
	return err
}

// Wait returns nil when the process has ended, or when there is none.
func (p *Process) Wait(ctx context.Context) error {
	p.mu.Lock()
	if p.pidfd == 0 {
		p.mu.Unlock()
		return nil
	}
	// A handle of our own, so that a restart or another waiter does not disturb.
	fd, err := unix.FcntlInt(uintptr(p.pidfd), unix.F_DUPFD_CLOEXEC, 0)
	p.mu.Unlock()
	if err != nil {
		return fmt.Errorf("watching %s: %w", p.Name, err)
	}
	f := os.NewFile(uintptr(fd), p.Name)
	defer f.Close()
	conn, err := f.SyscallConn()
	if err != nil {
		return fmt.Errorf("watching %s: %w", p.Name, err)
	}
	stop := context.AfterFunc(ctx, func() { f.SetReadDeadline(time.Now()) })
	defer stop()
	// A pidfd becomes readable when its process ends: pidfd_open(2).
	err = conn.Read(func(fd uintptr) bool { return readable(int(fd)) })
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

func readable(fd int) bool {
	n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	return n > 0
}

// Alive says whether the process runs.
func (p *Process) Alive() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pidfd != 0 && !readable(p.pidfd)
}

// Signal sends sig to the process if it runs.
func (p *Process) Signal(sig syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pidfd != 0 {
		unix.PidfdSendSignal(p.pidfd, sig, nil, 0)
	}
}

// Halt ends the process, by force when grace or ctx is over.
func (p *Process) Halt(ctx context.Context, grace time.Duration) error {
	p.Signal(syscall.SIGTERM)
	soft, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	if p.Wait(soft) == nil {
		return nil
	}
	p.Signal(syscall.SIGKILL)
	hard, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := p.Wait(hard); err != nil {
		return fmt.Errorf("%s does not end: %w", p.Name, err)
	}
	return nil
}

// TrimLog keeps the log bounded. The process appends to an open file, so the log
// is copied and emptied in place.
func (p *Process) TrimLog() error {
	info, err := os.Stat(p.Log)
	if err != nil || info.Size() <= logLimit {
		return err
	}
	from, err := os.Open(p.Log)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.OpenFile(p.Log+".1", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, io.NewSectionReader(from, max(0, info.Size()-logLimit), logLimit))
	if cerr := to.Close(); err == nil {
		err = cerr
	}
	if terr := os.Truncate(p.Log, 0); err == nil {
		err = terr
	}
	return err
}

// LastLogLine returns the end of the log, for an error.
func (p *Process) LastLogLine() string {
	f, err := os.Open(p.Log)
	if err != nil {
		return ""
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	b, _ := io.ReadAll(io.NewSectionReader(f, max(0, info.Size()-600), 600))
	lines := bytes.Split(bytes.TrimSpace(b), []byte{'\n'})
	return string(lines[len(lines)-1])
}

// Retire keeps the process from being started again.
func (p *Process) Retire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
}
