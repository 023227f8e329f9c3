package jail

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// Process is a program in its jail.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error // set when done is closed
}

// plan is what the new process does before it is the program; see Enter.
type plan struct {
	Root      string
	IDs       IDs
	Files     int
	OpenFiles uint64
	FileSize  uint64 // 0: any
	Memory    uint64 // 0: any
	Spare     bool
	Drop      bool // privileges: false when there are none to drop
}

// marker carries the plan. The program itself never has it.
const marker = "SALLYPORT_JAIL"

// namespaces are the jail's own; so is the network of an Offline one.
const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS

// Start starts the program of this process again, in a jail. The new process must call
// [Enter] before anything else, then [Confine].
func Start(s Spec) (*Process, error) {
	p := plan{Files: len(s.Files), OpenFiles: s.OpenFiles, FileSize: s.FileSize, Memory: s.Memory, Spare: s.Spare, Drop: os.Geteuid() == 0}
	p.OpenFiles = cmp.Or(p.OpenFiles, 1<<18)
	// A group of its own, so that the terminal's ^C is not for it. Not a session:
	// that is a group to the scheduler too (sched(7), autogroup), and a process
	// that answers others in turn lost a third of its requests on a busy machine.
	attr := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if p.Drop {
		if s.Root == "" || s.IDs.UID == 0 || s.IDs.GID == 0 {
			return nil, errors.New("starting a jail: root must name its user and its root directory")
		}
		p.Root, p.IDs = s.Root, s.IDs
		attr.Cloneflags = namespaces
		if s.Offline {
			attr.Cloneflags |= unix.CLONE_NEWNET
		}
	}
	text, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	// By /proc, so that it is the same program even after an upgrade in place.
	cmd := &exec.Cmd{
		Path: "/proc/self/exe", Args: s.Args, Env: append(slices.Clip(s.Env), marker+"="+string(text)), Dir: "/",
		ExtraFiles: s.Files, SysProcAttr: attr,
	}
	if s.Stderr != nil {
		cmd.Stderr = s.Stderr
	}
	process := &Process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The signal at the parent's death comes when the thread dies that
		// started the process (prctl(2), PR_SET_PDEATHSIG): this one stays.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			process.err = cmd.Wait()
			close(process.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting a jail: %w", err)
	}
	return process, nil
}

// PID is the process's number here; inside the jail it has another.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended and has been waited for.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait returns how it ended: nil for exit status 0, else an *exec.ExitError.
func (p *Process) Wait() error {
	<-p.done
	return p.err
}

// Pause stops all of its threads until Resume.
func (p *Process) Pause() { _ = p.cmd.Process.Signal(syscall.SIGSTOP) }

// Resume lets its threads go on.
func (p *Process) Resume() { _ = p.cmd.Process.Signal(syscall.SIGCONT) }

// Kill ends it at once.
func (p *Process) Kill() { _ = p.cmd.Process.Kill() } // it may have ended by itself
