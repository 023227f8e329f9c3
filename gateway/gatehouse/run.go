package gatehouse

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/common/expfmt"

	"sallyport/audit"
	"sallyport/gateway"
	"sallyport/gateway/mitm"
	"sallyport/gateway/resolver"
	"sallyport/gateway/upstream"
	"sallyport/internal/ipc"
	"sallyport/internal/jail"
	"sallyport/policy"
	"sallyport/policy/limit"
)

// Run is the process: it goes into its cell and serves until the Warden has
// enough of it. It returns an error where it was not started by a Warden.
func Run() error {
	in, err := Enter()
	if err != nil {
		return err
	}
	return in.peer.Serve()
}

// Enter goes into the cell.
func Enter() (*Worker, error) {
	if err := jail.Enter(); err != nil {
		return nil, err
	}
	conn, err := ipc.Inherited(os.NewFile(3, "link"))
	if err != nil {
		return nil, fmt.Errorf("the daemon starts this by itself: %w", err)
	}
	state, err := jail.Confine(systemFiles()...)
	if err != nil {
		return nil, err
	}
	gateway.Tune()
	return newWorker(conn, state), nil
}

// Worker is what the process is made of.
type Worker struct {
	peer    *ipc.Peer
	Methods map[ipc.Method]ipc.Handler
	state   jail.State
	logger  *slog.Logger
	level   slog.LevelVar
	metrics *prometheus.Registry
	ctx     context.Context // until MethodStop, or the link's end
	cancel  context.CancelFunc

	engine     policy.Engine
	audit      *audit.Log
	broker     *broker
	approvals  *approvalClient
	leaves     *mitm.Leaves
	names      *nameCache
	upstreams  *upstream.Pool
	clients    gateway.Roster
	exposed    gateway.Exposed
	dns        *resolver.Server
	gateway    *gateway.Gateway
	counters   *limit.Book
	firstEvent uint64 // number of the first event that it writes
	files      map[string]*os.File
	proxyTLS   *tls.Config

	work sync.WaitGroup // what serves

	mu         sync.RWMutex
	identities map[netip.Addr]policy.Sandbox
	prepared   *policy.Policy // by MethodPrepare, for MethodUse
}

func newWorker(conn *net.UnixConn, state jail.State) *Worker {
	in := &Worker{state: state, metrics: prometheus.NewRegistry(), identities: map[netip.Addr]policy.Sandbox{}}
	in.logger = slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: &in.level}))
	in.ctx, in.cancel = context.WithCancel(context.Background())
	in.Methods = map[ipc.Method]ipc.Handler{
		MethodStart:    ipc.Handle(in.start),
		MethodServe:    ipc.Handle(in.serve),
		MethodPrepare:  ipc.Handle(in.prepare),
		MethodUse:      ipc.Handle(in.use),
		MethodIdentity: ipc.Handle(in.identity),
		MethodClients:  ipc.Handle(in.setClients),
		MethodForget:   ipc.Handle(in.forget),
		MethodRevoke:   ipc.Handle(in.revoke),
		MethodAppend:   ipc.Handle(in.append),
		MethodStats:    ipc.Handle(in.stats),
		MethodGather:   ipc.Handle(in.gather),
		MethodStop:     ipc.Handle(in.stop),
		MethodAnswered: ipc.Handle(func(ctx context.Context, c AnsweredRequest) (ipc.None, error) { return in.approvals.answered(ctx, c) }),
		MethodCounts:   ipc.Handle(in.counts),
		MethodRestore:  ipc.Handle(in.restore),
		MethodReset:    ipc.Handle(in.reset),
		MethodSuspend:  ipc.Handle(in.slumber),

		MethodPublished: ipc.Handle(in.setExposures),
	}
	in.peer = ipc.New(conn, ipc.Options{Files: true, Errors: Errors, MaxFrame: MaxFrame, MaxOut: MaxCall, Methods: in.Methods})
	return in
}

// StartRequest makes all parts.
func (in *Worker) start(ctx context.Context, s StartRequest) (jail.State, error) {
	in.level.Set(slog.Level(s.Level))
	in.files = map[string]*os.File{}
	for i, name := range s.Files {
		in.files[name] = os.NewFile(uintptr(4+i), name)
	}
	p, err := in.compile(ctx, s.Policy)
	if err != nil {
		return jail.State{}, err
	}
	in.engine.Swap(p)
	if len(s.Certificate) > 0 {
		cert, err := tls.X509KeyPair(s.Certificate, s.Key)
		if err != nil {
			return jail.State{}, fmt.Errorf("proxy: %w", err)
		}
		in.proxyTLS = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	}
	in.audit, err = audit.Continue(audit.Handover{Next: s.Next, File: in.files[FileLog], Size: s.Size}, audit.Options{
		SegmentSize: s.SegmentSize, Logger: in.logger, Segment: in.segment,
	})
	if err != nil {
		return jail.State{}, err
	}
	in.counters, in.firstEvent = limit.NewBook(nil), s.Next
	in.broker = newBroker(in.peer, in.engine.Bound, in.engine.AllowsShort)
	in.approvals = newApprovalClient(in.peer)
	in.leaves = mitm.NewLeaves(in.sign)
	in.names = newNameCache(in.peer)
	in.upstreams = upstream.New(upstream.Options{Local: in.local, Logins: in.broker, Logger: in.logger})
	in.dns = resolver.NewServer(resolver.Options{
		Table: in.names, Identify: in.identify, Decide: in.engine.Decide, Recorder: in.audit, Logger: in.logger, Metrics: in.metrics,
	})
	in.gateway, err = gateway.New(gateway.Options{
		Identities: identities{in}, Clients: &in.clients, Decider: &in.engine, Revision: in.engine.Revision, Recorder: in.audit,
		Names: gatewayNames{in.names, in.dns}, Refusal: resolver.Refusal,
		Certificates: in.leaves, Upstreams: in.upstreams, Broker: in.broker, Approvals: in.approvals, Logger: in.logger, Metrics: in.metrics,
		Budget: in.counters, Found: s.Found, Exposures: &in.exposed, Waker: Sandboxes{in.peer}, Dial: Sandboxes{in.peer}.Dial, Inside: Sandboxes{in.peer},
	})
	if err != nil {
		return jail.State{}, err
	}
	in.engine.Follow(in.changed)
	prometheus.WrapRegistererWithPrefix(MetricsPrefix, in.metrics).MustRegister(collectors.NewGoCollector(),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "recalled_decisions_total",
			Help: "Decisions made from an answer that had been kept for the same input.",
		}, func() float64 { return float64(in.engine.Recalled()) }))
	in.work.Go(func() { in.broker.run(in.ctx) })
	in.work.Go(func() { in.engine.Watch(in.ctx) })
	// What compiling a policy leaves is more than what lives, and the collector,
	// tuned for requests, would let it lie. Nobody waits for an answer yet.
	debug.FreeOSMemory()
	return in.state, nil
}

// serve takes connections from now on.
func (in *Worker) serve(_ context.Context, c ServeRequest) (ipc.None, error) {
	in.mu.Lock()
	in.identities = c.Identities
	in.mu.Unlock()
	in.clients.Replace(c.Clients)
	in.exposed.Replace(c.Exposures)
	var transparent, explicit, inbound, dnsTCP net.Listener
	var dns net.PacketConn
	for name, to := range map[string]*net.Listener{FileTransparent: &transparent, FileExplicit: &explicit, FileInbound: &inbound, FileDNSTCP: &dnsTCP} {
		f := in.files[name]
		if f == nil {
			continue
		}
		var err error
		if *to, err = net.FileListener(f); err != nil {
			return ipc.None{}, fmt.Errorf("taking the listener %s over: %w", name, err)
		}
		_ = f.Close()
	}
	if f := in.files[FileDNS]; f != nil {
		var err error
		if dns, err = net.FilePacketConn(f); err != nil {
			return ipc.None{}, fmt.Errorf("taking the socket %s over: %w", FileDNS, err)
		}
		_ = f.Close()
	}
	if transparent != nil {
		in.keep("transparent", func() error { return in.gateway.ServeTransparent(in.ctx, transparent) })
	}
	if explicit != nil {
		if in.proxyTLS != nil {
			explicit = tls.NewListener(explicit, in.proxyTLS)
		}
		in.keep("explicit", func() error { return in.gateway.ServeExplicit(in.ctx, explicit) })
	}
	if inbound != nil {
		in.keep("inbound", func() error { return in.gateway.ServeInbound(in.ctx, inbound) })
	}
	if dns != nil && dnsTCP != nil {
		in.keep("dns", func() error { return in.dns.Serve(in.ctx, dns, dnsTCP) })
	}
	return ipc.None{}, nil
}

// keep runs what must not end before it is told to: else the process ends, and
// another one is started.
func (in *Worker) keep(what string, f func() error) {
	in.work.Go(func() {
		if err := f(); in.ctx.Err() == nil {
			in.logger.Error("the gateway stopped serving", "listener", what, "error", err)
			_ = in.peer.Close()
		}
	})
}

// stop drains for a time, then ends what is left. The log is whole afterwards.
func (in *Worker) stop(_ context.Context, c StopRequest) (StopReply, error) {
	in.cancel()
	ctx, cancel := context.WithTimeout(context.Background(), c.Within)
	defer cancel()
	err := in.gateway.Shutdown(ctx)
	in.work.Wait()
	in.upstreams.Close()
	late := errors.Is(err, context.DeadlineExceeded)
	if late {
		err = nil
	}
	err = errors.Join(err, in.audit.Close())
	return StopReply{in.audit.Stats(), late}, err
}

// document is where the Warden puts a policy's; the team's Rego is beside it.
func DocumentPath(revision string) string { return "/policy/" + revision + "/document.json" }
func TeamPath(revision string) string     { return "/policy/" + revision + "/team" }

// compile makes the policy that the Warden has put into this root, and insists
// that it is the one meant.
func (in *Worker) compile(ctx context.Context, revision string) (*policy.Policy, error) {
	root := documentRoot(in.state.Root)
	text, err := os.ReadFile(root + DocumentPath(revision))
	if err != nil {
		return nil, err
	}
	var doc policy.Document
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&doc); err != nil {
		return nil, fmt.Errorf("the policy's document: %w", err)
	}
	if doc.Policy.Dir != "" {
		doc.Policy.Dir = root + TeamPath(revision)
	}
	p, err := policy.Compile(ctx, doc, policy.Options{})
	if err != nil {
		return nil, err
	}
	if p.Revision() != revision {
		return nil, fmt.Errorf("the policy is %s, not %s: did its files change just now?", p.Revision(), revision)
	}
	return p, nil
}

func (in *Worker) prepare(ctx context.Context, c PolicyRequest) (ipc.None, error) {
	p, err := in.compile(ctx, c.Policy)
	if err != nil {
		return ipc.None{}, err
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.prepared = p
	return ipc.None{}, nil
}

func (in *Worker) use(_ context.Context, c PolicyRequest) (ipc.None, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.prepared == nil || in.prepared.Revision() != c.Policy {
		return ipc.None{}, fmt.Errorf("policy %s was not prepared", c.Policy)
	}
	in.engine.Swap(in.prepared)
	in.prepared = nil
	in.broker.clear(time.Time{})
	return ipc.None{}, nil
}

func (in *Worker) identity(_ context.Context, c IdentityRequest) (ipc.None, error) {
	in.mu.Lock()
	was, known := in.identities[c.Address]
	if c.Sandbox == nil {
		delete(in.identities, c.Address)
	} else {
		in.identities[c.Address] = *c.Sandbox
	}
	in.mu.Unlock()
	if known && c.Sandbox != nil && !maps.Equal(was.Tags, c.Sandbox.Tags) {
		in.gateway.Redecide() // what its old tags gave it ends
	}
	return ipc.None{}, nil
}

func (in *Worker) setClients(_ context.Context, c ClientsRequest) (ipc.None, error) {
	in.clients.Replace(c.Clients)
	in.gateway.Redecide() // what goes on for one that has been removed ends
	return ipc.None{}, nil
}

func (in *Worker) forget(_ context.Context, c ForgetRequest) (ipc.None, error) {
	in.upstreams.Forget(c.ID)
	in.leaves.Forget(c.ID)
	in.names.forget(c.ID)
	in.gateway.Forget(c.ID)
	return ipc.None{}, nil
}

// revoke ends all leases.
func (in *Worker) revoke(context.Context, ipc.None) (ipc.None, error) {
	in.broker.clear(time.Time{})
	return ipc.None{}, nil
}

// CountsReply says what has changed. What is recorded has been counted before, so that
// the log's end comes first.
func (in *Worker) counts(_ context.Context, c CountsRequest) (CountsReply, error) {
	position := in.firstEvent - 1 + in.audit.Stats().Events
	list, stamp := in.counters.Changed(c.Since, c.Most)
	return CountsReply{position, stamp, list}, nil
}

func (in *Worker) restore(_ context.Context, c RestoreRequest) (ipc.None, error) {
	if left := in.counters.Restore(c.Counts); left > 0 {
		return ipc.None{}, fmt.Errorf("there is no room for %d counters of limits", left)
	}
	return ipc.None{}, nil
}

func (in *Worker) reset(_ context.Context, c ResetRequest) (ipc.None, error) {
	in.counters.Reset(c.Limit, c.Subject)
	return ipc.None{}, nil
}

func (in *Worker) append(ctx context.Context, c AppendRequest) (ipc.None, error) {
	return ipc.None{}, in.audit.Append(ctx, c.Events...)
}

func (in *Worker) stats(context.Context, ipc.None) (audit.Stats, error) {
	return in.audit.Stats(), nil
}

// MetricsPrefix is of the process's own.
const MetricsPrefix = "sallyport_gateway_"

func (in *Worker) gather(context.Context, ipc.None) (GatherReply, error) {
	families, err := in.metrics.Gather()
	var text bytes.Buffer
	for _, f := range families {
		if _, werr := expfmt.MetricFamilyToText(&text, f); werr != nil {
			err = errors.Join(err, werr)
		}
	}
	return GatherReply{text.String()}, err
}

// identify finds the sandbox behind an address.
func (in *Worker) identify(a netip.Addr) (policy.Sandbox, bool) {
	in.mu.RLock()
	defer in.mu.RUnlock()
	s, ok := in.identities[a]
	return s, ok
}

type identities struct{ in *Worker }

func (i identities) ByAddress(a netip.Addr) (gateway.Identity, bool) {
	s, ok := i.in.identify(a)
	return gateway.Identity{Sandbox: s, Address: a}, ok
}

// sign is a mitm.Signer.
func (in *Worker) sign(sandboxID, name string, public *ecdsa.PublicKey) ([][]byte, error) {
	point, err := public.Bytes()
	if err != nil {
		return nil, err
	}
	var got SignReply
	err = in.peer.Call(in.ctx, MethodSign, SignRequest{sandboxID, name, point}, &got)
	return got.Chain, err
}

// local asks for each connection. Where nobody answers, every address is this
// host's: nothing is dialled.
func (in *Worker) local() []netip.Prefix {
	var got LocalReply
	if err := in.peer.Call(in.ctx, MethodLocal, ipc.None{}, &got); err != nil {
		return []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
	}
	return got.Prefixes
}

// segment is audit.Options.Segment.
func (in *Worker) segment(first uint64) (*os.File, error) {
	f, err := in.peer.CallFile(context.Background(), MethodSegment, SegmentRequest{first}, &ipc.None{})
	if err == nil && f == nil {
		err = errors.New("no segment came")
	}
	return f, err
}
