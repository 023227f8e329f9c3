package supervise

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"time"

	"golang.org/x/time/rate"

	"sallyport/internal/ipc"
	"sallyport/internal/jail"
)

// endWithin is how long a process may run after its connection has ended.
const endWithin = 5 * time.Second

// Child is a process as a [jail.Process] is.
type Child interface {
	PID() int
	Done() <-chan struct{}
	Wait() error
	Pause()
	Resume()
	Kill()
}

// Process is one process of a Restarter, and the connection to it.
type Process struct {
	Child
	Peer *ipc.Peer
	// State is the process's own report of its confinement. Init or Serve sets it.
	State jail.State

	keeper    *Restarter
	ctx       context.Context
	cancel    context.CancelFunc
	linked    chan error    // how the link ended
	heard     chan struct{} // closed when it says nothing more
	since     time.Time     // when it began to serve
	served    time.Duration // since then, at its end
	violation error         // why it was ended, if it was; guarded by keeper.mu
	cause     error         // why it has ended
	gone      chan struct{} // closed when it has, and what it left has been seen to
}

// launch starts a process. The files of s are closed.
func (k *Restarter) launch(s jail.Spec, o func(*Process) ipc.Options) (*Process, error) {
	here, there, err := ipc.Pair()
	if err != nil {
		closeAll(s.Files)
		return nil, err
	}
	s.Files = append([]*os.File{there}, s.Files...)
	defer closeAll(s.Files)
	r, stderr, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, here.Close())
	}
	defer stderr.Close()
	s.Stderr = stderr
	p := &Process{keeper: k, linked: make(chan error, 1), heard: make(chan struct{}), gone: make(chan struct{})}
	if p.Child, err = k.o.Launch(s); err != nil {
		return nil, errors.Join(err, here.Close(), r.Close())
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	go p.readOutput(r)
	p.Peer = ipc.New(here, o(p))
	go func() { p.linked <- p.Peer.Serve() }()
	return p, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

// end waits for the process's end, which follows that of its connection, and returns its
// cause.
func (p *Process) end() error {
	select {
	case <-p.Done():
	case <-p.Peer.Done():
		select {
		case <-p.Done():
		case <-time.After(endWithin):
			p.Kill()
		}
	}
	err := p.Wait()
	p.cancel()
	_ = p.Peer.Close()
	lerr := <-p.linked
	<-p.heard
	switch {
	case errors.Is(lerr, ipc.ErrProtocol):
		return errors.Join(lerr, err)
	case err == nil:
		return errors.New("it ended by itself")
	}
	return err
}

func (p *Process) isGone() bool {
	select {
	case <-p.gone:
		return true
	default:
		return false
	}
}

// Context is done when the process has ended.
func (p *Process) Context() context.Context { return p.ctx }

// Notify calls a method of the process. A process that does not answer within the time is
// ended.
func (p *Process) Notify(within time.Duration, m ipc.Method, what any) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	if err := p.Peer.Call(ctx, m, what, &ipc.None{}); err != nil && !errors.Is(err, ipc.ErrClosed) {
		p.End(err)
	}
}

// End kills the process, which does not do as it is told, unless it has ended.
func (p *Process) End(why error) {
	k := p.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	if p.isGone() {
		return
	}
	k.o.Logger.Error(k.o.Name+" does not do as it is told and is ended", "error", why)
	p.violation = why
	p.Kill()
	_ = p.Peer.Close()
}

// OutputLimit bounds a process's standard error.
type OutputLimit struct {
	Line  int        // bytes of a line; of a longer one the rest is dropped
	Rate  rate.Limit // lines a second in the long run
	Burst int        // and at once: a crash's stacks
}

// readOutput passes the process's output on until its end.
func (p *Process) readOutput(r io.ReadCloser) {
	defer close(p.heard)
	defer r.Close()
	o := &p.keeper.o
	limit, dropped := rate.NewLimiter(o.Limit.Rate, o.Limit.Burst), 0
	lines := bufio.NewReaderSize(r, o.Limit.Line)
	for {
		line, cut, err := lines.ReadLine()
		line = bytes.Clone(line)
		for cut && err == nil {
			_, cut, err = lines.ReadLine() // the rest of a line that is too long
		}
		if err != nil {
			break
		}
		if !limit.Allow() {
			dropped++
			continue
		}
		o.Output(line)
	}
	if dropped > 0 {
		o.Logger.Warn(o.Name+" said too much", "lines", dropped)
	}
}
