package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"time"

	"github.com/elazarl/goproxy"
	"github.com/prometheus/client_golang/prometheus"

	"sallyport/gateway/bodies"
	"sallyport/gateway/credential"
	"sallyport/gateway/denials"
	"sallyport/gateway/http1"
	"sallyport/gateway/live"
	"sallyport/gateway/sniff"
	"sallyport/gateway/suspend"
	"sallyport/internal/connlimit"
	"sallyport/policy/limit"
)

// maxHeader bounds a request's head, in bytes.
const maxHeader = 128 << 10

var errClosed = errors.New("the gateway is shutting down")

// Options is what a Gateway works with. Fields without a default are needed.
type Options struct {
	Identities   Identities // needed by ServeTransparent
	Clients      Clients    // needed by ServeExplicit
	Names        Names      // needed by ServeTransparent
	Decider      Decider
	Recorder     Recorder
	Certificates Certificates
	Upstreams    Upstreams
	Broker       Broker
	Approvals    Approvals // nil: what needs approval is denied
	Logger       *slog.Logger
	Metrics      prometheus.Registerer

	// Exposures and Waker are needed by ServeInbound.
	Exposures Exposures
	Waker     Waker
	// Dial connects to an exposed port of a sandbox at its own address. Default: as
	// any process does.
	Dial func(ctx context.Context, sandboxID string, to netip.AddrPort) (net.Conn, error)
	// Inside reaches what listens on a sandbox's loopback address. Default: only
	// what listens on the sandbox's own address is reached.
	Inside Inside
	// Budget counts what limits bound. Default: one of its own.
	Budget *limit.Book
	// Found is after how many secrets that were found in answers of hosts which
	// they were never sent to a sandbox's requests are refused. Default: 5.
	Found int64
	// Revision is that of the policy that Decider decides by, for the records of
	// what is denied before that is asked. Default: none is recorded then.
	Revision func() string
	// Refusal is the address that the resolver gives for names that no rule
	// could allow. Needed by ServeTransparent.
	Refusal netip.Addr
	// FirstByteTimeout is how long a client that waits for its server to speak
	// is waited for, before policy is asked about a connection without a
	// protocol. Default: 2 s.
	FirstByteTimeout time.Duration
	// HandshakeTimeout bounds the time to say what a connection wants, the TLS
	// handshake, and each request's head. Default: 15 s.
	HandshakeTimeout time.Duration
	// IdleTimeout ends a kept-alive connection without a request, of HTTP/1.1 up to
	// an eighth later. Default: 5 min.
	IdleTimeout time.Duration
	// StallTimeout ends a connection whose client takes nothing off it while
	// something is on its way to it: with its buffers full it holds an upstream's
	// connection too. A paused sandbox is such a client. So it does with a stream of
	// HTTP/2 of which nothing is taken, while it holds memory to be decoded, and a request of
	// whose body nothing comes, while its upstream waits for it. Default: 5 min.
	StallTimeout time.Duration
	// ConnectionsPerSandbox bounds a sandbox's open connections, and its requests
	// under way on those of HTTP/2. Default: 1024.
	ConnectionsPerSandbox int
}

// Gateway carries what policy allows. Make one with New; it serves any number
// of listeners until Shutdown.
type Gateway struct {
	identities   Identities
	clients      Clients
	names        Names
	decider      Decider
	recorder     Recorder
	certificates Certificates
	upstreams    Upstreams
	broker       Broker
	approvals    Approvals
	holds        holds
	budget       *limit.Book
	logger       *slog.Logger
	metrics      *metrics
	revision     func() string
	refusal      netip.Addr
	firstByte    time.Duration
	handshake    time.Duration
	stall        time.Duration
	limit        int
	found        int64 // see FoundLimit

	proxy           *goproxy.ProxyHttpServer
	web             *http1.Server
	inward          *inward // nil where nothing comes in
	h2              *multiplexed
	bodyPolicy      bodyPolicy // nil where no policy has to see a body
	bodies          *bodies.Budget
	judging         chan struct{} // has one element for each body in Rego's form, which is large
	turns           *turns
	resets          *resets
	hellos          *turns // of TLS handshakes with sandboxes
	exposures       credential.Exposures
	denials         *denials.Aggregator
	live            live.Set
	unauthenticated *connlimit.Limit // connections to the explicit proxy
	suspended       *suspend.Set
	life            context.Context // of every connection, until Shutdown loses patience
	end             context.CancelFunc

	mu        sync.Mutex
	closing   bool
	listeners map[net.Listener]struct{}
	open      map[*connection]struct{}
	count     map[string]int // open connections by sandbox ID
	asked     map[string]int // requests of HTTP/2 under way, likewise
	work      sync.WaitGroup // goroutines of this Gateway's own
}

// New returns a Gateway that is not serving yet.
func New(o Options) (*Gateway, error) {
	switch {
	case o.Decider == nil, o.Recorder == nil, o.Certificates == nil, o.Upstreams == nil, o.Broker == nil, o.Logger == nil, o.Metrics == nil:
		return nil, errors.New("gateway: decider, recorder, certificates, upstreams, broker, logger and metrics are needed")
	case o.Identities != nil && (o.Names == nil || !o.Refusal.IsValid()):
		return nil, errors.New("gateway: transparent connections need names and a refusal address")
	}
	m, err := newMetrics(o.Metrics)
	if err != nil {
		return nil, fmt.Errorf("gateway: registering metrics: %w", err)
	}
	g := &Gateway{
		identities:      o.Identities,
		clients:         o.Clients,
		names:           o.Names,
		decider:         o.Decider,
		recorder:        o.Recorder,
		certificates:    o.Certificates,
		upstreams:       o.Upstreams,
		broker:          o.Broker,
		approvals:       o.Approvals,
		budget:          o.Budget,
		logger:          o.Logger,
		metrics:         m,
		revision:        o.Revision,
		refusal:         o.Refusal,
		firstByte:       cmp.Or(o.FirstByteTimeout, 2*time.Second),
		handshake:       cmp.Or(o.HandshakeTimeout, 15*time.Second),
		stall:           cmp.Or(o.StallTimeout, 5*time.Minute),
		limit:           cmp.Or(o.ConnectionsPerSandbox, 1024),
		found:           cmp.Or(o.Found, 5),
		proxy:           newProxy(o.Logger),
		unauthenticated: connlimit.New(maxUnauthenticated, maxUnauthenticatedFromOne, nil),
		suspended:       suspend.NewSet(o.Logger),
		listeners:       make(map[net.Listener]struct{}),
		open:            make(map[*connection]struct{}),
		count:           make(map[string]int),
		asked:           make(map[string]int),
	}
	if g.revision == nil {
		g.revision = func() string { return "" }
	}
	if g.budget == nil {
		g.budget = limit.NewBook(nil)
	}
	err = o.Metrics.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "sallyport_gateway_decoding_bytes", Help: "Memory that is held to decode answers that are searched.",
	}, func() float64 { return float64(g.exposures.Decoding()) }))
	if err != nil {
		return nil, fmt.Errorf("gateway: registering metrics: %w", err)
	}
	g.life, g.end = context.WithCancel(context.Background())
	g.holds.begin()
	g.denials = denials.New(g.enqueue)
	g.bodyPolicy, _ = o.Decider.(bodyPolicy)
	g.bodies = bodies.NewBudget(m.bodies, m.crowded)
	g.judging = make(chan struct{}, max(2, runtime.GOMAXPROCS(0)))
	g.turns, g.hellos, g.resets = newTurns(), newTurns(), newResets()
	carryRequests(g.proxy)
	g.web = &http1.Server{
		HeadTimeout: g.handshake,
		IdleTimeout: o.IdleTimeout,
		MaxHead:     maxHeader,
		Refuse:      g.unreadable,
		Budget: func(ctx context.Context) http1.Budget {
			return &bodies.Heads{Of: g.bodies, Who: func() string {
				if s := sessionOf(ctx); s != nil {
					return s.identity.ID
				}
				return ""
			}}
		},
		Silent: func(ctx context.Context) {
			if s := sessionOf(ctx); s != nil {
				g.silent(s, silence)
			}
		},
		Logger: o.Logger,
	}
	if o.Exposures != nil && o.Waker != nil {
		g.inward = g.newInward(o)
	}
	g.h2 = newMultiplexed(cmp.Or(o.IdleTimeout, 5*time.Minute), g.handshake, o.Logger)
	return g, nil
}

// listen adopts a listener, unless Shutdown has begun; the function it returns
// lets go of it.
func (g *Gateway) listen(ctx context.Context, ln net.Listener) (release func(), ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closing {
		_ = ln.Close()
		return nil, false
	}
	g.listeners[ln] = struct{}{}
	stop := context.AfterFunc(ctx, func() { _ = ln.Close() })
	return func() {
		stop()
		_ = ln.Close()
		g.mu.Lock()
		delete(g.listeners, ln)
		g.mu.Unlock()
	}, true
}

// ending tells whether Shutdown has begun.
func (g *Gateway) ending() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.closing
}

// enter makes a place for a sandbox's connection, or says that it has too many.
func (g *Gateway) enter(conn net.Conn, p *peer, t target) (*connection, error) {
	c := &connection{Conn: sniff.Conn{Conn: conn}, gateway: g, session: session{peer: p, target: t}}
	c.life = &c.lifetime
	id := p.identity.ID
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.closing:
		return nil, errClosed
	case g.count[id] >= g.limit:
		return nil, errTooMany
	}
	g.count[id]++
	g.open[c] = struct{}{}
	g.metrics.connections.Inc()
	c.lifetime.begin(g.life, conn)
	c.release = func() {
		c.lifetime.cancel()
		g.live.Leave(&c.handle)
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.open, c)
		if g.count[id]--; g.count[id] == 0 {
			delete(g.count, id)
		}
		g.metrics.connections.Dec()
	}
	return c, nil
}

// Forget drops what a sandbox's answers are searched for. Call it when the
// sandbox, or the client, is gone.
func (g *Gateway) Forget(id string) {
	g.exposures.Forget(id)
}

// enterStream makes a place for a sandbox's request, of which HTTP/2 has many on one
// connection, and tells whether that is one of the last.
func (g *Gateway) enterStream(id string) (ok, last bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.asked[id] >= g.limit {
		return false, g.closing
	}
	g.asked[id]++
	return true, g.closing
}

// leaveStream gives the place back.
func (g *Gateway) leaveStream(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.asked[id]--; g.asked[id] == 0 {
		delete(g.asked, id)
	}
}

// Shutdown takes no more connections and waits for what is under way until ctx
// is done, then ends it. It returns ctx's error when it had to.
func (g *Gateway) Shutdown(ctx context.Context) error {
	g.mu.Lock()
	g.closing = true
	for ln := range g.listeners {
		_ = ln.Close()
	}
	g.mu.Unlock()
	g.suspended.Close()
	g.holds.end()

	done := make(chan struct{})
	go func() {
		defer close(done)
		over := make(chan struct{})
		defer close(over)
		go g.h2.shutdown(over)
		var inward sync.WaitGroup
		if g.inward != nil {
			inward.Go(func() { _ = g.inward.web.Shutdown(ctx) })
		}
		_ = g.web.Shutdown(ctx)
		inward.Wait()
		g.work.Wait()
	}()
	defer g.denials.Flush()
	defer g.end()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	g.end()
	g.web.Close()
	if g.inward != nil {
		g.inward.web.Close()
	}
	g.mu.Lock()
	open := make([]*connection, 0, len(g.open))
	for o := range g.open {
		open = append(open, o)
	}
	g.mu.Unlock()
	for _, o := range open {
		_ = o.Close()
	}
	<-done
	return ctx.Err()
}
