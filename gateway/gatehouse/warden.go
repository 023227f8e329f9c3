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
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"sallyport/audit"
	"sallyport/gateway"
	"sallyport/gateway/credential"
	"sallyport/gateway/mitm"
	"sallyport/gateway/resolver"
	"sallyport/internal/ipc"
	"sallyport/internal/jail"
	"sallyport/internal/quota"
	"sallyport/internal/supervise"
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
	IDs       jail.IDs // whom it runs as
	View      *jail.View
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
	// Reach returns a socket that has begun to connect to a port of a sandbox that is
	// exposed, at its own address: the datapath lets no other of the process's
	// through. It is needed with Inbound too.
	Reach func(id string, port uint16) (*os.File, error)
	// Inside connects to a port of a sandbox that is exposed as programs inside it
	// would. Its errors are those of [gateway.Inside]. Default: what listens on a
	// sandbox's loopback address is not reached.
	Inside func(ctx context.Context, id string, port uint16) (Stream, error)
	// Approvals may be nil: what needs approval is denied then.
	Approvals Approvals
	// Event makes the record of a change of the process's state.
	Event  func(state string) *audit.Event
	Logger *slog.Logger

	// Found is [gateway.Options.Found].
	Found int64
	// Ledger keeps the counters of limits. Default: they are a process's own.
	Ledger *Ledger
	// Limited tells whether the policy in force has limits. Default: it may.
	Limited func() bool
	// Every is the period that the policy in force gives a limit, 0 where it does
	// not say. Default: it does not.
	Every func(limit string) time.Duration
}

// Warden looks after the process. It is safe for concurrent use.
type Warden struct {
	o      Options
	lender *lender
	keeper *supervise.Keeper

	segments *rate.Limiter
	turn     chan struct{} // to wait for segments
	patience time.Duration // with a process that is told something
	insides  *quota.Places // of connections made from inside

	// Guarded by keeper.Hold: the policy in force, and what the next process starts
	// with.
	document policy.Document
	revision string
	next     start
	// soiled says that a process has had the listeners since they were mended. It
	// is of who readies a process or has seen one end: never two at once.
	soiled bool
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
	w := &Warden{
		o: o, lender: newLender(o.Broker), segments: rate.NewLimiter(often, segmentBurst), turn: make(chan struct{}, 1),
		patience: answerWithin, insides: quota.New(maxInside, maxInsideOfOne),
	}
	w.keeper = supervise.New(supervise.Options{
		Name: "the gateway's process", Logger: o.Logger, Said: w.repeat, Voice: supervise.Voice{Line: 64 << 10, Rate: 100, Burst: 2000},
		Ready: w.ready, Link: func(*supervise.Process) ipc.Options { return w.link() },
		Start: w.begin, Serve: w.serve, Ended: w.ended, Lost: w.lost, Back: func(ctx context.Context) { w.say(ctx, "started", nil) },
	})
	return w
}

// Start begins the first process, with a policy.
func (w *Warden) Start(ctx context.Context, doc policy.Document, revision string) error {
	w.document, w.revision = doc, revision // nobody else has it yet
	if err := show(w.o.View, doc, revision); err != nil {
		return fmt.Errorf("showing the gateway its policy: %w", err)
	}
	return w.keeper.Start(ctx)
}

// Watch starts a new process whenever one dies, until ctx is done.
func (w *Warden) Watch(ctx context.Context) error {
	var view errgroup.Group
	view.Go(func() error { w.o.View.Watch(ctx); return nil })
	defer view.Wait()
	if w.o.Ledger != nil {
		view.Go(func() error { w.tally(ctx); return nil })
	}
	return w.keeper.Watch(ctx)
}

func (w *Warden) lost(ctx context.Context, cause error, in time.Duration) {
	w.o.Logger.Error("the gateway's process has ended; nothing leaves until the next one is up", "error", cause, "in", in)
	w.say(ctx, "ended", cause)
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

// Use puts the policy that was prepared into force. A process that does not take
// it is ended: the next one begins with it.
func (w *Warden) Use(doc policy.Document, revision string) {
	defer w.keeper.Hold()()
	old, before := w.revision, roots(w.document)
	w.document, w.revision = doc, revision
	w.tell(callUse, useCall{revision})
	if p := w.keeper.Process(); p != nil && !p.State.Root && !slices.Equal(before, roots(doc)) {
		// It may read the files that it was started with; the next one may read these.
		_ = p.Peer.Close()
	}
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
func (w *Warden) Revoke() { w.tell(callRevoke, ipc.None{}) }

// tell tells the process, if there is one; the next one is told everything.
func (w *Warden) tell(m ipc.Method, what any) { w.keeper.Tell(w.patience, m, what) }

// peer is who is asked: nil while there is no process.
func (w *Warden) peer() *ipc.Peer {
	if p := w.keeper.Process(); p != nil {
		return p.Peer
	}
	return nil
}

// Status says how the process is.
func (w *Warden) Status() supervise.Status { return w.keeper.Status() }

// Stop has the process drain for a time and ends it. There is no other after it.
func (w *Warden) Stop(within time.Duration) error {
	return w.keeper.Stop(func(p *supervise.Process) error {
		ctx, cancel := context.WithTimeout(context.Background(), within+answerWithin)
		defer cancel()
		var last stopped
		if err := p.Peer.Call(ctx, callStop, stopCall{within}, &last); err != nil {
			return err
		}
		w.o.Trail.account(last.Log)
		if w.o.Ledger != nil {
			if err := w.o.Ledger.sync(ctx, p.Peer); err != nil {
				w.o.Logger.Error("the counters of limits cannot be written down", "error", err)
			}
		}
		if last.Late {
			return context.DeadlineExceeded
		}
		return nil
	})
}

// Handlers of what the process asks.

func (w *Warden) methods() map[ipc.Method]ipc.Handler {
	return map[ipc.Method]ipc.Handler{
		callLease:  ipc.Handle(w.lender.lease),
		callLogin:  ipc.Handle(w.lender.login),
		callSign:   ipc.Handle(w.sign),
		callAssign: ipc.Handle(w.assign),
		callName:   ipc.Handle(w.name),
		callLocal: ipc.Handle(func(context.Context, ipc.None) (localReply, error) {
			return localReply{w.o.Local()}, nil
		}),
		callSegment:  ipc.HandleFile(w.segment),
		callAsk:      ipc.Handle(w.ask),
		callWithdraw: ipc.Handle(w.withdraw),
		callWhose:    ipc.Handle(w.whose),
		callWake:     ipc.Handle(w.wake),
		callInside:   ipc.HandleFile(w.inside),
		callReach:    ipc.HandleFile(w.reach),
	}
}

// link is the Warden's side of one.
func (w *Warden) link() ipc.Options {
	return ipc.Options{Methods: w.methods(), Errors: known, MaxFrame: maxFrame, MaxIn: maxAsk, MaxCalls: maxCalls}
}

// segment makes a segment of the log, not faster than a log grows: what a process
// asks for without need is a file on the disk all the same.
func (w *Warden) segment(ctx context.Context, c segmentCall) (ipc.None, *os.File, error) {
	select { // a place in the limiter's queue outlives who has it, so there is one
	case w.turn <- struct{}{}:
		defer func() { <-w.turn }()
	case <-ctx.Done():
		return ipc.None{}, nil, ctx.Err()
	}
	if err := w.segments.Wait(ctx); err != nil {
		return ipc.None{}, nil, err
	}
	f, err := audit.NewSegment(w.o.AuditDir, c.First, w.o.SegmentSize)
	return ipc.None{}, f, err
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
