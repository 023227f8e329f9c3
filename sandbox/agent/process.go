package agent

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"sallyport/sandbox/agent/wire"
)

// Exit codes of a shell for what it cannot run (POSIX.1-2017, Shell Command
// Language, 2.8.2).
const (
	codeNotExecutable = 126
	codeNotFound      = 127
)

// startError is why a command never was a process.
type startError struct {
	code int
	why  string
}

func (s *startError) Error() string { return s.why }

// inherited is the sandbox's environment: what the agent was started with.
var inherited = sync.OnceValue(func() map[string]string {
	env := map[string]string{}
	for _, kv := range os.Environ() {
		k, v, _ := strings.Cut(kv, "=")
		env[k] = v
	}
	return env
})

// nothing is /dev/null, for commands without input.
var nothing = sync.OnceValues(func() (*os.File, error) { return os.Open(os.DevNull) })

// launch starts the command's process and fills in its ends of the streams.
func (c *command) launch(children *children, spare spare, user string) (<-chan syscall.WaitStatus, error) {
	s := c.spec
	s.User = cmp.Or(s.User, user)
	env := maps.Clone(inherited())
	attr := &syscall.ProcAttr{Dir: s.Workdir, Sys: &syscall.SysProcAttr{Setsid: true}}
	if s.User != "" {
		a, err := lookup(s.User)
		if err != nil {
			return nil, &startError{codeNotExecutable, err.Error()}
		}
		attr.Sys.Credential = &syscall.Credential{Uid: a.uid, Gid: a.gid, Groups: a.groups}
		// The engine gives the agent root's home where the image says nothing.
		if home := env["HOME"]; home == "" || home == "/root" || home == "/" {
			env["HOME"] = a.home
		}
	}
	if s.TTY != nil && env["TERM"] == "" {
		env["TERM"] = "xterm"
	}
	maps.Copy(env, s.Env)
	env[commandEnv] = s.ID
	for _, k := range slices.Sorted(maps.Keys(env)) {
		attr.Env = append(attr.Env, k+"="+env[k])
	}
	if s.Workdir != "" {
		if i, err := os.Stat(s.Workdir); err != nil || !i.IsDir() {
			return nil, &startError{codeNotExecutable, fmt.Sprintf("no folder %s in the sandbox", s.Workdir)}
		}
	}
	path, err := find(s.Args[0], env["PATH"], s.Workdir)
	if err != nil {
		return nil, err
	}
	mine, theirs, err := c.plug(attr, spare)
	defer func() {
		for _, fd := range theirs {
			_ = syscall.Close(fd)
		}
	}()
	if err != nil {
		shut(mine)
		return nil, &startError{codeNotExecutable, err.Error()}
	}
	pid, ended, err := children.start(path, s.Args, attr)
	if err != nil {
		shut(mine)
		c.stdin = nil
		return nil, unstarted(err)
	}
	c.pid = pid
	c.files = mine[:len(c.out)]
	return ended, nil
}

func shut(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

// plug makes the command's streams: our ends, output first, and the file
// descriptors that are the child's alone.
func (c *command) plug(attr *syscall.ProcAttr, spare spare) (mine []*os.File, theirs []int, err error) {
	if c.spec.TTY != nil {
		master, slave, err := terminal(*c.spec.TTY, attr.Sys.Credential)
		if err != nil {
			return nil, nil, fmt.Errorf("making a terminal: %w", err)
		}
		attr.Files = []uintptr{uintptr(slave), uintptr(slave), uintptr(slave)}
		attr.Sys.Setctty = true // of its descriptor 0
		c.stdin, c.tty = master, master
		return []*os.File{master}, []int{slave}, nil
	}
	out, err := spare.take()
	for _, p := range out {
		mine, theirs = append(mine, p.mine), append(theirs, p.theirs)
	}
	if err != nil {
		return mine, theirs, err
	}
	var stdin int
	if c.spec.Stdin {
		p, err := newPipe(1)
		if err != nil {
			return mine, theirs, err
		}
		mine, theirs = append(mine, p.mine), append(theirs, p.theirs)
		c.stdin, stdin = p.mine, p.theirs
	} else {
		f, err := nothing()
		if err != nil {
			return mine, theirs, err
		}
		stdin = int(f.Fd())
	}
	attr.Files = []uintptr{uintptr(stdin), uintptr(theirs[0]), uintptr(theirs[1])}
	return mine, theirs, nil
}

// pipe is one between us and a command.
type pipe struct {
	mine   *os.File // which the runtime's poller has taken
	theirs int
}

// newPipe makes a pipe of which end (0: to read, 1: to write) is ours.
func newPipe(end int) (pipe, error) {
	var p [2]int
	if err := syscall.Pipe2(p[:], syscall.O_CLOEXEC); err != nil {
		return pipe{}, err
	}
	_ = syscall.SetNonblock(p[end], true) // so that the poller takes it
	return pipe{os.NewFile(uintptr(p[end]), "stream"), p[1-end]}, nil
}

// spare keeps the pipes of the next command's output. To make them is eight calls
// of the kernel's, which gVisor makes dear: a quarter of a millisecond between a
// request and its process.
type spare chan []pipe

func newSpare() spare { return make(spare, 1) }

// take returns the pipes of stdout and stderr; with an error, those that there are.
func (s spare) take() ([]pipe, error) {
	select {
	case p := <-s:
		return p, nil
	default:
		return makePipes()
	}
}

// refill is for when nobody waits.
func (s spare) refill() {
	if len(s) > 0 {
		return
	}
	p, err := makePipes()
	if err == nil {
		select {
		case s <- p:
			return
		default:
		}
	}
	for _, p := range p {
		_ = p.mine.Close()
		_ = syscall.Close(p.theirs)
	}
}

func makePipes() (made []pipe, err error) {
	for range 2 {
		p, err := newPipe(0)
		if err != nil {
			return made, err
		}
		made = append(made, p)
	}
	return made, nil
}

// terminal makes a pseudo-terminal, see pty(7), that belongs to the command's
// user.
func terminal(size wire.Size, who *syscall.Credential) (*os.File, int, error) {
	master, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, err
	}
	f := os.NewFile(uintptr(master), "terminal")
	n, err := unix.IoctlGetInt(master, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(master, unix.TIOCSWINSZ, &unix.Winsize{Row: size.Rows, Col: size.Cols})
	}
	slave := -1
	if err == nil {
		slave, err = unix.Open(fmt.Sprintf("/dev/pts/%d", n), unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	}
	if err == nil && who != nil {
		// Without it a program that opens its terminal by name is refused.
		_ = unix.Fchown(slave, int(who.Uid), -1)
	}
	if err != nil {
		_ = f.Close()
		return nil, 0, err
	}
	return f, slave, nil
}

// find looks a program up as execvp(3) does, in the command's own PATH and
// working directory. Whether its user may execute it, the kernel says.
func find(name, path, workdir string) (string, error) {
	if name == "" {
		return "", missing()
	}
	if strings.Contains(name, "/") {
		return name, nil
	}
	denied := false
	for _, dir := range filepath.SplitList(path) {
		p := filepath.Join(dir, name)
		if !filepath.IsAbs(p) {
			p = filepath.Join(workdir, "./"+p)
		}
		var st syscall.Stat_t
		if syscall.Stat(p, &st) != nil || st.Mode&syscall.S_IFMT != syscall.S_IFREG {
			continue
		}
		if st.Mode&0o111 != 0 {
			return p, nil
		}
		denied = true
	}
	if denied {
		return "", &startError{codeNotExecutable, "permission denied"}
	}
	return "", missing()
}

func missing() error { return &startError{codeNotFound, "no such program in the sandbox"} }

// unstarted says what a failed exec means.
func unstarted(err error) error {
	if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENOTDIR) {
		return missing()
	}
	return &startError{codeNotExecutable, err.Error()}
}

// pump moves one of the command's output streams into its ring until nobody
// holds its other end. When the process has ended, a read deadline tells it:
// what is in the pipe then is all of the process's own output; drained is
// called after it.
func pump(f *os.File, r *ring, drained func()) {
	defer func() { _ = f.Close(); drained() }()
	buf := make([]byte, 32<<10)
	for {
		n, err := f.Read(buf)
		r.write(buf[:n])
		switch {
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded):
			if !drain(f, r, buf) {
				return
			}
			drained()
			_ = f.SetReadDeadline(noDeadline)
		default:
			return // io.EOF, or EIO of a terminal that nobody has open
		}
	}
}

// drain reads what is there and says whether there can be more.
func drain(f *os.File, r *ring, buf []byte) bool {
	_ = f.SetReadDeadline(noDeadline)
	rc, err := f.SyscallConn()
	if err != nil {
		return false
	}
	for {
		var n int
		var failed error
		err := rc.Read(func(fd uintptr) bool {
			n, failed = syscall.Read(int(fd), buf)
			return true // also for EAGAIN: do not wait
		})
		switch {
		case err != nil:
			return false
		case errors.Is(failed, syscall.EINTR):
		case errors.Is(failed, syscall.EAGAIN):
			return true
		case failed != nil || n <= 0:
			return false
		default:
			r.write(buf[:n])
		}
	}
}

// feed writes input to the command.
func (c *command) feed(from io.Reader) error {
	c.mu.Lock()
	f := c.stdin
	c.mu.Unlock()
	if f == nil {
		return errNoInput
	}
	_, err := io.Copy(f, from)
	return err
}
