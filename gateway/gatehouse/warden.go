package gatehouse

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"sallyport/audit"
	"sallyport/gateway"
	"sallyport/gateway/credential"
	"sallyport/gateway/mitm"
	"sallyport/gateway/resolver"
	"sallyport/internal/cell"
	"sallyport/internal/link"
	"sallyport/policy"
)

// Bounds of what passes between the two.
const (
	maxFrame = 4 << 20  // bytes; an event may have 1 MiB
	maxAsk   = 16 << 10 // bytes of a call of the process's: names, addresses, a key
	maxCalls = 256      // of the process's at a time

	startWithin  = 2 * time.Minute  // a policy of many thousand rules is compiled
	answerWithin = 10 * time.Second // everything else; who is slower is ended
)

// Backoff between the end of a process and the start of the next: twice the last
// one, unless that process had been well for some time.
const (
	shortestWait = 100 * time.Millisecond
	longestWait  = 30 * time.Second
	wellAfter    = time.Minute
)

// Bounds of how many segments of the log are made: a burst, and then one a second,
// or as many as so many bytes a second fill where segments are small.
const (
	segmentBurst = 16
	segmentBytes = 64 << 20
)

// Listeners are what the process takes connections from; each may be nil. The
// Warden does not close them.
type Listeners struct {
	Transparent, Explicit, DNSTCP *net.TCPListener
	Inbound                       *net.TCPListener // on a loopback address
	DNS                           *net.UDPConn
	// Mended, unless nil, is called after each process, when the sockets are as
	// they were: one that was replaced is not in the kernel's maps of sockets, and
	// one that was shut down need not be.
	Mended func() error
	// Certificate and Key are the explicit proxy's, in PEM; none: it is plain.
	Certificate, Key []byte
}

// Options of a Warden. All are needed but Args and Listeners.
type Options struct {
	// Args start this program as the process. Default: sallyport gateway.
	Args      []string
	IDs       cell.IDs // whom it runs as
	View      *cell.View
	Listeners Listeners
	Trail     *Trail
	// SegmentSize is the audit log's.
	SegmentSize int64
	AuditDir    string

	Broker    *credential.Broker
	Authority *mitm.Authority
	Names     *resolver.Table
	// Local lists this host's addresses and the sandboxes' networks.
	Local func() []netip.Prefix
	// Identities and Clients are the tables as they are now. Changes are told by
	// Identity and Clients.
	Identities func() map[netip.Addr]policy.Sandbox
	Clients    func() []gateway.Client
	// Exposures, and Whose and Wake for the sandboxes that are exposed, are needed
	// with Listeners.Inbound. Whose is who a sandbox is, by its ID; Wake runs it and
	// returns where it is. Changes of Exposures are told by [Warden.Exposures].
	Exposures func() []gateway.Exposure
	Whose     func(ctx context.Context, id string) (policy.Sandbox, error)
	Wake      func(ctx context.Context, id string) (gateway.Identity, error)
	// Approvals may be nil: what needs approval is denied then.
	Approvals Approvals
	// Event makes the record of a change of the process's state.
	Event  func(state string) *audit.Event
	Logger *slog.Logger

	// Ledger keeps the counters of limits. Default: they are a process's own.
	Ledger *Ledger
	// Limited tells whether the policy in force has limits. Default: it may.
	Limited func() bool
	// Every is the period that the policy in force gives a limit, 0 where it does
	// not say. Default: it does not.
	Every func(limit string) time.Duration
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

// Warden looks after the process. It is safe for concurrent use.
type Warden struct {
	o      Options
	lender *lender

	segments *rate.Limiter
	turn     chan struct{} // to wait for segments
	patience time.Duration // with a process that is told something

	// life is held while a process is started or stopped, or the policy changes.
	life sync.Mutex
	// Guarded by life: the policy in force.
	document policy.Document
	revision string
	began    time.Time
	wait     time.Duration // Watch's own
	// soiled says that a process has had the listeners since they were mended. It
	// is of who starts a process or has seen one end: never two at once.
	soiled bool

	mu     sync.Mutex    // guards what follows; taken after life
	peer   *link.Peer    // nil while there is no process
	cell   *cell.Process // the current process, or the one before
	unruly error         // why it was ended, if it was
	status Status
	gone   chan struct{} // closed when the current process has ended
	cause  error         // why it has
	dying  bool          // it is meant to end
}

// New returns a Warden that Start starts.
func New(o Options) *Warden {
	if len(o.Args) == 0 {
		o.Args = []string{"sallyport", "gateway"}
	}
	if o.Ledger != nil && o.Every != nil {
		o.Ledger.every = o.Every
	}
	often := rate.Limit(1)
	if o.SegmentSize > 0 {
		often = max(often, rate.Limit(segmentBytes)/rate.Limit(o.SegmentSize))
	}
	return &Warden{
		o: o, lender: newLender(o.Broker), segments: rate.NewLimiter(often, segmentBurst), turn: make(chan struct{}, 1),
		patience: answerWithin,
	}
}

// Start begins the first process, with a policy.
func (w *Warden) Start(ctx context.Context, doc policy.Document, revision string) error {
	w.life.Lock()
	defer w.life.Unlock()
	w.document, w.revision = doc, revision
	if err := show(w.o.View, doc, revision); err != nil {
		return fmt.Errorf("showing the gateway its policy: %w", err)
	}
	return w.begin(ctx)
}

// Watch starts a new process whenever one dies, until ctx is done.
func (w *Warden) Watch(ctx context.Context) error {
	var view errgroup.Group
	view.Go(func() error { w.o.View.Watch(ctx); return nil })
	defer view.Wait()
	if w.o.Ledger != nil {
		view.Go(func() error { w.tally(ctx); return nil })
	}
	for {
		w.mu.Lock()
		gone := w.gone
		w.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil
		case <-gone:
		}
		if err := w.revive(ctx); err != nil {
			return nil // nobody wants another
		}
	}
}

var errDying = errors.New("the gateway is shutting down")

// revive starts processes until one is up. It fails when ctx is done or after
// Stop.
func (w *Warden) revive(ctx context.Context) error {
	w.life.Lock()
	if time.Since(w.began) > wellAfter {
		w.wait = 0
	}
	w.life.Unlock()
	w.mu.Lock()
	cause := w.cause
	w.mu.Unlock()
	for {
		if w.isDying() {
			return errDying
		}
		w.wait = min(max(2*w.wait, shortestWait), longestWait)
		w.o.Logger.Error("the gateway's process has ended; nothing leaves until the next one is up", "error", cause, "in", w.wait)
		w.say(ctx, "ended", cause)
		w.mu.Lock()
		w.status.Failure = cause.Error()
		w.mu.Unlock()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(w.wait):
		}
		w.life.Lock()
		if w.isDying() {
			w.life.Unlock()
			return errDying
		}
		cause = w.begin(ctx)
		w.life.Unlock()
		if cause == nil {
			w.mu.Lock()
			w.status.Restarts++
			w.mu.Unlock()
			w.say(ctx, "started", nil)
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

func (w *Warden) isDying() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dying
}

// say records what happened to the process. It does so before the next one
// starts, or not at all: a log that cannot be written lets nothing leave anyhow.
func (w *Warden) say(ctx context.Context, state string, cause error) {
	e := w.o.Event(state)
	if cause != nil {
		e.Detail = cause.Error()
		e.StatusID, e.SeverityID = audit.StatusFailure, audit.SeverityHigh
	}
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	if err := w.o.Trail.Append(ctx, e); err != nil {
		w.o.Logger.Error("the gateway's state cannot be recorded", "state", state, "error", err)
	}
}

// begin starts a process and hands it what it works with. w.life is held.
func (w *Warden) begin(ctx context.Context) error {
	p, err := w.spawn()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	var is started
	if err := p.peer.Call(ctx, callStart, p.start, &is); err != nil {
		return p.abort(err)
	}
	if w.o.Ledger != nil {
		if err := w.o.Ledger.restore(ctx, p.peer); err != nil {
			return p.abort(err)
		}
	}
	// From this call on it reads what others send.
	serving, cancelServing := context.WithTimeout(ctx, answerWithin)
	defer cancelServing()
	w.mu.Lock()
	err = p.peer.Call(serving, callServe, serveCall{w.o.Identities(), w.o.Clients(), w.exposures()}, &link.None{})
	if err != nil {
		w.mu.Unlock()
		return p.abort(err)
	}
	w.peer, w.cell, w.unruly, w.gone = p.peer, p.cell, nil, make(chan struct{})
	w.status.PID, w.status.Since = p.cell.PID, time.Now()
	w.status.UID, w.status.OwnRoot, w.status.Landlock = is.UID, is.Root, is.Landlock
	gone := w.gone
	w.mu.Unlock()
	w.began = time.Now()
	w.o.Trail.give(p.peer)
	w.o.Logger.Info("the gateway's process is up", "pid", p.cell.PID, "uid", is.UID, "own_root", is.Root, "landlock", is.Landlock)
	go func() {
		err := p.wait()
		if !w.isDying() { // else the listeners are closed
			w.mend() // at once, so that connections wait in them and are not refused
		}
		if w.o.Approvals != nil {
			w.o.Approvals.WithdrawHeld()
		}
		if terr := w.o.Trail.takeBack(); terr != nil {
			err = errors.Join(err, fmt.Errorf("opening the audit log again: %w", terr))
		}
		w.mu.Lock()
		if w.unruly != nil {
			err = fmt.Errorf("ended since it did not do as told: %w (%w)", w.unruly, err)
		}
		w.peer, w.status.PID, w.cause = nil, 0, err
		w.mu.Unlock()
		close(gone)
	}()
	return nil
}

// Use puts the policy that was prepared into force. A process that does not take
// it is ended: the next one begins with it.
func (w *Warden) Use(doc policy.Document, revision string) {
	w.life.Lock()
	defer w.life.Unlock()
	old, before := w.revision, roots(w.document)
	w.document, w.revision = doc, revision
	w.tell(callUse, useCall{revision})
	w.mu.Lock()
	if w.peer != nil && !w.status.OwnRoot && !slices.Equal(before, roots(doc)) {
		// It may read the files that it was started with; the next one may read these.
		_ = w.peer.Close()
	}
	w.mu.Unlock()
	if old != revision {
		if err := w.o.View.Remove(filepath.Dir(documentPath(old))); err != nil {
			w.o.Logger.Warn("the policy of before cannot be removed", "error", err)
		}
	}
}

// Identity tells that an address is a sandbox's, or nobody's (nil). It returns
// when the process knows.
func (w *Warden) Identity(a netip.Addr, s *policy.Sandbox) { w.tell(callIdentity, identityCall{a, s}) }

// Clients tells who may use the explicit proxy now.
func (w *Warden) Clients() { w.tell(callClients, clientsCall{w.o.Clients()}) }

// Forget drops what the process keeps under the ID of a sandbox or a client.
func (w *Warden) Forget(id string) { w.tell(callForget, forgetCall{id}) }

// Revoke ends all leases, as a change of a secret must.
func (w *Warden) Revoke() { w.tell(callRevoke, link.None{}) }

// tell tells the process, if there is one; the next one is told everything. A
// process that does not take it is ended at once.
func (w *Warden) tell(m link.Method, what any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.peer == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), w.patience)
	defer cancel()
	if err := w.peer.Call(ctx, m, what, &link.None{}); err != nil && !errors.Is(err, link.ErrClosed) {
		w.end(err)
	}
}

// end ends a process that does not do as it is told. w.mu is held.
func (w *Warden) end(why error) {
	w.o.Logger.Error("the gateway's process does not do as it is told and is ended", "error", why)
	w.unruly = why
	w.cell.Kill()
	_ = w.peer.Close()
}

// Status says how the process is.
func (w *Warden) Status() Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.status
}

// Stop has the process drain for a time and ends it. There is no other after it.
func (w *Warden) Stop(within time.Duration) error {
	w.life.Lock()
	defer w.life.Unlock()
	w.mu.Lock()
	peer, gone := w.peer, w.gone
	w.dying = true
	w.mu.Unlock()
	if peer == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), within+answerWithin)
	defer cancel()
	var last stopped
	err := peer.Call(ctx, callStop, stopCall{within}, &last)
	if err == nil {
		w.o.Trail.account(last.Log)
		if w.o.Ledger != nil {
			if lerr := w.o.Ledger.sync(ctx, peer); lerr != nil {
				w.o.Logger.Error("the counters of limits cannot be written down", "error", lerr)
			}
		}
	}
	_ = peer.Close()
	<-gone // it is killed where it does not end by itself
	if err == nil && last.Late {
		err = context.DeadlineExceeded
	}
	return err
}

// Handlers of what the process asks.

func (w *Warden) methods() map[link.Method]link.Handler {
	return map[link.Method]link.Handler{
		callLease:  link.Handle(w.lender.lease),
		callLogin:  link.Handle(w.lender.login),
		callSign:   link.Handle(w.sign),
		callAssign: link.Handle(w.assign),
		callName:   link.Handle(w.name),
		callLocal: link.Handle(func(context.Context, link.None) (localReply, error) {
			return localReply{w.o.Local()}, nil
		}),
		callSegment:  link.HandleFile(w.segment),
		callAsk:      link.Handle(w.ask),
		callWithdraw: link.Handle(w.withdraw),
		callWhose:    link.Handle(w.whose),
		callWake:     link.Handle(w.wake),
	}
}

// link is the Warden's side of one.
func (w *Warden) link() link.Options {
	return link.Options{Methods: w.methods(), Errors: known, MaxFrame: maxFrame, MaxIn: maxAsk, MaxCalls: maxCalls}
}

// segment makes a segment of the log, not faster than a log grows: what a process
// asks for without need is a file on the disk all the same.
func (w *Warden) segment(ctx context.Context, c segmentCall) (link.None, *os.File, error) {
	select { // a place in the limiter's queue outlives who has it, so there is one
	case w.turn <- struct{}{}:
		defer func() { <-w.turn }()
	case <-ctx.Done():
		return link.None{}, nil, ctx.Err()
	}
	if err := w.segments.Wait(ctx); err != nil {
		return link.None{}, nil, err
	}
	f, err := audit.NewSegment(w.o.AuditDir, c.First, w.o.SegmentSize)
	return link.None{}, f, err
}

func (w *Warden) sign(_ context.Context, c signCall) (signed, error) {
	public, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), c.Public)
	if err != nil {
		return signed{}, err
	}
	chain, err := w.o.Authority.Sign(c.Sandbox, c.Name, public)
	return signed{chain}, err
}

// errStranger keeps a process from filling the disk with names of sandboxes
// that do not exist.
var errStranger = errors.New("no such sandbox is running")

func (w *Warden) runs(id string) bool {
	for _, s := range w.o.Identities() {
		if s.ID == id {
			return true
		}
	}
	return false
}

func (w *Warden) assign(_ context.Context, c nameCall) (named, error) {
	if !w.runs(c.Sandbox) {
		return named{}, errStranger
	}
	a, err := w.o.Names.Assign(c.Sandbox, c.Name)
	return named{Address: a}, err
}

func (w *Warden) name(_ context.Context, c nameCall) (named, error) {
	if !w.runs(c.Sandbox) {
		return named{}, errStranger
	}
	name, ok := w.o.Names.Name(c.Sandbox, c.Address)
	return named{Name: name, Known: ok}, nil
}
