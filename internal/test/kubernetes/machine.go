package kubernetes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	keptLog = 4096             // bytes of a log that a failure shows
	ending  = 30 * time.Second // that processes may take to end when they are killed
)

// machine runs processes, all from one thread that may be in namespaces of its own.
type machine struct {
	name string
	disk string // the folder of what it writes
	// orphaned is what the kernel sends to a process when the thread ends. Where that thread is in
	// another PID namespace, Go takes it for dead.
	orphaned syscall.Signal

	mu      sync.Mutex
	thread  chan func() // nil: the machine is off
	waiting sync.WaitGroup
	daemons map[string]*daemon
}

type daemon struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
}

// on makes the thread, and has it enter where it is to be.
func (m *machine) on(enter func() error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.thread != nil {
		return fmt.Errorf("%s is on", m.name)
	}
	m.daemons = map[string]*daemon{}
	work, entered := make(chan func()), make(chan error)
	go func() {
		// Never unlocked: the thread ends with the goroutine.
		runtime.LockOSThread()
		err := enter()
		entered <- err
		if err != nil {
			return
		}
		for f := range work {
			f()
		}
	}()
	if err := <-entered; err != nil {
		return fmt.Errorf("switching %s on: %w", m.name, err)
	}
	m.thread = work
	return nil
}

// off ends the thread and waits until all that it started has ended.
func (m *machine) off() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.thread == nil {
		return nil
	}
	close(m.thread)
	m.thread = nil
	for _, d := range m.daemons {
		d.cmd.Process.Kill()
	}
	gone := make(chan struct{})
	go func() {
		m.waiting.Wait()
		close(gone)
	}()
	select {
	case <-gone:
		return nil
	case <-time.After(ending):
		return fmt.Errorf("the processes of %s do not end", m.name)
	}
}

// do runs f on the thread. A goroutine that f starts is elsewhere.
func (m *machine) do(f func() error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.thread == nil {
		return fmt.Errorf("%s is off", m.name)
	}
	result := make(chan error)
	m.thread <- func() { result <- f() }
	return <-result
}

// Listen listens on an address of the machine.
func (m *machine) Listen(network, address string) (l net.Listener, err error) {
	err = m.do(func() (err error) {
		l, err = net.Listen(network, address)
		return err
	})
	return l, err
}

func command(ctx context.Context, words []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Dir = "/"
	cmd.WaitDelay = time.Second // for what a child of its has kept of its output
	return cmd
}

// start starts a command on the machine. The channel is closed when it has ended.
func (m *machine) start(cmd *exec.Cmd) (chan struct{}, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: m.orphaned}
	m.waiting.Add(1)
	if err := m.do(cmd.Start); err != nil {
		m.waiting.Done()
		return nil, err
	}
	done := make(chan struct{})
	go func() {
		defer m.waiting.Done()
		cmd.Wait()
		close(done)
	}()
	return done, nil
}

// Exec runs a command on the machine and returns what it printed on stdout. Its error has the
// rest.
func (m *machine) Exec(ctx context.Context, words ...string) (string, error) {
	return m.exec(ctx, "", words)
}

func (m *machine) exec(ctx context.Context, stdin string, words []string) (string, error) {
	cmd := command(ctx, words)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	done, err := m.start(cmd)
	if err != nil {
		return "", err
	}
	<-done
	if !cmd.ProcessState.Success() {
		err = fmt.Errorf("%s: %q: %s: %s", m.name, words, cmd.ProcessState, strings.TrimSpace(errs.String()+out.String()))
	}
	return out.String(), errors.Join(err, ctx.Err())
}

// StartDaemon runs a command until KillDaemon, or until the machine is off. Its output goes to
// a log, whose end a failed test shows.
func (m *machine) StartDaemon(name string, words ...string) error {
	m.mu.Lock()
	before := m.daemons[name]
	m.mu.Unlock()
	if before != nil && !before.ended() {
		return fmt.Errorf("%s runs on %s", name, m.name)
	}
	if err := os.MkdirAll(filepath.Dir(m.Log(name)), 0o755); err != nil {
		return err
	}
	log, err := os.OpenFile(m.Log(name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := command(context.Background(), words)
	cmd.Stdout, cmd.Stderr = log, log
	done, err := m.start(cmd)
	if err != nil {
		return fmt.Errorf("%s on %s: %w", name, m.name, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.daemons[name] = &daemon{cmd, done}
	return nil
}

func (d *daemon) ended() bool {
	select {
	case <-d.done:
		return true
	default:
		return false
	}
}

// KillDaemon ends a daemon with SIGKILL.
func (m *machine) KillDaemon(name string) error {
	m.mu.Lock()
	d := m.daemons[name]
	m.mu.Unlock()
	if d == nil {
		return fmt.Errorf("no %s was started on %s", name, m.name)
	}
	if err := d.cmd.Process.Kill(); err != nil {
		return fmt.Errorf("%s on %s: %w", name, m.name, err)
	}
	<-d.done
	return nil
}

// ended is an error if a daemon has ended.
func (m *machine) ended() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, d := range m.daemons {
		if d.ended() {
			return fmt.Errorf("%s on %s has ended: %s: %s", name, m.name, d.cmd.ProcessState, tail(m.Log(name)))
		}
	}
	return nil
}

// Log is the file of a daemon's output.
func (m *machine) Log(name string) string { return filepath.Join(m.disk, "log", name+".log") }

func tail(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	if len(data) > keptLog {
		data = data[len(data)-keptLog:]
	}
	return string(data)
}

// showLogs adds the ends of all logs to a failed test.
func (m *machine) showLogs(t testing.TB) {
	logs, _ := filepath.Glob(m.Log("*"))
	for _, path := range logs {
		t.Logf("%s of %s:\n%s", filepath.Base(path), m.name, tail(path))
	}
}

// poll tries until f has no error, for as long as the context allows.
func poll(ctx context.Context, what string, f func() error) error {
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited in vain for %s: %w", what, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}
