package gateway

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	"golang.org/x/time/rate"

	"sallyport/audit"
	"sallyport/gateway/bodies"
	"sallyport/gateway/form"
	"sallyport/gateway/http1"
	"sallyport/gateway/websocket"
	"sallyport/internal/connlimit"
	"sallyport/internal/quota"
	"sallyport/policy"
)

// Bounds of what comes in.
const (
	maxInboundConns    = 512  // connections whose exposure is known
	maxUnknown         = 512  // and those of which it is not yet
	maxUnknownOf       = 256  // of one source
	maxInboundConnsOf  = 192  // of a sandbox
	maxInboundRequests = 128  // requests and WebSockets under way of one exposure
	inboundRate        = 200  // requests a second of one exposure, in the long run
	inboundBurst       = 1000 // and at once
	refusalRate        = 20   // refusals a second that are answered in full, of all
	refusalBurst       = 200  // and at once
	maxWakes           = 32   // sandboxes that are woken at a time
	busyRetry          = 1    // seconds until a place may be free
	wakeWithin         = 30 * time.Second
	wakeLook           = 20 * time.Millisecond // for a place to wake one in
	reachWithin        = 5 * time.Second       // a port on this very machine
	headWithin         = 2 * time.Minute       // of the answer's
	inboundIdle        = time.Minute           // between two requests
	maxInboundHead     = 64 << 10              // bytes
)

// Exposures finds what is exposed under a host name.
type Exposures interface {
	Exposed(host string) (Exposure, bool)
}

// Waker knows the sandboxes that are exposed, whether they run or not.
type Waker interface {
	// Whose returns the sandbox as it is now, with its tags.
	Whose(ctx context.Context, sandboxID string) (policy.Sandbox, error)
	// Wake runs the sandbox, if it does not run, and returns where it is.
	Wake(ctx context.Context, sandboxID string) (Identity, error)
}

var (
	errAsleep        = errors.New("the sandbox could not be started")
	errWakes         = errors.New("too many sandboxes are started at once for requests to them")
	errUnanswered    = errors.New("the sandbox gave no answer that could be read")
	errUnswitched    = errors.New("the sandbox did not begin a WebSocket")
	errInboundClient = errors.New("the client went away")
	errUnexposed     = errors.New("the port is no longer exposed")
)

// inbound is what a Gateway has for what comes in.
type inboundServer struct {
	exposures Exposures
	waker     Waker
	dial      func(ctx context.Context, sandboxID string, to netip.AddrPort) (net.Conn, error)
	inside    Inside        // nil: only the sandbox's own address is reached
	insides   *quota.Places // of waits for it
	web       *http1.Server
	port      string // of the listener, as Host has it
	unknown   *connlimit.Limit
	conns     *quota.Places // of the connections whose exposure is known
	wakes     *quota.Places
	waking    singleflight.Group // by sandbox
	refusals  *rate.Limiter

	mu   sync.Mutex
	load map[string]*portLoad // by host
}

// load are those of one exposure.
type portLoad struct {
	count int
	pace  *rate.Limiter
}

func (g *Gateway) newInboundServer(o Options) *inboundServer {
	in := &inboundServer{
		exposures: o.Exposures, waker: o.Waker, dial: o.Dial, inside: o.Inside, insides: quota.New(maxInside, maxInsideOfOne),
		unknown: connlimit.New(maxUnknown, maxUnknownOf, nil), conns: quota.New(maxInboundConns, maxInboundConnsOf),
		wakes:    quota.New(maxWakes, 1), // which waking holds to
		refusals: rate.NewLimiter(refusalRate, refusalBurst), load: map[string]*portLoad{},
	}
	if in.dial == nil {
		in.dial = func(ctx context.Context, _ string, to netip.AddrPort) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", to.String())
		}
	}
	in.web = &http1.Server{
		HeadTimeout: g.handshake, IdleTimeout: inboundIdle, MaxHead: maxInboundHead, Logger: o.Logger,
		Budget: func(context.Context) http1.Budget { return &bodies.Heads{Of: g.bodies} },
		Refuse: func(ctx context.Context, w http.ResponseWriter, r *http.Request, err *http1.RefusedError) {
			if l, ok := ctx.Value(inboundConnKey{}).(*inboundConn); ok {
				v := &inboundRequest{gateway: g, conn: l, peer: unknownPeer(l.source)}
				v.refuse(w, r, err.Status, "request", err.Error())
			}
		},
	}
	return in
}

// enter makes a place for a request to an exposure.
func (in *inboundServer) enter(host string) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	v := in.load[host]
	if v == nil {
		for other, v := range in.load { // few at a time: exposures are bounded
			if _, there := in.exposures.Exposed(other); !there && v.count == 0 {
				delete(in.load, other)
			}
		}
		v = &portLoad{pace: rate.NewLimiter(inboundRate, inboundBurst)}
		in.load[host] = v
	}
	if v.count >= maxInboundRequests || !v.pace.Allow() {
		return false
	}
	v.count++
	return true
}

func (in *inboundServer) leave(host string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.load[host].count--
}

// ServeInbound carries HTTP requests from this host to exposed ports of sandboxes,
// until ctx is done or Shutdown. ln is on a loopback address. It returns nil at a
// regular end.
//
// Each exposure is a host name, and so an origin, of its own. A request is carried
// when its Host is that name with the listener's port, it has the exposure's token,
// the policy allows it and that is on record.
func (g *Gateway) ServeInbound(ctx context.Context, ln net.Listener) error {
	in := g.inbound
	if in == nil {
		_ = ln.Close()
		return errors.New("gateway: what comes in needs exposures and a waker")
	}
	in.port = strconv.Itoa(int(addrPort(ln.Addr()).Port()))
	release, ok := g.listen(ctx, ln)
	if !ok {
		return nil
	}
	defer release()
	return g.accept(ctx, ln, g.serveInboundConn)
}

// inboundConn is a connection to the listener of what comes in.
type inboundConn struct {
	lifetime
	source netip.AddrPort
	known  func()    // gives the place back that it has before an exposure is known
	place  *Exposure // that has the connection in its share, nil before one is known
}

// countFor counts the connection among those to an exposure, from its first request with
// the token to its end, or to a request to another exposure.
func (l *inboundConn) countFor(p *quota.Places, e Exposure) bool {
	if l.place != nil && l.place.SandboxID == e.SandboxID && l.place.Owner == e.Owner {
		return true
	}
	l.leave(p)
	if !p.Enter(e.SandboxID, e.Owner) {
		return false
	}
	l.known()
	l.place = &e
	return true
}

func (l *inboundConn) leave(p *quota.Places) {
	if l.place != nil {
		p.Leave(l.place.SandboxID, l.place.Owner)
		l.place = nil
	}
}

type inboundConnKey struct{}

// serveInboundConn serves a connection.
func (g *Gateway) serveInboundConn(c net.Conn) {
	in := g.inbound
	conn := &inboundConn{source: addrPort(c.RemoteAddr())}
	conn.known = in.unknown.Enter(connlimit.Source(c.RemoteAddr()), func() {
		v := &inboundRequest{gateway: g, conn: conn, peer: unknownPeer(conn.source)}
		v.record(floor(policy.Decision{}, "inbound-connections", "too many connections to exposed ports have shown no token: the oldest of them is closed"))
		_ = c.Close()
	})
	defer conn.known()
	conn.begin(g.life, c)
	defer conn.cancel()
	defer conn.leave(in.conns)
	in.web.ServeConn(context.WithValue(conn.ctx, inboundConnKey{}, conn), c, func(ctx context.Context, w http.ResponseWriter, r *http.Request) {
		v := &inboundRequest{Context: ctx, gateway: g, conn: conn, peer: unknownPeer(conn.source), started: time.Now()}
		v.serve(w, r)
	})
}

// serve answers one request.
func (v *inboundRequest) serve(w http.ResponseWriter, r *http.Request) {
	in := v.gateway.inbound
	v.target.protocol = policy.ProtocolHTTP
	tokens := takeTokens(r)
	e, ok := v.find(w, r)
	if !ok {
		return
	}
	v.exposure, v.authority = e, e.Host()+":"+in.port
	v.peer = v.peer.is(Identity{Sandbox: policy.Sandbox{Name: e.Sandbox, ID: e.SandboxID}})
	v.target.host, v.target.port = e.Sandbox, e.Port
	by := slices.Concat(tokens.header, tokens.cookie)
	switch {
	case !e.live():
		v.refuse(w, r, http.StatusForbidden, "inbound-expired", "the exposure has expired")
		return
	case !tokens.any():
		v.refuse(w, r, http.StatusUnauthorized, "inbound-token", "the exposure's token is missing")
		return
	case !e.accepts(by) && !e.accepts(tokens.query):
		v.refuse(w, r, http.StatusUnauthorized, "inbound-token", "the token is not this exposure's")
		return
	}
	if !v.conn.countFor(in.conns, e) {
		w.Header().Set("Retry-After", strconv.Itoa(busyRetry))
		v.refuse(w, r, http.StatusServiceUnavailable, "inbound-connections", "there are too many connections to this sandbox, or to those of its owner")
		return
	}
	program := e.accepts(tokens.header)
	upgrade := form.IsWebSocket(r.Header)
	if len(tokens.query) > 0 && !program {
		if r.Method != http.MethodGet && r.Method != http.MethodHead || upgrade || !e.accepts(tokens.query) {
			v.refuse(w, r, http.StatusUnauthorized, "inbound-token", "a token in the URL is for a browser's first visit, by GET")
			return
		}
		if origin := r.Header["Origin"]; len(origin) > 0 {
			v.refuse(w, r, http.StatusForbidden, "inbound-origin", "a first visit is not made by a script of another origin")
			return
		}
		e.setCookie(w, r, tokens.query[0], v.authority)
		return
	}
	if m := v.admit(r, program, upgrade); m != nil {
		v.refuse(w, r, m.Status, m.Rule, m.Reason)
		return
	}
	if !in.enter(e.Host()) {
		v.refuse(w, r, http.StatusTooManyRequests, "inbound-rate", "too many requests to this exposure, or too many at once")
		return
	}
	defer in.leave(e.Host())
	v.upgrade = upgrade
	v.carry(w, r)
}

// find is the exposure that a request names: by its Host alone, in exactly the
// form that its URL has, so that a page of another name cannot be this one
// (DNS rebinding).
func (v *inboundRequest) find(w http.ResponseWriter, r *http.Request) (Exposure, bool) {
	in := v.gateway.inbound
	if r.Method == http.MethodConnect || r.URL.Host != "" || r.URL.Scheme != "" || r.URL.User != nil || r.RequestURI == "" || r.RequestURI[0] != '/' {
		v.refuse(w, r, http.StatusBadRequest, "inbound-target", "this is a server and no proxy: the request target must be a path")
		return Exposure{}, false
	}
	host, port, _ := strings.Cut(r.Host, ":")
	e, ok := in.exposures.Exposed(host)
	if !ok || port != in.port {
		v.refuse(w, r, http.StatusMisdirectedRequest, "inbound-host", "nothing is exposed under this Host")
		return Exposure{}, false
	}
	return e, true
}

// admit checks the form of a request and fills in what policy sees of it.
func (v *inboundRequest) admit(r *http.Request, program, upgrade bool) *form.Error {
	if r.Method == http.MethodTrace {
		return &form.Error{Status: http.StatusMethodNotAllowed, Rule: "trace", Reason: "TRACE sends a request's headers back"}
	}
	if m := form.Check(r); m != nil {
		return m
	}
	// A browser says where a request comes from. A client with the token in a header is
	// none, or could have left the origin out.
	origins := r.Header["Origin"]
	if own := "http://" + v.authority; len(origins) > 1 || len(origins) == 1 && origins[0] != own || len(origins) == 0 && upgrade && !program {
		return &form.Error{Status: http.StatusForbidden, Rule: "inbound-origin", Reason: "the request comes from a page of another origin"}
	}
	// Pages of the same host name at another port are of the same site, and get a
	// cookie of SameSite=Strict sent; not every request says its origin.
	if site := r.Header.Get("Sec-Fetch-Site"); !program && (site == "same-site" || site == "cross-site") {
		return &form.Error{Status: http.StatusForbidden, Rule: "inbound-origin", Reason: "the request comes from a page of another origin"}
	}
	path, _, m := form.CanonicalTarget(r)
	if m != nil {
		return m
	}
	names := form.NamesOf(r)
	if m := names.Check(r); m != nil {
		return m
	}
	if upgrade {
		if m := websocket.CheckRequest(r); m != nil {
			return m
		}
		v.key = r.Header.Get("Sec-Websocket-Key")
	}
	if strings.Contains(r.Header.Get("Referer"), exposureMark) {
		delete(r.Header, "Referer")
	}
	v.names = names
	v.request = &policy.Request{
		Method: r.Method, Scheme: "http", Path: path, QueryKeys: names.Query, Headers: names.Headers, Size: r.ContentLength,
	}
	return nil
}

// record writes a denial, or has it counted in another, and returns its id.
func (v *inboundRequest) record(d policy.Decision) string {
	g := v.gateway
	g.metrics.decision(policy.PhaseInbound, d)
	d.Revision = cmp.Or(d.Revision, g.revision())
	var e *audit.Event
	if v.request != nil {
		e = v.event(d)
	} else {
		e = connectionEvent(&v.events, v.peer, v.target, audit.ClassNetwork, audit.NetworkRefuse, policy.PhaseInbound, d)
		e.Connection = inboundTCP()
	}
	return g.denials.Add(cmp.Or(v.target.host, text(v.peer.source.Addr())), e)
}

// inboundTCP describes a connection to a sandbox.
func inboundTCP() *audit.Connection {
	return &audit.Connection{ProtocolName: "tcp", ProtocolNum: 6, Direction: 1}
}

// refuse answers and records what no policy can allow.
func (v *inboundRequest) refuse(w http.ResponseWriter, r *http.Request, status int, rule, reason string) {
	id := v.record(floor(policy.Decision{}, rule, reason))
	w.Header().Set("Connection", "close")
	if !v.gateway.inbound.refusals.Allow() {
		w.WriteHeader(http.StatusTooManyRequests)
		return
	}
	(&answer{Status: status, Reason: reason, Rule: rule, Decision: id, Remedy: cmp.Or(remedies[rule], "Change the request as the reason says."), denied: true}).write(w, r)
}

// remedies say what the client can do.
var remedies = map[string]string{
	"inbound-host":    "Use the URL that `sallyport sandbox expose` has printed, as it is.",
	"inbound-token":   "Open the URL that `sallyport sandbox expose` has printed, or send its token as Authorization: Bearer. Exposing the port again makes a new one.",
	"inbound-expired": "An operator can expose the port again: sallyport sandbox expose",
	"inbound-origin":  "Open the exposed URL itself. Pages elsewhere cannot use it.",
	"inbound-rate":    "Wait, and send fewer requests at once.",

	"inbound-connections": "Close connections that are not used, and try again.",
}
