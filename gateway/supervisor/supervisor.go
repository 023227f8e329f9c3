// Package supervisor is the daemon's side of the gateway: it starts the worker, a
// process without privileges that parses what sandboxes and upstreams send,
// answers its calls (package workerapi), and starts another one when it dies.
//
// The supervisor checks each call by its own policy and tables, whatever the
// worker says: a lease by the binding of credential, host and port and by the
// policy's revision; a name and a certificate by the sandboxes that run; a
// connection by the ports that are published; a question to an operator by the
// sandboxes and clients that are known, with the store's bound on what waits. It
// takes everything that a worker says for hostile: bounded, checked, and ending
// the worker where it is not of the protocol. Counters of limits are counted by
// the worker and kept by a [LimitStore].
//
// While there is no worker nothing leaves: connections wait in the listeners'
// queues, which the supervisor keeps open, and the supervisor writes the log.
//
// A worker that has been taken over can do more than all its sandboxes together:
// lease every credential that a rule binds, whether a sandbox asks or not, and so
// learn the secret and send it anywhere, since the worker itself keeps a lease's
// bounds; get a certificate for any name in the eyes of any sandbox; read and
// rewrite the last segment of the log; send bytes anywhere; ask for approval of
// what nobody wants, and use a grant for something else. It cannot keep a policy
// out (see [Supervisor.Prepare]) or the daemon's events out of the log (see
// [AuditLog.Settle]), read a secret that no rule binds, the authorities' keys or
// earlier segments of the log, nor touch engine, datapath, files or other processes.
package supervisor

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
	"sallyport/audit/auditlog"
	"sallyport/gateway"
	"sallyport/gateway/access"
	"sallyport/gateway/ca"
	"sallyport/gateway/credential"
	"sallyport/gateway/inbound"
	"sallyport/gateway/placeholder"
	"sallyport/gateway/resolver"
	"sallyport/gateway/workerapi"
	"sallyport/internal/ipc"
	"sallyport/internal/jail"
	"sallyport/internal/quota"
	"sallyport/internal/supervise"
	"sallyport/policy"
)

// maxCalls bounds the calls of a worker that are answered at a time.
const maxCalls = 256

// startWithin bounds how long a worker takes to start: it compiles a policy of many
// thousand rules.
const startWithin = 2 * time.Minute

// Bounds of how many segments of the log are made: a burst, and then one a second,
// or as many as so many bytes a second fill where segments are small.
const (
	segmentBurst = 16
	segmentBytes = 64 << 20
)

// Listeners are the sockets that the worker accepts from; each may be nil. The supervisor
// does not close them.
type Listeners struct {
	Transparent, Explicit, DNSTCP *net.TCPListener
	Inbound                       *net.TCPListener // on a loopback address
	Routed                        *net.TCPListener // of a router's clients
	DNS                           *net.UDPConn
	// Restored, unless nil, is called after each worker, when the sockets are as they were
	// before it. A socket that was replaced is not in the kernel's socket maps, and one
	// that was shut down may not be.
	Restored func() error
	// Certificate and Key are the explicit proxy's, in PEM; none: it is plain.
	Certificate, Key []byte
}

// Options of a Supervisor. All are required but Args and Listeners, and those that have a
// default.
type Options struct {
	// Args start this program as the process. Default: sallyport gateway.
	Args      []string
	IDs       jail.IDs // the worker's user and group
	View      *jail.View
	Listeners Listeners
	AuditLog  *AuditLog
	// SegmentSize, Cluster and Node are the audit log's.
	SegmentSize   int64
	Cluster, Node string
	AuditDir      string

	Broker    *credential.Broker
	Authority *ca.Authority
	Names     *resolver.NameTable
	// Local lists this host's addresses and the sandboxes' networks.
	Local func() []netip.Prefix
	// Identities and Clients return the current tables. Call [Supervisor.Identity] and
	// [Supervisor.Clients] when they change.
	Identities func() map[netip.Addr]policy.Sandbox
	Clients    func() []access.Client
	// Placeholders returns those that a sandbox that runs may hold. Call
	// [Supervisor.Identity], or [Supervisor.Placeholders], when they change. Default: none.
	Placeholders func(sandboxID string) []placeholder.Held
	// Ports, Whose and Wake are required with Listeners.Inbound. Ports lists the
	// published ports: call [Supervisor.Ports] when it changes. Whose identifies a
	// sandbox by its ID. Wake starts the sandbox and returns its address.
	Ports func() []access.Port
	Whose func(ctx context.Context, id string) (policy.Sandbox, error)
	Wake  func(ctx context.Context, id string) (gateway.Identity, error)
	// Dial returns a socket that has begun to connect to a published port, at the
	// sandbox's own address: the datapath lets no other socket of the worker's connect to
	// sandboxes. It is required with Inbound too.
	Dial func(id string, port uint16) (*os.File, error)
	// Loopback connects to a published port as a program inside the sandbox would. Its
	// errors are those of [inbound.Loopback]. Default: ports on a sandbox's loopback address
	// cannot be reached.
	Loopback func(ctx context.Context, id string, port uint16) (Stream, error)
	// Router, Find and Routable are required with Listeners.Routed. Router is what the
	// listener works with: call [Supervisor.Router] when it changes. Find is [inbound.Router]'s.
	// Routable reports whether a router's client may ask some sandbox, at a port, or at any
	// for the port 0.
	Router   func() *workerapi.Router
	Find     func(context.Context, inbound.Route) (inbound.Place, error)
	Routable func(id string, port uint16) bool
	// Saved keeps what answers are searched for. Default: it ends with each worker.
	Saved *SavedStore
	// Held returns why no request may leave, or "". Call [Supervisor.Hold] when that
	// changes. Default: requests may leave.
	Held func() string
	// Approvals may be nil: requests that need approval are denied then.
	Approvals Approvals
	// Event makes the audit event for a change of the worker's state.
	Event  func(state string) *audit.Event
	Logger *slog.Logger

	// Found is [gateway.Options.Found].
	Found int64
	// Limits keeps the counters of limits. Default: they end with each worker.
	Limits *LimitStore
	// Limited reports whether the policy in force has limits. Default: it may.
	Limited func() bool
	// Every is the period of a limit in the policy in force; 0 where the policy has none.
	// Default: 0.
	Every func(limit string) time.Duration
}

// Supervisor starts the worker, answers it and starts another one when it dies. It is safe
// for concurrent use.
type Supervisor struct {
	o       Options
	leases  *leaseServer
	process *supervise.Restarter

	segments    *rate.Limiter
	segmentTurn chan struct{} // held by the call that waits for segments
	patience    time.Duration // with a process that is told something
	loopbacks   *quota.Places // of connections made from inside

	// Guarded by keeper.Hold: the policy in force, and what the next process starts
	// with.
	document policy.Document
	revision string
	next     workerapi.StartRequest
	// used reports that a worker has had the listeners since they were restored.
	// Only spec and cleanup use it, which never run at the same time.
	used bool
}

// New returns a Supervisor. Call Start next.
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
	s := &Supervisor{
		o: o, segments: rate.NewLimiter(often, segmentBurst), segmentTurn: make(chan struct{}, 1),
		patience: workerapi.AnswerWithin, loopbacks: quota.New(maxLoopback, maxLoopbackPerSandbox),
	}
	s.leases = newLeaseServer(o.Broker, s.isKnown)
	s.process = supervise.New(supervise.Options{
		Name: "the gateway's process", Logger: o.Logger, Output: s.relayLog, Limit: supervise.OutputLimit{Line: 64 << 10, Rate: 100, Burst: 2000},
		Spec: s.spec, Peer: func(*supervise.Process) ipc.Options { return s.peerOptions() },
		Init: s.initWorker, Serve: s.serve, Cleanup: s.cleanup, OnExit: s.exited, OnRestart: func(ctx context.Context) { s.recordState(ctx, "started", nil) },
	})
	return s
}

// Start starts the first worker, with a policy.
func (s *Supervisor) Start(ctx context.Context, doc policy.Document, revision string) error {
	s.document, s.revision = doc, revision // nobody else has it yet
	if err := show(s.o.View, doc, revision); err != nil {
		return fmt.Errorf("showing the gateway its policy: %w", err)
	}
	return s.process.Start(ctx)
}

// Watch starts another worker whenever one dies, until ctx is done.
func (s *Supervisor) Watch(ctx context.Context) error {
	var view errgroup.Group
	view.Go(func() error { s.o.View.Watch(ctx); return nil })
	defer view.Wait()
	if s.o.Limits != nil {
		view.Go(func() error { s.pullCounts(ctx); return nil })
	}
	return s.process.Watch(ctx)
}

func (s *Supervisor) exited(ctx context.Context, cause error, in time.Duration) {
	s.o.Logger.Error("the gateway's process has ended; nothing leaves until the next one is up", "error", cause, "in", in)
	s.recordState(ctx, "ended", cause)
}

// recordState records a change of the worker's state before the next worker starts, or not
// at all: while the log cannot be written, nothing leaves anyhow.
func (s *Supervisor) recordState(ctx context.Context, state string, cause error) {
	e := s.o.Event(state)
	if cause != nil {
		e.Detail = cause.Error()
		e.StatusID, e.SeverityID = audit.StatusFailure, audit.SeverityHigh
	}
	ctx, cancel := context.WithTimeout(ctx, workerapi.AnswerWithin)
	defer cancel()
	if err := s.o.AuditLog.Append(ctx, e); err != nil {
		s.o.Logger.Error("the gateway's state cannot be recorded", "state", state, "error", err)
	}
}

// Use puts the prepared policy into force. A worker that does not take it is ended; the
// next one starts with it.
func (s *Supervisor) Use(doc policy.Document, revision string) {
	defer s.process.Hold()()
	old, before := s.revision, rootFiles(s.document)
	s.document, s.revision = doc, revision
	s.notify(workerapi.MethodUse, workerapi.PolicyRequest{Policy: revision})
	if p := s.process.Process(); p != nil && !p.State.Root && !slices.Equal(before, rootFiles(doc)) {
		// It may read the files that it was started with; the next one may read these.
		_ = p.Peer.Close()
	}
	if old != revision {
		if err := s.o.View.Remove(filepath.Dir(workerapi.DocumentPath(old))); err != nil {
			s.o.Logger.Warn("the policy of before cannot be removed", "error", err)
		}
	}
}

// Identity tells the worker that an address is a sandbox's, or no sandbox's any more
// (nil). It returns when the worker knows, or has been ended.
func (s *Supervisor) Identity(a netip.Addr, sandbox *policy.Sandbox) {
	t := workerapi.Tables{Sandboxes: map[netip.Addr]*policy.Sandbox{a: sandbox}}
	if sandbox != nil && s.o.Placeholders != nil {
		t.Placeholders = map[string][]placeholder.Held{sandbox.ID: s.o.Placeholders(sandbox.ID)}
	}
	s.notify(workerapi.MethodTables, t)
}

// Placeholders tells the worker what the sandboxes that run may hold, which has changed.
func (s *Supervisor) Placeholders() {
	for _, t := range s.placeholders() {
		s.notify(workerapi.MethodTables, t)
	}
}

// placeholdersAtOnce is of how many sandboxes one message tells.
const placeholdersAtOnce = 256

// placeholders are the tables of those that the sandboxes that run may hold, a few
// sandboxes in each. A list that is empty removes those of before.
func (s *Supervisor) placeholders() (tables []workerapi.Tables) {
	if s.o.Placeholders == nil {
		return nil
	}
	part := map[string][]placeholder.Held{}
	for _, box := range s.o.Identities() {
		part[box.ID] = s.o.Placeholders(box.ID)
		if len(part) == placeholdersAtOnce {
			tables, part = append(tables, workerapi.Tables{Placeholders: part}), map[string][]placeholder.Held{}
		}
	}
	if len(part) > 0 {
		tables = append(tables, workerapi.Tables{Placeholders: part})
	}
	return tables
}

// Clients tells the worker the clients of the explicit proxy, which have changed.
func (s *Supervisor) Clients() {
	s.notify(workerapi.MethodTables, workerapi.Tables{Clients: whole(s.o.Clients())})
}

// Hold tells the worker why no request may leave from now on; with "", requests may.
func (s *Supervisor) Hold(reason string) {
	s.notify(workerapi.MethodTables, workerapi.Tables{Held: &reason})
}

// tables are all tables as they are now.
func (s *Supervisor) tables() workerapi.Tables {
	t := workerapi.Tables{Sandboxes: map[netip.Addr]*policy.Sandbox{}, Clients: whole(s.o.Clients()), Published: whole(s.publishedPorts())}
	if s.o.Router != nil {
		t.Router = s.o.Router()
	}
	if s.o.Held != nil {
		held := s.o.Held()
		t.Held = &held
	}
	for a, sandbox := range s.o.Identities() {
		t.Sandboxes[a] = &sandbox
	}
	return t
}

// whole is a list that is not nil, which would be unchanged.
func whole[T any](list []T) []T { return append([]T{}, list...) }

// Forget has the worker drop everything that it keeps for a sandbox or a client, by its
// ID.
func (s *Supervisor) Forget(id string) {
	s.notify(workerapi.MethodForget, workerapi.ForgetRequest{ID: id})
}

// ForgetLeaves has the worker show no certificate that it keeps, as when the intermediate
// above them is another one.
func (s *Supervisor) ForgetLeaves() { s.notify(workerapi.MethodForgetLeaves, ipc.None{}) }

// Revoke ends all leases, as a changed secret needs.
func (s *Supervisor) Revoke() { s.notify(workerapi.MethodRevoke, ipc.None{}) }

// notify tells the worker, if there is one. The next worker is told everything when it
// starts.
func (s *Supervisor) notify(m ipc.Method, what any) { s.process.Notify(s.patience, m, what) }

// peer is the connection to the worker, or nil while there is none.
func (s *Supervisor) peer() *ipc.Peer {
	if p := s.process.Process(); p != nil {
		return p.Peer
	}
	return nil
}

// Status reports the worker's state.
func (s *Supervisor) Status() supervise.Status { return s.process.Status() }

// Stop lets the worker finish its requests within a time and ends it for good. The error
// is context.DeadlineExceeded if requests were broken off.
func (s *Supervisor) Stop(within time.Duration) error {
	return s.process.Stop(func(p *supervise.Process) error {
		ctx, cancel := context.WithTimeout(context.Background(), within+workerapi.AnswerWithin)
		defer cancel()
		var last workerapi.StopReply
		if err := p.Peer.Call(ctx, workerapi.MethodStop, workerapi.StopRequest{Within: within}, &last); err != nil {
			return err
		}
		s.o.AuditLog.setLastStats(last.Log)
		if s.o.Limits != nil {
			if err := s.o.Limits.sync(ctx, p.Peer); err != nil {
				s.o.Logger.Error("the counters of limits cannot be written down", "error", err)
			}
		}
		if last.Late {
			return context.DeadlineExceeded
		}
		return nil
	})
}

// Handlers of what the process asks.

func (s *Supervisor) methods() map[ipc.Method]ipc.Handler {
	return map[ipc.Method]ipc.Handler{
		workerapi.MethodLease:   ipc.Handle(s.leases.lease),
		workerapi.MethodLogin:   ipc.Handle(s.leases.login),
		workerapi.MethodSign:    ipc.Handle(s.sign),
		workerapi.MethodCertify: ipc.Handle(s.certify),
		workerapi.MethodAssign:  ipc.Handle(s.assign),
		workerapi.MethodName:    ipc.Handle(s.name),
		workerapi.MethodLocal: ipc.Handle(func(context.Context, ipc.None) (workerapi.LocalReply, error) {
			return workerapi.LocalReply{Prefixes: s.o.Local()}, nil
		}),
		workerapi.MethodSegment:  ipc.HandleFile(s.segment),
		workerapi.MethodAsk:      ipc.Handle(s.ask),
		workerapi.MethodWithdraw: ipc.Handle(s.withdraw),
		workerapi.MethodIdentify: ipc.Handle(s.identify),
		workerapi.MethodWake:     ipc.Handle(s.wake),
		workerapi.MethodLoopback: ipc.HandleFile(s.loopback),
		workerapi.MethodDial:     ipc.HandleFile(s.dial),
		workerapi.MethodSaved:    ipc.Handle(s.saved),
		workerapi.MethodSave:     ipc.Handle(s.save),
		workerapi.MethodFind:     ipc.Handle(s.find),
	}
}

// peerOptions are the supervisor's side of a connection.
func (s *Supervisor) peerOptions() ipc.Options {
	return ipc.Options{Methods: s.methods(), Errors: workerapi.Errors, MaxFrame: workerapi.MaxFrame, MaxIn: workerapi.MaxCall, MaxCalls: maxCalls}
}

// segment makes a segment of the log, no faster than a log grows: a worker that has been
// taken over could fill the disk otherwise.
func (s *Supervisor) segment(ctx context.Context, c workerapi.SegmentRequest) (ipc.None, *os.File, error) {
	select { // a place in the limiter's queue outlives who has it, so there is one
	case s.segmentTurn <- struct{}{}:
		defer func() { <-s.segmentTurn }()
	case <-ctx.Done():
		return ipc.None{}, nil, ctx.Err()
	}
	if err := s.segments.Wait(ctx); err != nil {
		return ipc.None{}, nil, err
	}
	f, err := auditlog.NewSegment(s.o.AuditDir, c.First, s.o.SegmentSize)
	return ipc.None{}, f, err
}

func (s *Supervisor) sign(_ context.Context, c workerapi.SignRequest) (workerapi.SignReply, error) {
	public, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), c.Public)
	if err != nil {
		return workerapi.SignReply{}, err
	}
	chain, err := s.o.Authority.Sign(c.Sandbox, c.Name, public)
	return workerapi.SignReply{Chain: chain}, err
}

func (s *Supervisor) certify(_ context.Context, c workerapi.CertifyRequest) (workerapi.CertifyReply, error) {
	cert, err := s.o.Authority.Certify(c.Sandbox, c.Name, c.Public)
	return workerapi.CertifyReply{Certificate: cert}, err
}

// errNotRunning refuses names of sandboxes that do not run: a worker could fill the disk
// with them otherwise.
var errNotRunning = errors.New("no such sandbox is running")

func (s *Supervisor) runs(id string) bool {
	for _, box := range s.o.Identities() {
		if box.ID == id {
			return true
		}
	}
	return false
}

func (s *Supervisor) assign(_ context.Context, c workerapi.NameRequest) (workerapi.NameReply, error) {
	if !s.runs(c.Sandbox) {
		return workerapi.NameReply{}, errNotRunning
	}
	a, err := s.o.Names.Assign(c.Sandbox, c.Name)
	return workerapi.NameReply{Address: a}, err
}

func (s *Supervisor) name(_ context.Context, c workerapi.NameRequest) (workerapi.NameReply, error) {
	if !s.runs(c.Sandbox) {
		return workerapi.NameReply{}, errNotRunning
	}
	name, ok := s.o.Names.Name(c.Sandbox, c.Address)
	return workerapi.NameReply{Name: name, Known: ok}, nil
}
