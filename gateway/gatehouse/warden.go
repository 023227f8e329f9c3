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
	MaxFrame = 4 << 20  // bytes; an event may have 1 MiB
	MaxCall  = 16 << 10 // bytes of a call of the process's: names, addresses, a key
	maxCalls = 256      // of the process's at a time

	startWithin  = 2 * time.Minute  // a policy of many thousand rules is compiled
	AnswerWithin = 10 * time.Second // everything else; who is slower is ended
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
	AuditLog  *AuditLog
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
	// Dial returns a socket that has begun to connect to a port of a sandbox that is
	// exposed, at its own address: the datapath lets no other of the process's
	// through. It is needed with Inbound too.
	Dial func(id string, port uint16) (*os.File, error)
	// Loopback connects to a port of a sandbox that is exposed as programs inside it
	// would. Its errors are those of [gateway.Inside]. Default: what listens on a
	// sandbox's loopback address is not reached.
	Loopback func(ctx context.Context, id string, port uint16) (Stream, error)
	// Approvals may be nil: what needs approval is denied then.
	Approvals Approvals
	// Event makes the record of a change of the process's state.
	Event  func(state string) *audit.Event
	Logger *slog.Logger

	// Found is [gateway.Options.Found].
	Found int64
	// Limits keeps the counters of limits. Default: they are a process's own.
	Limits *Ledger
	// Limited tells whether the policy in force has limits. Default: it may.
	Limited func() bool
	// Every is the period that the policy in force gives a limit, 0 where it does
	// not say. Default: it does not.
	Every func(limit string) time.Duration
}

// Supervisor looks after the process. It is safe for concurrent use.
type Supervisor struct {
	o       Options
	leases  *leaseServer
	process *supervise.Keeper

	segments  *rate.Limiter
	turn      chan struct{} // to wait for segments
	patience  time.Duration // with a process that is told something
	loopbacks *quota.Places // of connections made from inside

	// Guarded by keeper.Hold: the policy in force, and what the next process starts
	// with.
	document policy.Document
	revision string
	next     StartRequest
	// soiled says that a process has had the listeners since they were mended. It
	// is of who readies a process or has seen one end: never two at once.
	soiled bool
}

// New returns a Warden that Start starts.
func New(o Options) *Supervisor {
	if len(o.Args) == 0 {
		o.Args = []string{"sallyport", "gateway"}
	}
	if o.Limits != nil && o.Every != nil {
		o.Limits.every = o.Every
	}
	often := rate.Limit(1)
	if o.SegmentSize > 0 {
		often = max(often, rate.Limit(segmentBytes)/rate.Limit(o.SegmentSize))
	}
	w := &Supervisor{
		o: o, leases: newLeaseServer(o.Broker), segments: rate.NewLimiter(often, segmentBurst), turn: make(chan struct{}, 1),
		patience: AnswerWithin, loopbacks: quota.New(maxInside, maxInsideOfOne),
	}
	w.process = supervise.New(supervise.Options{
		Name: "the gateway's process", Logger: o.Logger, Said: w.repeat, Voice: supervise.Voice{Line: 64 << 10, Rate: 100, Burst: 2000},
		Ready: w.ready, Link: func(*supervise.Process) ipc.Options { return w.link() },
		Start: w.begin, Serve: w.serve, Ended: w.ended, Lost: w.processLost, Back: func(ctx context.Context) { w.recordState(ctx, "started", nil) },
	})
	return w
}

// Start begins the first process, with a policy.
func (w *Supervisor) Start(ctx context.Context, doc policy.Document, revision string) error {
	w.document, w.revision = doc, revision // nobody else has it yet
	if err := show(w.o.View, doc, revision); err != nil {
		return fmt.Errorf("showing the gateway its policy: %w", err)
	}
	return w.process.Start(ctx)
}

// Watch starts a new process whenever one dies, until ctx is done.
func (w *Supervisor) Watch(ctx context.Context) error {
	var view errgroup.Group
	view.Go(func() error { w.o.View.Watch(ctx); return nil })
	defer view.Wait()
	if w.o.Limits != nil {
		view.Go(func() error { w.tally(ctx); return nil })
	}
	return w.process.Watch(ctx)
}

func (w *Supervisor) processLost(ctx context.Context, cause error, in time.Duration) {
	w.o.Logger.Error("the gateway's process has ended; nothing leaves until the next one is up", "error", cause, "in", in)
	w.recordState(ctx, "ended", cause)
}

// recordState records what happened to the process. It does so before the next one
// starts, or not at all: a log that cannot be written lets nothing leave anyhow.
func (w *Supervisor) recordState(ctx context.Context, state string, cause error) {
	e := w.o.Event(state)
	if cause != nil {
		e.Detail = cause.Error()
		e.StatusID, e.SeverityID = audit.StatusFailure, audit.SeverityHigh
	}
	ctx, cancel := context.WithTimeout(ctx, AnswerWithin)
	defer cancel()
	if err := w.o.AuditLog.Append(ctx, e); err != nil {
		w.o.Logger.Error("the gateway's state cannot be recorded", "state", state, "error", err)
	}
}

// Use puts the policy that was prepared into force. A process that does not take
// it is ended: the next one begins with it.
func (w *Supervisor) Use(doc policy.Document, revision string) {
	defer w.process.Hold()()
	old, before := w.revision, rootFiles(w.document)
	w.document, w.revision = doc, revision
	w.tell(MethodUse, PolicyRequest{revision})
	if p := w.process.Process(); p != nil && !p.State.Root && !slices.Equal(before, rootFiles(doc)) {
		// It may read the files that it was started with; the next one may read these.
		_ = p.Peer.Close()
	}
	if old != revision {
		if err := w.o.View.Remove(filepath.Dir(DocumentPath(old))); err != nil {
			w.o.Logger.Warn("the policy of before cannot be removed", "error", err)
		}
	}
}

// Identity tells that an address is a sandbox's, or nobody's (nil). It returns
// when the process knows.
func (w *Supervisor) Identity(a netip.Addr, s *policy.Sandbox) {
	w.tell(MethodIdentity, IdentityRequest{a, s})
}

// Clients tells who may use the explicit proxy now.
func (w *Supervisor) Clients() { w.tell(MethodClients, ClientsRequest{w.o.Clients()}) }

// Forget drops what the process keeps under the ID of a sandbox or a client.
func (w *Supervisor) Forget(id string) { w.tell(MethodForget, ForgetRequest{id}) }

// Revoke ends all leases, as a change of a secret must.
func (w *Supervisor) Revoke() { w.tell(MethodRevoke, ipc.None{}) }

// tell tells the process, if there is one; the next one is told everything.
func (w *Supervisor) tell(m ipc.Method, what any) { w.process.Tell(w.patience, m, what) }

// peer is who is asked: nil while there is no process.
func (w *Supervisor) peer() *ipc.Peer {
	if p := w.process.Process(); p != nil {
		return p.Peer
	}
	return nil
}

// Status says how the process is.
func (w *Supervisor) Status() supervise.Status { return w.process.Status() }

// Stop has the process drain for a time and ends it. There is no other after it.
func (w *Supervisor) Stop(within time.Duration) error {
	return w.process.Stop(func(p *supervise.Process) error {
		ctx, cancel := context.WithTimeout(context.Background(), within+AnswerWithin)
		defer cancel()
		var last StopReply
		if err := p.Peer.Call(ctx, MethodStop, StopRequest{within}, &last); err != nil {
			return err
		}
		w.o.AuditLog.account(last.Log)
		if w.o.Limits != nil {
			if err := w.o.Limits.sync(ctx, p.Peer); err != nil {
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

func (w *Supervisor) methods() map[ipc.Method]ipc.Handler {
	return map[ipc.Method]ipc.Handler{
		MethodLease:  ipc.Handle(w.leases.lease),
		MethodLogin:  ipc.Handle(w.leases.login),
		MethodSign:   ipc.Handle(w.sign),
		MethodAssign: ipc.Handle(w.assign),
		MethodName:   ipc.Handle(w.name),
		MethodLocal: ipc.Handle(func(context.Context, ipc.None) (LocalReply, error) {
			return LocalReply{w.o.Local()}, nil
		}),
		MethodSegment:  ipc.HandleFile(w.segment),
		MethodAsk:      ipc.Handle(w.ask),
		MethodWithdraw: ipc.Handle(w.withdraw),
		MethodIdentify: ipc.Handle(w.whose),
		MethodWake:     ipc.Handle(w.wake),
		MethodLoopback: ipc.HandleFile(w.inside),
		MethodDial:     ipc.HandleFile(w.reach),
	}
}

// link is the Warden's side of one.
func (w *Supervisor) link() ipc.Options {
	return ipc.Options{Methods: w.methods(), Errors: Errors, MaxFrame: MaxFrame, MaxIn: MaxCall, MaxCalls: maxCalls}
}

// segment makes a segment of the log, not faster than a log grows: what a process
// asks for without need is a file on the disk all the same.
func (w *Supervisor) segment(ctx context.Context, c SegmentRequest) (ipc.None, *os.File, error) {
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

func (w *Supervisor) sign(_ context.Context, c SignRequest) (SignReply, error) {
	public, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), c.Public)
	if err != nil {
		return SignReply{}, err
	}
	chain, err := w.o.Authority.Sign(c.Sandbox, c.Name, public)
	return SignReply{chain}, err
}

// errStranger keeps a process from filling the disk with names of sandboxes
// that do not exist.
var errStranger = errors.New("no such sandbox is running")

func (w *Supervisor) runs(id string) bool {
	for _, s := range w.o.Identities() {
		if s.ID == id {
			return true
		}
	}
	return false
}

func (w *Supervisor) assign(_ context.Context, c NameRequest) (NameReply, error) {
	if !w.runs(c.Sandbox) {
		return NameReply{}, errStranger
	}
	a, err := w.o.Names.Assign(c.Sandbox, c.Name)
	return NameReply{Address: a}, err
}

func (w *Supervisor) name(_ context.Context, c NameRequest) (NameReply, error) {
	if !w.runs(c.Sandbox) {
		return NameReply{}, errStranger
	}
	name, ok := w.o.Names.Name(c.Sandbox, c.Address)
	return NameReply{Name: name, Known: ok}, nil
}
