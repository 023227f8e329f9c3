package agent

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/sandbox/agent/wire"
)

const (
	// maxRunning bounds the commands that run, maxEnded those that are kept
	// after their end, and maxOutput what the latter's output may take in
	// bytes; the one that ended first is forgotten first.
	maxRunning = 512
	maxEnded   = 128
	maxOutput  = 128 << 20

	// codeTimeout is timeout(1)'s, and termGrace what a command then has
	// between SIGTERM and SIGKILL.
	codeTimeout = 124
	termGrace   = 2 * time.Second
)

var (
	errNoCommand = errors.New("no such command in this session of the sandbox")
	errTooMany   = fmt.Errorf("%d commands run in the sandbox: end some first", maxRunning)
	errNoInput   = errors.New("the command has no input, or it has ended")
	errNoTTY     = errors.New("the command has no terminal")
	noDeadline   time.Time
)

var idForm = regexp.MustCompile(`^[0-9A-Za-z-]{1,64}$`)

// command is one process that the host asked for, and what it left.
type command struct {
	spec    wire.Command
	started time.Time
	pid     int
	files   []*os.File // our ends of its output
	out     []*ring    // stdout, stderr; a terminal has the first only
	bell    bell

	ready chan struct{} // closed when it runs, or could not be started
	fail  error         // why it could not be; read after ready
	over  chan struct{} // closed when it has ended and its output is in the rings

	mu    sync.Mutex
	stdin *os.File
	tty   *os.File
	ended time.Time // zero while it runs
	end   wire.End
}

// commands is the table of them.
type commands struct {
	children *children
	spare    spare
	user     string

	attached atomic.Int64 // streams that are open

	mu    sync.Mutex
	byID  map[string]*command
	ended []*command // the first that ended first
}

func newCommands(children *children, user string) *commands {
	return &commands{children: children, spare: newSpare(), user: user, byID: map[string]*command{}}
}

// check refuses what cannot be a command, and fills in defaults.
func check(s *wire.Command) error {
	switch {
	case !idForm.MatchString(s.ID):
		return errors.New("not a command's identifier")
	case len(s.Args) == 0:
		return errors.New("no command")
	case s.Overflow != "" && s.Overflow != wire.Drop && s.Overflow != wire.Wait:
		return fmt.Errorf("overflow %q: use %s or %s", s.Overflow, wire.Drop, wire.Wait)
	case s.Keep < 0 || s.Keep > wire.MaxKeep:
		return fmt.Errorf("keep %d: use at most %d bytes", s.Keep, wire.MaxKeep)
	case s.Timeout < 0:
		return errors.New("a timeout below zero")
	}
	s.Keep = cmp.Or(s.Keep, wire.Keep)
	return nil
}

// start runs a command. One that is there already by that identifier is
// returned as it is.
func (t *commands) start(s wire.Command) (*command, error) {
	if err := check(&s); err != nil {
		return nil, err
	}
	c := &command{spec: s, started: time.Now(), ready: make(chan struct{}), over: make(chan struct{})}
	streams := 2
	if s.TTY != nil {
		streams = 1
	}
	for range streams {
		c.out = append(c.out, newRing(s.Keep, s.Overflow == wire.Wait, &c.bell))
	}
	t.mu.Lock()
	if have, ok := t.byID[s.ID]; ok {
		t.mu.Unlock()
		<-have.ready
		return have, have.fail
	}
	if len(t.byID)-len(t.ended) >= maxRunning {
		t.mu.Unlock()
		return nil, errTooMany
	}
	t.byID[s.ID] = c
	t.mu.Unlock()

	ended, err := c.launch(t.children, t.spare, t.user)
	if c.fail = err; err != nil {
		t.mu.Lock()
		delete(t.byID, s.ID)
		t.mu.Unlock()
		close(c.ready)
		return nil, err
	}
	close(c.ready)
	go t.watch(c, ended)
	return c, nil
}

// watch sees a command through.
func (t *commands) watch(c *command, ended <-chan syscall.WaitStatus) {
	var drained sync.WaitGroup
	for i, f := range c.files {
		drained.Add(1)
		var once sync.Once
		go pump(f, c.out[i], func() { once.Do(drained.Done) })
	}
	if d := time.Duration(c.spec.Timeout) * time.Millisecond; d > 0 {
		timer := time.AfterFunc(d, c.expire)
		defer timer.Stop()
	}
	c.settle(<-ended)
	t.mu.Lock()
	t.ended = append(t.ended, c)
	t.forget()
	t.mu.Unlock()
	for _, f := range c.files {
		_ = f.SetReadDeadline(time.Unix(1, 0)) // see pump
	}
	drained.Wait()
	close(c.over)
	c.bell.ring()
	t.spare.refill()
}

// settle notes a command's end.
func (c *command) settle(s syscall.WaitStatus) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = time.Now()
	c.end.Code = s.ExitStatus()
	if s.Signaled() {
		c.end.Code, c.end.Signal = 128+int(s.Signal()), strings.TrimPrefix(unix.SignalName(s.Signal()), "SIG")
	}
	if c.end.TimedOut {
		c.end.Code = codeTimeout
	}
	if c.tty == nil && c.stdin != nil {
		_ = c.stdin.Close()
	}
	c.stdin, c.tty = nil, nil // a terminal is its pump's to close
}

// expire ends a command that has run out of time.
func (c *command) expire() {
	c.mu.Lock()
	c.end.TimedOut = c.ended.IsZero()
	c.mu.Unlock()
	if c.signal(syscall.SIGTERM) != nil {
		return
	}
	select {
	case <-c.over:
	case <-time.After(termGrace):
	}
	killTree(c.spec.ID, c.pid)
}

// forget drops what ended first; the caller holds mu.
func (t *commands) forget() {
	var size int64
	for i := len(t.ended) - 1; i >= 0; i-- {
		for _, r := range t.ended[i].out {
			_, _, n := r.bounds()
			size += n
		}
		if len(t.ended)-i <= maxEnded && size <= maxOutput {
			continue
		}
		for _, c := range t.ended[:i+1] {
			delete(t.byID, c.spec.ID)
			for _, r := range c.out {
				r.detach() // what still writes to it goes on
			}
		}
		t.ended = slices.Clone(t.ended[i+1:])
		return
	}
}

// get returns a command that has been started.
func (t *commands) get(id string) (*command, error) {
	t.mu.Lock()
	c, ok := t.byID[id]
	t.mu.Unlock()
	if !ok {
		return nil, errNoCommand
	}
	<-c.ready
	if c.fail != nil {
		return nil, errNoCommand
	}
	return c, nil
}

// list returns all, the oldest first.
func (t *commands) list() []wire.Status {
	t.mu.Lock()
	all := slices.SortedFunc(maps.Values(t.byID), func(a, b *command) int { return a.started.Compare(b.started) })
	t.mu.Unlock()
	list := []wire.Status{}
	for _, c := range all {
		select {
		case <-c.ready:
			if c.fail == nil {
				list = append(list, c.status())
			}
		default:
		}
	}
	return list
}

func (c *command) status() wire.Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := wire.Status{
		ID: c.spec.ID, Args: c.spec.Args, User: c.spec.User, Workdir: c.spec.Workdir, TTY: c.spec.TTY != nil,
		Pid: c.pid, State: wire.Running, Started: c.started.UTC(),
	}
	if !c.ended.IsZero() {
		s.State, s.Ended, s.End = wire.Exited, c.ended.UTC(), c.end
	}
	for i, r := range []*wire.Range{&s.Stdout, &s.Stderr} {
		if i < len(c.out) {
			r.From, r.To, _ = c.out[i].bounds()
		}
	}
	return s
}

// settled says whether a command has ended and its output is in the rings.
func (c *command) settled() bool {
	select {
	case <-c.over:
		return true
	default:
		return false
	}
}

// signal sends to the command's own process group.
func (c *command) signal(s syscall.Signal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ended.IsZero() {
		return errEnded
	}
	return syscall.Kill(-c.pid, s)
}

var errEnded = errors.New("the command has ended")

// kill ends a command and all that it started.
func (c *command) kill() {
	killTree(c.spec.ID, c.pid)
	// A process that holds its output open now is none of its own.
	for _, r := range c.out {
		r.detach()
	}
}

// resize changes a terminal's size; the kernel signals SIGWINCH.
func (c *command) resize(s wire.Size) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tty == nil {
		return errNoTTY
	}
	rc, err := c.tty.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = rc.Control(func(fd uintptr) {
		failed = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: s.Rows, Col: s.Cols})
	})
	return cmp.Or(err, failed)
}

// endInput tells the command that no more input comes: a terminal by its
// end-of-file character, all else by closing.
func (c *command) endInput() {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.stdin == nil:
	case c.tty != nil:
		tty := c.tty
		go func() { _, _ = tty.Write([]byte{4}) }() // it may wait for a reader
	default:
		_ = c.stdin.Close()
		c.stdin = nil
	}
}

// signalNumber reads TERM, SIGTERM or 15.
func signalNumber(name string) (syscall.Signal, error) {
	n, err := number(name)
	if err == nil && n > 0 && n <= 64 {
		return syscall.Signal(n), nil
	}
	upper := strings.ToUpper(name)
	if !strings.HasPrefix(upper, "SIG") {
		upper = "SIG" + upper
	}
	if s := unix.SignalNum(upper); s != 0 {
		return s, nil
	}
	return 0, fmt.Errorf("no signal %q: use a name as in TERM, or a number", name)
}
