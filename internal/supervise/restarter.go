// Package supervise runs one jailed process, restarts it when it ends, and keeps the
// connection to it.
//
// A [Restarter] starts a process in a jail (package jail); its owner and the process
// call each other over one socket (package ipc). It guarantees:
//
//   - there is one process at a time. The next one starts when the one before has
//     been waited for, its connection has ended, none of its calls is being answered,
//     its output has been read, and the owner has cleaned up after it;
//   - the wait before a restart is 100 ms, doubles with each further end or failed
//     start, and is at most 30 s. After a process that served for a second or more it
//     is at most a tenth of that time, and it starts again at 100 ms after one that
//     served for a minute;
//   - a process that does not take what it is told is killed, and so is one that runs
//     for five seconds after its connection has ended;
//   - its standard error is passed on in lines, within [OutputLimit];
//   - no process is started or stopped while a caller has [Restarter.Hold], and none
//     is started after [Restarter.Stop].
package supervise

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"sallyport/internal/ipc"
	"sallyport/internal/jail"
	"sallyport/internal/terminal"
)

// Waits between the end of a process and the start of the next: twice the last
// one, unless that process had served for some time.
const (
	shortestWait = 100 * time.Millisecond
	longestWait  = 30 * time.Second
	wellAfter    = time.Minute
	servedAfter  = time.Second // what serves for less is not worth a shorter wait
	servedShare  = 10          // a wait is one part of so many of what was served
)

// Options of a Restarter. All are required but Init, OnRestart and Launch. Spec, Init,
// Serve and Cleanup never run at the same time.
type Options struct {
	// Name is the process's name in the log.
	Name   string
	Logger *slog.Logger
	// Output takes the process's standard error, a line at a time.
	Output func(line []byte)
	Limit  OutputLimit

	// Spec returns how the next process is started, except Stderr. Files are its
	// descriptors from 4 on (3 is its end of the connection); they are closed here, also
	// with an error.
	Spec func() (jail.Spec, error)
	// Peer returns the owner's side of the connection.
	Peer func(p *Process) ipc.Options
	// Init gives a process everything that it works with.
	Init func(ctx context.Context, p *Process) error
	// Serve has a process serve. The output that [Restarter.Notify] tells from the start of this call
	// on, the process is told afterwards.
	Serve func(ctx context.Context, p *Process) error
	// Cleanup runs when a process has ended, or with nil when none was started after Spec.
	// last reports that there will be no other.
	Cleanup func(p *Process, last bool) error

	// OnExit is called when a process has ended, with the wait before the next start;
	// OnRestart when the next one serves.
	OnExit    func(ctx context.Context, cause error, in time.Duration)
	OnRestart func(ctx context.Context)

	// Launch starts a process. Default: [jail.Start].
	Launch func(jail.Spec) (Child, error)
}

// Status is the state of the process.
type Status struct {
	PID      int       `json:"pid"` // 0: there is none
	Since    time.Time `json:"since,omitzero"`
	Restarts int       `json:"restarts"`
	Failure  string    `json:"failure,omitempty"` // how the last one ended
	UID      int       `json:"uid"`
	OwnRoot  bool      `json:"own_root"`
	Landlock int       `json:"landlock"` // version; 0: the kernel has none
}

// Restarter runs a process and restarts it. It is safe for concurrent use.
type Restarter struct {
	o     Options
	wait  time.Duration // Watch's own
	now   func() time.Time
	after func(time.Duration) <-chan time.Time

	stopping atomic.Bool // there is to be no other

	lifecycle sync.Mutex // held while a process is started or stopped
	notifying sync.Mutex // held while one is told something; taken after lifecycle

	mu      sync.Mutex // guards what follows; taken last
	current *Process   // the one that serves, or did last
	status  Status
}

// New returns a Restarter. Call Start next.
func New(o Options) *Restarter {
	if o.Launch == nil {
		o.Launch = func(s jail.Spec) (Child, error) { return jail.Start(s) }
	}
	return &Restarter{o: o, now: time.Now, after: time.After}
}

// Hold lets no process start or stop until release is called.
func (k *Restarter) Hold() (release func()) {
	k.lifecycle.Lock()
	return k.lifecycle.Unlock
}

// errStopped is the error of a start after Stop.
var errStopped = errors.New("it has been stopped for good")

// Start starts a process.
func (k *Restarter) Start(ctx context.Context) error {
	defer k.Hold()()
	if k.stopping.Load() {
		return errStopped
	}
	spec, err := k.o.Spec()
	if err != nil {
		closeAll(spec.Files)
		return err
	}
	p, err := k.launch(spec, k.o.Peer)
	if err != nil {
		return errors.Join(err, k.o.Cleanup(nil, false))
	}
	if err := k.init(ctx, p); err != nil {
		_ = p.Peer.Close()
		if how := p.end(); errors.Is(err, ipc.ErrClosed) {
			err = how // says more
		}
		close(p.gone)
		return errors.Join(err, k.o.Cleanup(p, false))
	}
	go k.await(p)
	return nil
}

// init has a process serve and makes it the current one.
func (k *Restarter) init(ctx context.Context, p *Process) error {
	if k.o.Init != nil {
		if err := k.o.Init(ctx, p); err != nil {
			return err
		}
	}
	k.notifying.Lock()
	defer k.notifying.Unlock()
	if err := k.o.Serve(ctx, p); err != nil {
		return err
	}
	p.since = k.now()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.current != nil {
		k.status.Restarts++
	}
	k.current = p
	k.status.PID, k.status.Since = p.PID(), p.since
	k.status.UID, k.status.OwnRoot, k.status.Landlock = p.State.UID, p.State.Root, p.State.Landlock
	return nil
}

// await waits for the current process's end.
func (k *Restarter) await(p *Process) {
	cause := p.end()
	p.served = k.now().Sub(p.since)
	cause = errors.Join(cause, k.o.Cleanup(p, k.stopping.Load()))
	k.mu.Lock()
	defer k.mu.Unlock()
	if p.violation != nil {
		cause = fmt.Errorf("ended since it did not do as told: %w (%w)", p.violation, cause)
	}
	p.cause, k.status.PID = cause, 0
	close(p.gone)
}

// Watch restarts the process whenever it ends, until ctx is done or Stop is called. Call
// Start first.
func (k *Restarter) Watch(ctx context.Context) error {
	for {
		p := k.last()
		select {
		case <-ctx.Done():
			return nil
		case <-p.gone:
		}
		switch {
		case p.served > wellAfter:
			k.wait = 0
		case p.served >= servedAfter:
			k.wait = min(k.wait, p.served/servedShare/2) // it is doubled
		}
		for cause := p.cause; cause != nil; cause = k.Start(ctx) {
			if k.stopping.Load() || ctx.Err() != nil {
				return nil // nobody wants another
			}
			k.wait = min(max(2*k.wait, shortestWait), longestWait)
			k.mu.Lock()
			k.status.Failure = terminal.Escape(cause.Error())
			k.mu.Unlock()
			k.o.OnExit(ctx, cause, k.wait)
			select {
			case <-ctx.Done():
				return nil
			case <-k.after(k.wait):
			}
		}
		if k.o.OnRestart != nil {
			k.o.OnRestart(ctx)
		}
	}
}

// Process returns the process that serves, or nil. It waits while one is being told
// something, or begins to serve.
func (k *Restarter) Process() *Process {
	k.notifying.Lock()
	defer k.notifying.Unlock()
	if p := k.last(); p != nil && !p.isGone() {
		return p
	}
	return nil
}

func (k *Restarter) last() *Process {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.current
}

// Notify calls a method of the process, if there is one; the next process learns
// everything from Serve. A process that does not answer within the time is ended.
func (k *Restarter) Notify(within time.Duration, m ipc.Method, what any) {
	k.notifying.Lock()
	defer k.notifying.Unlock()
	if p := k.last(); p != nil {
		p.Notify(within, m, what)
	}
}

// Status returns the state. It waits as Process does.
func (k *Restarter) Status() Status {
	k.notifying.Lock()
	defer k.notifying.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.status
}

// Stopping reports whether Stop has been called.
func (k *Restarter) Stopping() bool { return k.stopping.Load() }

// Stop ends the process for good, after drain has told it to end. Without a process drain
// is not called.
func (k *Restarter) Stop(drain func(*Process) error) error {
	defer k.Hold()()
	k.stopping.Store(true)
	p := k.Process()
	if p == nil {
		return nil
	}
	err := drain(p)
	_ = p.Peer.Close()
	<-p.gone // it is killed where it does not end by itself
	return err
}

// RunOnce starts another process beside this one while f runs. It returns f's error, or
// how the process ended where f's call was cut off by that.
func (k *Restarter) RunOnce(s jail.Spec, o ipc.Options, f func(*Process) error) error {
	p, err := k.launch(s, func(*Process) ipc.Options { return o })
	if err != nil {
		return err
	}
	err = f(p)
	p.Kill()
	if how := p.end(); errors.Is(err, ipc.ErrClosed) {
		err = how // says more
	}
	return err
}
