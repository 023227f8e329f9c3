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
	in, err := enter()
	if err != nil {
		return err
	}
	return in.peer.Serve()
}

// enter goes into the cell.
func enter() (*inside, error) {
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
	return newInside(conn, state), nil
}

// inside is what the process is made of.
type inside struct {
	peer    *ipc.Peer
	methods map[ipc.Method]ipc.Handler
	state   jail.State
	log     *slog.Logger
	level   slog.LevelVar
	metrics *prometheus.Registry
	ctx     context.Context // until callStop, or the link's end
	cancel  context.CancelFunc

	engine    policy.Engine
	trail     *audit.Log
	broker    *broker
	desk      *desk
	leaves    *mitm.Leaves
	names     *names
	upstreams *upstream.Pool
	clients   gateway.Roster
	exposed   gateway.Exposed
	dns       *resolver.Server
	gate      *gateway.Gateway
	book      *limit.Book
	begins    uint64 // number of the first event that it writes
	files     map[string]*os.File
	proxyTLS  *tls.Config

	work sync.WaitGroup // what serves

	mu         sync.RWMutex
	identities map[netip.Addr]policy.Sandbox
	prepared   *policy.Policy // by callPrepare, for callUse
}

func newInside(conn *net.UnixConn, state jail.State) *inside {
	in := &inside{state: state, metrics: prometheus.NewRegistry(), identities: map[netip.Addr]policy.Sandbox{}}
	in.log = slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: &in.level}))
	in.ctx, in.cancel = context.WithCancel(context.Background())
	in.methods = map[ipc.Method]ipc.Handler{
		callStart:    ipc.Handle(in.start),
		callServe:    ipc.Handle(in.serve),
		callPrepare:  ipc.Handle(in.prepare),
		callUse:      ipc.Handle(in.use),
		callIdentity: ipc.Handle(in.identity),
		callClients:  ipc.Handle(in.setClients),
		callForget:   ipc.Handle(in.forget),
		callRevoke:   ipc.Handle(in.revoke),
		callAppend:   ipc.Handle(in.append),
		callStats:    ipc.Handle(in.stats),
		callGather:   ipc.Handle(in.gather),
		callStop:     ipc.Handle(in.stop),
		callAnswered: ipc.Handle(func(ctx context.Context, c answeredCall) (ipc.None, error) { return in.desk.answered(ctx, c) }),
		callCounts:   ipc.Handle(in.counts),
		callRestore:  ipc.Handle(in.restore),
		callReset:    ipc.Handle(in.reset),
		callSlumber:  ipc.Handle(in.slumber),

		callExposures: ipc.Handle(in.setExposures),
	}
	in.peer = ipc.New(conn, ipc.Options{Files: true, Errors: known, MaxFrame: maxFrame, MaxOut: maxAsk, Methods: in.methods})
	return in
}

// start makes all parts.
func (in *inside) start(ctx context.Context, s start) (jail.State, error) {
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
	in.trail, err = audit.Continue(audit.Handover{Next: s.Next, File: in.files[fileLog], Size: s.Size}, audit.Options{
		SegmentSize: s.SegmentSize, Logger: in.log, Segment: in.segment,
	})
	if err != nil {
		return jail.State{}, err
	}
	in.book, in.begins = limit.NewBook(nil), s.Next
	in.broker = newBroker(in.peer, in.engine.Bound, in.engine.AllowsShort)
	in.desk = newDesk(in.peer)
	in.leaves = mitm.NewLeaves(in.sign)
	in.names = newNames(in.peer)
	in.upstreams = upstream.New(upstream.Options{Local: in.local, Logins: in.broker, Logger: in.log})
	in.dns = resolver.NewServer(resolver.Options{
		Table: in.names, Identify: in.identify, Decide: in.engine.Decide, Recorder: in.trail, Logger: in.log, Metrics: in.metrics,
	})
	in.gate, err = gateway.New(gateway.Options{
		Identities: identities{in}, Clients: &in.clients, Decider: &in.engine, Revision: in.engine.Revision, Recorder: in.trail,
		Names: gatewayNames{in.names, in.dns}, Refusal: resolver.Refusal,
		Certificates: in.leaves, Upstreams: in.upstreams, Broker: in.broker, Approvals: in.desk, Logger: in.log, Metrics: in.metrics,
		Budget: in.book, Found: s.Found, Exposures: &in.exposed, Waker: waker{in.peer}, Dial: waker{in.peer}.Dial, Inside: waker{in.peer},
	})
	if err != nil {
		return jail.State{}, err
	}
	in.engine.Follow(in.changed)
	prometheus.WrapRegistererWithPrefix(metricsPrefix, in.metrics).MustRegister(collectors.NewGoCollector(),
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
func (in *inside) serve(_ context.Context, c serveCall) (ipc.None, error) {
	in.mu.Lock()
	in.identities = c.Identities
	in.mu.Unlock()
	in.clients.Replace(c.Clients)
	in.exposed.Replace(c.Exposures)
	var transparent, explicit, inbound, dnsTCP net.Listener
	var dns net.PacketConn
	for name, to := range map[string]*net.Listener{fileTransparent: &transparent, fileExplicit: &explicit, fileInbound: &inbound, fileDNSTCP: &dnsTCP} {
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
	if f := in.files[fileDNS]; f != nil {
		var err error
		if dns, err = net.FilePacketConn(f); err != nil {
			return ipc.None{}, fmt.Errorf("taking the socket %s over: %w", fileDNS, err)
		}
		_ = f.Close()
	}
	if transparent != nil {
		in.keep("transparent", func() error { return in.gate.ServeTransparent(in.ctx, transparent) })
	}
	if explicit != nil {
		if in.proxyTLS != nil {
			explicit = tls.NewListener(explicit, in.proxyTLS)
		}
		in.keep("explicit", func() error { return in.gate.ServeExplicit(in.ctx, explicit) })
	}
	if inbound != nil {
		in.keep("inbound", func() error { return in.gate.ServeInbound(in.ctx, inbound) })
	}
	if dns != nil && dnsTCP != nil {
		in.keep("dns", func() error { return in.dns.Serve(in.ctx, dns, dnsTCP) })
	}
	return ipc.None{}, nil
}

// keep runs what must not end before it is told to: else the process ends, and
// another one is started.
func (in *inside) keep(what string, f func() error) {
	in.work.Go(func() {
		if err := f(); in.ctx.Err() == nil {
			in.log.Error("the gateway stopped serving", "listener", what, "error", err)
			_ = in.peer.Close()
		}
	})
}

// stop drains for a time, then ends what is left. The log is whole afterwards.
func (in *inside) stop(_ context.Context, c stopCall) (stopped, error) {
	in.cancel()
	ctx, cancel := context.WithTimeout(context.Background(), c.Within)
	defer cancel()
	err := in.gate.Shutdown(ctx)
	in.work.Wait()
	in.upstreams.Close()
	late := errors.Is(err, context.DeadlineExceeded)
	if late {
		err = nil
	}
	err = errors.Join(err, in.trail.Close())
	return stopped{in.trail.Stats(), late}, err
}

// document is where the Warden puts a policy's; the team's Rego is beside it.
func documentPath(revision string) string { return "/policy/" + revision + "/document.json" }
func teamPath(revision string) string     { return "/policy/" + revision + "/team" }

// compile makes the policy that the Warden has put into this root, and insists
// that it is the one meant.
func (in *inside) compile(ctx context.Context, revision string) (*policy.Policy, error) {
	root := documentRoot(in.state.Root)
	text, err := os.ReadFile(root + documentPath(revision))
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
		doc.Policy.Dir = root + teamPath(revision)
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

func (in *inside) prepare(ctx context.Context, c useCall) (ipc.None, error) {
	p, err := in.compile(ctx, c.Policy)
	if err != nil {
		return ipc.None{}, err
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.prepared = p
	return ipc.None{}, nil
}

func (in *inside) use(_ context.Context, c useCall) (ipc.None, error) {
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

func (in *inside) identity(_ context.Context, c identityCall) (ipc.None, error) {
	in.mu.Lock()
	was, known := in.identities[c.Address]
	if c.Sandbox == nil {
		delete(in.identities, c.Address)
	} else {
		in.identities[c.Address] = *c.Sandbox
	}
	in.mu.Unlock()
	if known && c.Sandbox != nil && !maps.Equal(was.Tags, c.Sandbox.Tags) {
		in.gate.Redecide() // what its old tags gave it ends
	}
	return ipc.None{}, nil
}

func (in *inside) setClients(_ context.Context, c clientsCall) (ipc.None, error) {
	in.clients.Replace(c.Clients)
	in.gate.Redecide() // what goes on for one that has been removed ends
	return ipc.None{}, nil
}

func (in *inside) forget(_ context.Context, c forgetCall) (ipc.None, error) {
	in.upstreams.Forget(c.ID)
	in.leaves.Forget(c.ID)
	in.names.forget(c.ID)
	in.gate.Forget(c.ID)
	return ipc.None{}, nil
}

// revoke ends all leases.
func (in *inside) revoke(context.Context, ipc.None) (ipc.None, error) {
	in.broker.clear(time.Time{})
	return ipc.None{}, nil
}

// counts says what has changed. What is recorded has been counted before, so that
// the log's end comes first.
func (in *inside) counts(_ context.Context, c countsCall) (counts, error) {
	position := in.begins - 1 + in.trail.Stats().Events
	list, stamp := in.book.Changed(c.Since, c.Most)
	return counts{position, stamp, list}, nil
}

func (in *inside) restore(_ context.Context, c restoreCall) (ipc.None, error) {
	if left := in.book.Restore(c.Counts); left > 0 {
		return ipc.None{}, fmt.Errorf("there is no room for %d counters of limits", left)
	}
	return ipc.None{}, nil
}

func (in *inside) reset(_ context.Context, c resetCall) (ipc.None, error) {
	in.book.Reset(c.Limit, c.Subject)
	return ipc.None{}, nil
}

func (in *inside) append(ctx context.Context, c appendCall) (ipc.None, error) {
	return ipc.None{}, in.trail.Append(ctx, c.Events...)
}

func (in *inside) stats(context.Context, ipc.None) (audit.Stats, error) {
	return in.trail.Stats(), nil
}

// metricsPrefix is of the process's own.
const metricsPrefix = "sallyport_gateway_"

func (in *inside) gather(context.Context, ipc.None) (gathered, error) {
	families, err := in.metrics.Gather()
	var text bytes.Buffer
	for _, f := range families {
		if _, werr := expfmt.MetricFamilyToText(&text, f); werr != nil {
			err = errors.Join(err, werr)
		}
	}
	return gathered{text.String()}, err
}

// identify finds the sandbox behind an address.
func (in *inside) identify(a netip.Addr) (policy.Sandbox, bool) {
	in.mu.RLock()
	defer in.mu.RUnlock()
	s, ok := in.identities[a]
	return s, ok
}

type identities struct{ in *inside }

func (i identities) ByAddress(a netip.Addr) (gateway.Identity, bool) {
	s, ok := i.in.identify(a)
	return gateway.Identity{Sandbox: s, Address: a}, ok
}

// sign is a mitm.Signer.
func (in *inside) sign(sandboxID, name string, public *ecdsa.PublicKey) ([][]byte, error) {
	point, err := public.Bytes()
	if err != nil {
		return nil, err
	}
	var got signed
	err = in.peer.Call(in.ctx, callSign, signCall{sandboxID, name, point}, &got)
	return got.Chain, err
}

// local asks for each connection. Where nobody answers, every address is this
// host's: nothing is dialled.
func (in *inside) local() []netip.Prefix {
	var got localReply
	if err := in.peer.Call(in.ctx, callLocal, ipc.None{}, &got); err != nil {
		return []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
	}
	return got.Prefixes
}

// segment is audit.Options.Segment.
func (in *inside) segment(first uint64) (*os.File, error) {
	f, err := in.peer.CallFile(context.Background(), callSegment, segmentCall{first}, &ipc.None{})
	if err == nil && f == nil {
		err = errors.New("no segment came")
	}
	return f, err
}
