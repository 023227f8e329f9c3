package ssh

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/time/rate"

	"sallyport/internal/cell"
	"sallyport/internal/link"
	"sallyport/internal/terminal"
)

// UID is the user and the group that the process runs as, which nobody else does:
// see [cell.Nobody].
const UID = cell.Nobody + 1

// Waits between a process's end and the next one's start.
const (
	shortestWait = 100 * time.Millisecond
	longestWait  = 30 * time.Second
)

// Status says how the process is.
type Status struct {
	Listen      string `json:"listen"`
	Fingerprint string `json:"fingerprint"` // of the host key
	HostKey     string `json:"host_key"`    // as known_hosts has it after the name
	PID         int    `json:"pid"`         // 0: there is none
	UID         int    `json:"uid"`
	Landlock    int    `json:"landlock"` // version; 0: the kernel has none
	Restarts    int    `json:"restarts"`
	Failure     string `json:"failure,omitempty"` // how the last one ended
	Connections int    `json:"connections"`
}

// process is one that speaks SSH.
type process struct {
	cell   *cell.Process
	peer   *link.Peer
	ctx    context.Context // until it has ended
	cancel context.CancelFunc
	gone   chan struct{} // closed then
	cause  error         // why it has
}

// tell tells a process; one that does not take it is ended.
func (p *process) tell(m link.Method, what any) {
	ctx, cancel := context.WithTimeout(context.Background(), answerWithin)
	defer cancel()
	if err := p.peer.Call(ctx, m, what, &link.None{}); err != nil && p.cell != nil {
		p.cell.Kill()
	}
}

// Start begins the first process.
func (d *Door) Start(ctx context.Context) error {
	d.life.Lock()
	defer d.life.Unlock()
	return d.spawn(ctx)
}

// Watch starts a new process whenever one dies, and judges anew what goes on, until
// ctx is done.
func (d *Door) Watch(ctx context.Context) error {
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	for {
		d.mu.Lock()
		p := d.running
		d.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			d.check()
		case <-p.gone:
			if d.revive(ctx, p.cause) != nil {
				return nil // nobody wants another
			}
		}
	}
}

var errDying = errors.New("the daemon is shutting down")

// revive starts processes until one is up.
func (d *Door) revive(ctx context.Context, cause error) error {
	wait := shortestWait
	for {
		d.o.Logger.Error("the process that speaks SSH has ended", "error", cause, "in", wait)
		d.mu.Lock()
		d.status.Failure = terminal.Escape(cause.Error())
		d.mu.Unlock()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
		d.life.Lock()
		d.mu.Lock()
		dying := d.dying
		d.mu.Unlock()
		if dying {
			d.life.Unlock()
			return errDying
		}
		cause = d.spawn(ctx)
		d.life.Unlock()
		if cause == nil {
			d.mu.Lock()
			d.status.Restarts++
			d.mu.Unlock()
			return nil
		}
		wait = min(2*wait, longestWait)
	}
}

// spawn starts a process and gives it the listener, which nobody else keeps: a
// later process gets one of its own, whatever this one does to it. d.life is held.
func (d *Door) spawn(ctx context.Context) (err error) {
	l := d.listener
	d.listener = nil
	if l == nil {
		if l, err = net.Listen("tcp", d.o.Listen); err != nil {
			return err
		}
	}
	defer l.Close()
	listener, err := l.(*net.TCPListener).File()
	if err != nil {
		return err
	}
	defer listener.Close()
	here, there, err := link.Pair()
	if err != nil {
		return err
	}
	defer there.Close()
	r, stderr, err := os.Pipe()
	if err != nil {
		return errors.Join(err, here.Close())
	}
	defer stderr.Close()
	p := &process{gone: make(chan struct{})}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.cell, err = cell.Start(cell.Spec{
		Args: d.o.Args, Env: []string{"GODEBUG=containermaxprocs=0,updatemaxprocs=0", "GOMEMLIMIT=256MiB"},
		Files: []*os.File{there, listener}, Stderr: stderr, Root: d.o.View.Dir(), IDs: cell.IDs{UID: UID, GID: UID},
		OpenFiles: openFiles, FileSize: 1, Offline: true,
	})
	if err != nil {
		p.cancel()
		return errors.Join(err, here.Close(), r.Close())
	}
	heard := make(chan struct{})
	go func() { defer close(heard); d.hear(r) }()
	p.peer = link.New(here, link.Options{Methods: d.methods(p), Errors: known, MaxFrame: maxFrame, MaxIn: maxAsk, MaxCalls: maxCalls})
	linked := make(chan error, 1)
	go func() { linked <- p.peer.Serve() }()
	go d.mind(p, linked, heard)

	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	var is served
	if err := p.peer.Call(ctx, callServe, serveCall{HostKey: d.o.HostKey.public.Marshal(), Idle: d.o.Idle}, &is); err != nil {
		p.cell.Kill()
		<-p.gone
		return errors.Join(err, p.cause)
	}
	d.mu.Lock()
	d.running = p
	d.status.PID, d.status.UID, d.status.Landlock = p.cell.PID, is.UID, is.Landlock
	d.mu.Unlock()
	d.o.Logger.Info("SSH is up", "listen", d.o.Listen, "pid", p.cell.PID, "uid", is.UID, "own_root", is.Root, "landlock", is.Landlock)
	return nil
}

// openFiles bounds the process's descriptors.
const openFiles = 16 << 10

// endWithin is how long a process may go on after its link has ended.
const endWithin = 5 * time.Second

// mind waits for a process's end, and ends what went on by it.
func (d *Door) mind(p *process, linked <-chan error, heard <-chan struct{}) {
	select {
	case <-p.cell.Done():
	case err := <-linked:
		p.cause = err
		select {
		case <-p.cell.Done():
		case <-time.After(endWithin):
			p.cell.Kill()
		}
	}
	if err := p.cell.Wait(); err != nil || p.cause == nil {
		p.cause = errors.Join(p.cause, err)
	}
	if p.cause == nil {
		p.cause = errors.New("it ended by itself")
	}
	p.cancel()
	_ = p.peer.Close()
	<-heard
	d.mu.Lock()
	var left []*connection
	for _, n := range d.connections {
		if n.owner == p {
			left = append(left, n)
		}
	}
	if d.running == p {
		d.status.PID = 0
	}
	d.mu.Unlock()
	for _, n := range left {
		d.close(n, errors.New("the process that speaks SSH has ended"))
	}
	close(p.gone)
}

// methods are what a process may ask.
func (d *Door) methods(p *process) map[link.Method]link.Handler {
	return map[link.Method]link.Handler{
		callSign: link.Handle(func(_ context.Context, c signCall) (signed, error) {
			s, err := d.o.HostKey.sign(c.Digest)
			return signed{s}, err
		}),
		callAdmit: link.Handle(func(ctx context.Context, c admitCall) (admitted, error) { return d.admit(ctx, p, c) }),
		callLeave: link.Handle(func(_ context.Context, c leaveCall) (link.None, error) { return link.None{}, d.leave(p, c) }),
		callOpen:  link.HandleFile(func(ctx context.Context, c openCall) (opened, *os.File, error) { return d.open(ctx, p, c) }),
		callSteer: link.Handle(func(_ context.Context, c steerCall) (link.None, error) { return link.None{}, d.steer(p, c) }),
		callFile:  link.Handle(func(ctx context.Context, c fileCall) (fileReply, error) { return d.file(ctx, p, c) }),
		callStream: link.HandleFile(func(ctx context.Context, c streamCall) (link.None, *os.File, error) {
			return d.stream(ctx, p, c)
		}),
	}
}

// Bounds of what a process may say on its standard error.
const (
	maxSaid  = 4 << 10 // bytes of a line
	saidRate = 20      // lines a second in the long run
	saidMost = 1000    // and at once: a crash's stacks
)

// hear passes on what a process says.
func (d *Door) hear(r *os.File) {
	defer r.Close()
	limit, dropped := rate.NewLimiter(saidRate, saidMost), 0
	lines := bufio.NewReaderSize(r, maxSaid)
	for {
		line, _, err := lines.ReadLine() // of one that is too long, in parts
		if err != nil {
			break
		}
		if !limit.Allow() {
			dropped++
			continue
		}
		d.o.Logger.Warn("the process that speaks SSH", "said", terminal.Escape(string(line)))
	}
	if dropped > 0 {
		d.o.Logger.Warn("the process that speaks SSH said too much", "lines", dropped)
	}
	_, _ = io.Copy(io.Discard, r)
}

// Status says how the process is.
func (d *Door) Status() *Status {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.status
	s.Listen, s.Fingerprint, s.HostKey, s.Connections = d.o.Listen, d.o.HostKey.Fingerprint(), d.o.HostKey.Known(), len(d.connections)
	return &s
}

// Stop takes no more connections, lets what goes on end within a time, and ends the
// process. There is no other after it.
func (d *Door) Stop(within time.Duration) error {
	d.life.Lock()
	defer d.life.Unlock()
	d.mu.Lock()
	p, was := d.running, d.dying
	d.dying = true
	d.mu.Unlock()
	if d.listener != nil {
		_ = d.listener.Close()
		d.listener = nil
	}
	if p == nil || was {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), within+answerWithin)
	defer cancel()
	err := p.peer.Call(ctx, callStop, stopCall{within}, &link.None{})
	if errors.Is(err, link.ErrClosed) {
		err = nil
	}
	_ = p.peer.Close()
	<-p.gone // it is killed where it does not end by itself
	ended := make(chan struct{})
	go func() { d.work.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-ctx.Done(): // something else holds a sandbox
	}
	if err != nil {
		return fmt.Errorf("ending SSH: %w", err)
	}
	return nil
}
