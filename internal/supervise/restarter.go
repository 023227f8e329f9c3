// Package supervise keeps one confined process going, and the link to it.
//
// A [Keeper] starts a process in a cell (package cell) with what its owner has for
// it, and the two call each other over a link (package link). It guarantees:
//
//   - there is one process at a time. The next is started when the one before has
//     been waited for, its link has ended, no call of its is being answered, all
//     that it said has been heard, and the owner has seen to what it left behind;
//   - before the next start it waits: 100 ms, twice as long after each further end or
//     start that failed, at most 30 s; after a process that served for a second or more
//     at most a tenth of that time, and anew after one that served for a minute. One that
//     crashes whenever it is up is no load;
//   - a process that does not do as it is told is killed, and so is one that goes
//     on for five seconds after its link has ended;
//   - what it says on its standard error is passed on in lines, of which it has no
//     more than its [Voice] allows, and its end waits for the last of them;
//   - no process is started or stopped while somebody holds its life
//     ([Keeper.Hold]), and none is started after [Keeper.Stop].
//
// What the process is for is its owner's affair, and what it may do the cell's.
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

// Options of a Keeper: what it keeps, and its owner's part in that. All are needed
// but Start, Back and Launch. Ready, Start, Serve and Ended follow each other: none
// is called while another goes on.
type Options struct {
	// Name is what the log calls the process.
	Name   string
	Logger *slog.Logger
	// Output takes what the process says on its standard error, a line at a time.
	Output func(line []byte)
	Limit  OutputLimit

	// Spec says what the next process is started with, but for Stderr. It has the
	// Files from descriptor 4 on, 3 is its end of the link; here they are closed,
	// also with an error.
	Spec func() (jail.Spec, error)
	// Peer is the owner's side of the link.
	Peer func(p *Process) ipc.Options
	// Init hands a process what it works with.
	Init func(ctx context.Context, p *Process) error
	// Serve has it serve. Whatever [Keeper.Tell] tells from when it is called on,
	// this process is told afterwards.
	Serve func(ctx context.Context, p *Process) error
	// Cleanup sees to what is left when a process has ended, or (nil) none has come of
	// what was ready. last says that there will be no other.
	Cleanup func(p *Process, last bool) error

	// OnExit is told of an end, and after how long the next process is started; Back
	// that it serves.
	OnExit    func(ctx context.Context, cause error, in time.Duration)
	OnRestart func(ctx context.Context)

	// Launch starts a process. Default: [jail.Start].
	Launch func(jail.Spec) (Child, error)
}

// Status says how the process is.
type Status struct {
	PID      int       `json:"pid"` // 0: there is none
	Since    time.Time `json:"since,omitzero"`
	Restarts int       `json:"restarts"`
	Failure  string    `json:"failure,omitempty"` // how the last one ended
	UID      int       `json:"uid"`
	OwnRoot  bool      `json:"own_root"`
	Landlock int       `json:"landlock"` // version; 0: the kernel has none
}

// Restarter keeps a process going. It is safe for concurrent use.
type Restarter struct {
	o     Options
	wait  time.Duration // Watch's own
	now   func() time.Time
	after func(time.Duration) <-chan time.Time

	stopping atomic.Bool // there is to be no other

	lifecycle sync.Mutex // held while a process is started or stopped
	notifying sync.Mutex // held while one is told something; taken after life

	mu      sync.Mutex // guards what follows; taken last
	current *Process   // the one that serves, or did last
	status  Status
}

// New returns a Keeper that Start starts.
func New(o Options) *Restarter {
	if o.Launch == nil {
		o.Launch = func(s jail.Spec) (Child, error) { return jail.Start(s) }
	}
	return &Restarter{o: o, now: time.Now, after: time.After}
}

// Hold has no process start or stop until the function that it returns is called.
func (k *Restarter) Hold() (release func()) {
	k.lifecycle.Lock()
	return k.lifecycle.Unlock
}

// errStopped says that nobody wants another process.
var errStopped = errors.New("it has been stopped for good")

// Init begins a process.
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

// init has a process serve, from when on it is the current one.
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

// Watch starts a new process whenever one dies, until ctx is done or after Stop. It
// follows a Start.
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

// Process is the one that serves, or nil. While one is told something, or begins
// to serve, it waits.
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

// notify tells the process, if there is one; the next one is told by Serve. One that
// does not take it within a time is ended.
func (k *Restarter) Notify(within time.Duration, m ipc.Method, what any) {
	k.notifying.Lock()
	defer k.notifying.Unlock()
	if p := k.last(); p != nil {
		p.Notify(within, m, what)
	}
}

// Status says how the process is. It waits as Process does: who has been served by
// one finds it here.
func (k *Restarter) Status() Status {
	k.notifying.Lock()
	defer k.notifying.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.status
}

// Stopping tells whether Stop has been called.
func (k *Restarter) Stopping() bool { return k.stopping.Load() }

// Stop has the process told to end by drain, if there is one, and ends it. There
// is no other after it.
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

// RunOnce starts a process beside the one that is kept, for as long as f takes. Its
// error is f's, or how the process ended where f had no answer for that.
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
