package ssh

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"sallyport/internal/ipc"
	"sallyport/internal/jail"
	"sallyport/internal/periodic"
	"sallyport/internal/supervise"
	"sallyport/internal/terminal"
)

// UID is the user and the group that the process runs as, which nobody else does:
// see [jail.Nobody].
const UID = jail.Nobody + 1

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
type process = supervise.Process

// keeper is what looks after the process.
func (d *Server) keeper() *supervise.Restarter {
	return supervise.New(supervise.Options{
		Name: "the process that speaks SSH", Logger: d.o.Logger, Limit: supervise.OutputLimit{Line: 4 << 10, Rate: 20, Burst: 1000},
		Output: func(line []byte) {
			d.o.Logger.Warn("the process that speaks SSH", "said", terminal.Escape(string(line)))
		},
		Spec: d.ready, Serve: d.serve, Cleanup: d.ended,
		Peer: func(p *process) ipc.Options {
			return ipc.Options{Methods: d.methods(p), Errors: known, MaxFrame: maxFrame, MaxIn: maxAsk, MaxCalls: maxCalls}
		},
		OnExit: func(_ context.Context, cause error, in time.Duration) {
			d.o.Logger.Error("the process that speaks SSH has ended", "error", cause, "in", in)
		},
		Launch: d.o.launch,
	})
}

// Start begins the first process.
func (d *Server) Start(ctx context.Context) error { return d.supervisor.Start(ctx) }

// Watch starts a new process whenever one dies, and judges anew what goes on, until
// ctx is done.
func (d *Server) Watch(ctx context.Context) error {
	var checks sync.WaitGroup
	defer checks.Wait()
	checks.Go(func() {
		for periodic.Sleep(ctx, checkEvery) {
			d.check()
		}
	})
	return d.supervisor.Watch(ctx)
}

// ready gives a process the listener, which nobody else keeps: a later one gets one
// of its own, whatever this one does to it.
func (d *Server) ready() (s jail.Spec, err error) {
	l := d.listener
	d.listener = nil
	if l == nil {
		if l, err = net.Listen("tcp", d.o.Listen); err != nil {
			return s, err
		}
	}
	defer l.Close()
	listener, err := l.(*net.TCPListener).File()
	return jail.Spec{
		Args: d.o.Args, Env: []string{"GODEBUG=containermaxprocs=0,updatemaxprocs=0", "GOMEMLIMIT=512MiB"},
		Files: []*os.File{listener}, Root: d.o.View.Dir(), IDs: jail.IDs{UID: UID, GID: UID},
		OpenFiles: openFiles, FileSize: 1, Memory: memory, Spare: true, Offline: true,
	}, err
}

// memory is what the process may have, in bytes: more than backlog lets clients leave
// in it.
const memory = 1 << 30

// openFiles bounds the process's descriptors.
const openFiles = 16 << 10

func (d *Server) serve(ctx context.Context, p *process) error {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	err := p.Peer.Call(ctx, callServe, serveCall{HostKey: d.o.HostKey.public.Marshal(), Idle: d.o.Idle}, &p.State)
	if err == nil {
		d.o.Logger.Info("SSH is up", "listen", d.o.Listen, "pid", p.PID(), "uid", p.State.UID, "own_root", p.State.Root, "landlock", p.State.Landlock)
	}
	return err
}

// ended ends what went on by a process.
func (d *Server) ended(p *process, _ bool) error {
	d.mu.Lock()
	var left []*connection
	for _, n := range d.connections {
		if n.owner == p {
			left = append(left, n)
		}
	}
	d.mu.Unlock()
	for _, n := range left {
		d.close(n, errors.New("the process that speaks SSH has ended"))
	}
	return nil
}

// methods are what a process may ask.
func (d *Server) methods(p *process) map[ipc.Method]ipc.Handler {
	return map[ipc.Method]ipc.Handler{
		callSign:    ipc.Handle(func(_ context.Context, digest []byte) ([]byte, error) { return d.o.HostKey.sign(digest) }),
		callAdmit:   ipc.Handle(func(ctx context.Context, c admitCall) (uint64, error) { return d.admit(ctx, p, c) }),
		callLeave:   ipc.Handle(func(_ context.Context, c leaveCall) (_ ipc.None, _ error) { d.leave(p, c); return }),
		callCrowded: ipc.Handle(func(_ context.Context, source string) (_ ipc.None, _ error) { d.crowded(source); return }),
		callOpen:    ipc.HandleFile(func(ctx context.Context, c openCall) (uint64, *os.File, error) { return d.open(ctx, p, c) }),
		callLeftUse: ipc.Handle(func(_ context.Context, c leftUseCall) (_ ipc.None, _ error) { d.leftUse(p, c); return }),
	}
}

// Status says how the process is.
func (d *Server) Status() *Status {
	k := d.supervisor.Status()
	d.mu.Lock()
	defer d.mu.Unlock()
	return &Status{
		Listen: d.o.Listen, Fingerprint: d.o.HostKey.Fingerprint(), HostKey: d.o.HostKey.Known(), Connections: len(d.connections),
		PID: k.PID, UID: k.UID, Landlock: k.Landlock, Restarts: k.Restarts, Failure: k.Failure,
	}
}

// Stop takes no more connections, lets what goes on end within a time, and ends the
// process. There is no other after it.
func (d *Server) Stop(within time.Duration) (err error) {
	d.end.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), within+answerWithin)
		defer cancel()
		err = d.supervisor.Stop(func(p *process) error { return p.Peer.Call(ctx, callStop, within, &ipc.None{}) })
		if d.listener != nil { // there has been no process, and there will be none
			_ = d.listener.Close()
		}
		ended := make(chan struct{})
		go func() { d.work.Wait(); close(ended) }()
		select {
		case <-ended:
		case <-ctx.Done(): // something else holds a sandbox
		}
	})
	if err != nil && !errors.Is(err, ipc.ErrClosed) {
		return fmt.Errorf("ending SSH: %w", err)
	}
	return nil
}
