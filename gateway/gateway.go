// Package gateway is the only way out of a sandbox.
//
// It takes the connections that the datapath steers to it (ServeTransparent) and those of
// authenticated clients elsewhere (ServeExplicit), finds the sandbox and the destination,
// asks the policy, records the decision, and only then resolves, dials, injects and sends.
// The life of a request is on one page, request.go: admit, decide, record, inject, send,
// scrub, complete. goproxy copies responses; package proxy alone knows it. Package inbound carries
// requests of this host to published ports of sandboxes.
//
// Responses are scanned for every secret that was injected for their sandbox so far,
// whichever host they come from. Secrets of other sandboxes are not looked for.
//
// It guarantees that no byte leaves for a destination before a durable allow decision, and
// that a request that cannot be decided is denied. It does not guarantee anything about
// what an allowed upstream does with a request.
package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sallyport/gateway/access"
	"sallyport/gateway/bodies"
	"sallyport/gateway/credential/sent"
	"sallyport/gateway/denials"
	"sallyport/gateway/http1"
	"sallyport/gateway/inbound"
	"sallyport/gateway/live"
	"sallyport/gateway/metrics"
	"sallyport/gateway/proxy"
	"sallyport/gateway/sniff"
	"sallyport/gateway/suspend"
	"sallyport/gateway/turn"
	"sallyport/internal/connlimit"
	"sallyport/internal/ratelimit"
	"sallyport/policy/limit"
)

// maxHeader bounds a request's head, in bytes.
const maxHeader = 128 << 10

var errClosed = errors.New("the gateway is shutting down")

// Gateway carries the requests that policy allows. Make one with New; it serves any number
// of listeners until Shutdown.
type Gateway struct {
	Options // with their defaults

	holds   holds
	metrics *metrics.Metrics

	proxy           http.Handler
	web             *http1.Server
	inbound         *inbound.Server // nil where nothing comes in
	routed          *inbound.Server // likewise, by a Router
	h2              *http2Servers
	bodyPolicy      bodyPolicy // nil where no policy has to see a body
	bodies          *bodies.Budget
	judging         chan struct{} // has one element for each body in Rego's form, which is large
	turns           *turn.Set
	resets          *ratelimit.BySource // requests of HTTP/2 that are reset, by sandbox ID
	hellos          *turn.Set           // of TLS handshakes with sandboxes
	secrets         sent.BySandbox
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
	m, err := metrics.New(o.Metrics)
	if err != nil {
		return nil, fmt.Errorf("gateway: registering metrics: %w", err)
	}
	o.FirstByteTimeout = cmp.Or(o.FirstByteTimeout, 2*time.Second)
	o.HandshakeTimeout = cmp.Or(o.HandshakeTimeout, 15*time.Second)
	o.StallTimeout = cmp.Or(o.StallTimeout, 5*time.Minute)
	o.ConnectionsPerSandbox = cmp.Or(o.ConnectionsPerSandbox, 1024)
	o.Found = cmp.Or(o.Found, 5)
	if o.Revision == nil {
		o.Revision = func() string { return "" }
	}
	if o.Budget == nil {
		o.Budget = limit.NewBook(nil)
	}
	g := &Gateway{
		Options:         o,
		metrics:         m,
		proxy:           proxy.New(o.Logger),
		unauthenticated: connlimit.New(maxUnauthenticated, maxUnauthenticatedFromOne, nil),
		suspended:       suspend.NewSet(o.Logger),
		listeners:       make(map[net.Listener]struct{}),
		open:            make(map[*connection]struct{}),
		count:           make(map[string]int),
		asked:           make(map[string]int),
	}
	err = o.Metrics.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "sallyport_gateway_decoding_bytes", Help: "Memory that is held to decode answers that are searched.",
	}, func() float64 { return float64(g.secrets.Decoding()) }))
	if err != nil {
		return nil, fmt.Errorf("gateway: registering metrics: %w", err)
	}
	g.life, g.end = context.WithCancel(context.Background())
	g.holds.begin()
	g.secrets.Keep = o.Keep
	g.denials = denials.New(g.enqueueDenial)
	g.bodyPolicy, _ = o.Decider.(bodyPolicy)
	g.bodies = bodies.NewBudget(m.Bodies, m.Crowded)
	g.judging = make(chan struct{}, max(2, runtime.GOMAXPROCS(0)))
	g.turns, g.hellos, g.resets = turn.NewSet(), turn.NewSet(), ratelimit.New(resetsPerSecond, resetsAtOnce, maxResetters)
	g.web = &http1.Server{
		HeadTimeout: g.HandshakeTimeout,
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
	if o.Ports != nil && o.Waker != nil {
		of := inbound.Options{
			Ports: o.Ports, Waker: o.Waker, Dial: o.Dial, Loopback: o.Loopback,
			Decide: g.decide, Revision: g.Revision, Live: &g.live, Recorder: o.Recorder, Enqueue: g.enqueue, Denials: g.denials,
			Bodies: g.bodies, Metrics: m, Logger: o.Logger, Life: g.life, HeadTimeout: g.HandshakeTimeout, StallTimeout: g.StallTimeout,
		}
		g.inbound = inbound.New(of)
		if o.Router != nil {
			of.Router, of.Ports, of.Loopback = o.Router, new(access.Ports), nil
			g.routed = inbound.New(of)
		}
	}
	g.h2 = newHTTP2Servers(cmp.Or(o.IdleTimeout, 5*time.Minute), g.HandshakeTimeout, o.Logger)
	return g, nil
}

// ServeInbound carries HTTP requests from this host to published ports of sandboxes (see
// package inbound), until ctx is done or Shutdown. ln is on a loopback address. It returns
// nil at a regular end.
func (g *Gateway) ServeInbound(ctx context.Context, ln net.Listener) error {
	return g.serveInbound(ctx, ln, g.inbound)
}

// ServeRouted is ServeInbound for requests of a router's clients, which come from elsewhere:
// ln is one of TLS.
func (g *Gateway) ServeRouted(ctx context.Context, ln net.Listener) error {
	return g.serveInbound(ctx, ln, g.routed)
}

func (g *Gateway) serveInbound(ctx context.Context, ln net.Listener, by *inbound.Server) error {
	if by == nil {
		_ = ln.Close()
		return errors.New("gateway: what comes in needs ports and a waker, or a router")
	}
	release, ok := g.listen(ctx, ln)
	if !ok {
		return nil
	}
	defer release()
	return g.accept(ctx, ln, by.ServeConn)
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
	case g.count[id] >= g.ConnectionsPerSandbox:
		return nil, errTooMany
	}
	g.count[id]++
	g.open[c] = struct{}{}
	g.metrics.Connections.Inc()
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
		g.metrics.Connections.Dec()
	}
	return c, nil
}

// Forget drops the secrets that a sandbox's answers are searched for. Call it when the
// sandbox, or the client, is gone.
func (g *Gateway) Forget(id string) {
	g.secrets.Forget(id)
}

// enterStream makes a place for a sandbox's request, of which HTTP/2 has many on one
// connection, and tells whether that is one of the last.
func (g *Gateway) enterStream(id string) (ok, last bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.asked[id] >= g.ConnectionsPerSandbox {
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

// Shutdown takes no more connections, waits for requests and tunnels until ctx is done,
// and then ends them. It returns ctx's error when it had to.
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
		for _, s := range []*inbound.Server{g.inbound, g.routed} {
			if s != nil {
				inward.Go(func() { _ = s.Shutdown(ctx) })
			}
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
	for _, s := range []*inbound.Server{g.inbound, g.routed} {
		if s != nil {
			s.Close()
		}
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
