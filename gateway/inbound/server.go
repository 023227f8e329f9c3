// Package inbound carries HTTP requests of this host to published ports of sandboxes.
//
// A request names a port by its Host, and shows the port's token. It is carried when the
// policy allows it and that is on record. An answer is the sandbox's word:
// it gets no say about other hosts, nor in the gateway's name.
package inbound

import (
	"context"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	"golang.org/x/time/rate"

	"sallyport/audit"
	"sallyport/gateway/access"
	"sallyport/gateway/bodies"
	"sallyport/gateway/denials"
	"sallyport/gateway/event"
	"sallyport/gateway/http1"
	"sallyport/gateway/live"
	"sallyport/internal/connlimit"
	"sallyport/internal/quota"
	"sallyport/policy"
)

// Bounds.
const (
	maxConns       = 512  // connections whose port is known
	maxUnknown     = 512  // and those of which it is not yet
	maxUnknownOf   = 256  // of one source
	maxConnsOf     = 192  // of a sandbox
	maxRequests    = 128  // requests and WebSockets under way of one port
	requestRate    = 200  // requests a second of one port, in the long run
	requestBurst   = 1000 // and at once
	refusalRate    = 20   // refusals a second that are answered in full, of all
	refusalBurst   = 200  // and at once
	maxWakes       = 32   // sandboxes that are woken at a time
	busyRetry      = 1    // seconds until a place may be free
	wakeWithin     = 30 * time.Second
	wakeLook       = 20 * time.Millisecond // for a place to wake one in
	reachWithin    = 5 * time.Second       // a port on this very machine
	headWithin     = 2 * time.Minute       // of the answer's
	idleWithin     = time.Minute           // between two requests
	maxHead        = 64 << 10              // bytes
	goodbyeWithin  = 500 * time.Millisecond
	maxLoopback    = 128 // waits for a connection from inside, each a call to the daemon
	maxLoopbackOne = 32  // of a sandbox: each takes as long as its agent likes
)

// Ports finds what is published under a host name.
type Ports interface {
	Published(host string) (access.Port, bool)
}

// Waker knows the sandboxes with published ports, whether they run or not.
type Waker interface {
	// Whose returns the sandbox as it is now, with its tags.
	Whose(ctx context.Context, sandboxID string) (policy.Sandbox, error)
	// Wake runs the sandbox, if it does not run, and returns it and its address.
	Wake(ctx context.Context, sandboxID string) (policy.Sandbox, netip.Addr, error)
}

// Recorder is the audit log: see gateway.Recorder.
type Recorder interface {
	Append(context.Context, ...*audit.Event) error
}

// Metrics counts what happens.
type Metrics interface {
	Decided(policy.Phase, policy.Decision)
	Unrecorded()
	Finished(status int, took time.Duration) // status 0: without one
}

// Options are the parts of a Server. All are needed but Dial, Loopback and Router.
type Options struct {
	Ports Ports
	Waker Waker
	// Dial connects to a published port at the sandbox's own address. Default: as any
	// process does.
	Dial func(ctx context.Context, sandboxID string, to netip.AddrPort) (net.Conn, error)
	// Loopback reaches programs that listen on a sandbox's loopback address. Default: only
	// programs that listen on the sandbox's own address are reached.
	Loopback Loopback
	// Router, unless nil, has the requests to ports of sandboxes that are not published: see
	// Router.
	Router Router
	// Decide asks the policy, which allows or denies.
	Decide   func(context.Context, policy.Input) policy.Decision
	Revision func() string // of that policy
	Live     *live.Set     // of what the policy has allowed
	Recorder Recorder
	Enqueue  func(*audit.Event) // an event that nothing waits for
	Denials  *denials.Aggregator
	Bodies   *bodies.Budget // for large heads
	Metrics  Metrics
	Logger   *slog.Logger
	// Life is the context of connections and of waking.
	Life context.Context
	// HeadTimeout bounds a request's head, StallTimeout a transfer that makes no progress.
	HeadTimeout, StallTimeout time.Duration
}

// Server serves connections of this host. Make one with New.
type Server struct {
	Options
	web      *http1.Server
	proxy    *httputil.ReverseProxy
	peers    *httputil.ReverseProxy // to other nodes, nil without a Router
	unknown  *connlimit.Limit
	conns    *quota.Places // of the connections whose port is known
	loops    *quota.Places // of waits for a connection from inside
	wakes    *quota.Places
	waking   singleflight.Group // by sandbox
	refusals *rate.Limiter

	mu     sync.Mutex
	load   map[string]*load // by host
	forgot time.Time        // when those were looked through
}

// load are the requests to one port.
type load struct {
	count int
	pace  *rate.Limiter
}

// New returns a Server.
func New(o Options) *Server {
	s := &Server{
		Options: o, unknown: connlimit.New(maxUnknown, maxUnknownOf, nil), conns: quota.New(maxConns, maxConnsOf),
		loops: quota.New(maxLoopback, maxLoopbackOne), wakes: quota.New(maxWakes, 1), // which waking holds to
		refusals: rate.NewLimiter(refusalRate, refusalBurst), load: map[string]*load{},
	}
	if s.Dial == nil {
		s.Dial = func(ctx context.Context, _ string, to netip.AddrPort) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", to.String())
		}
	}
	s.web = &http1.Server{
		HeadTimeout: o.HeadTimeout, IdleTimeout: idleWithin, MaxHead: maxHead, Logger: o.Logger,
		Budget: func(context.Context) http1.Budget { return &bodies.Heads{Of: o.Bodies} },
		Refuse: func(ctx context.Context, w http.ResponseWriter, r *http.Request, err *http1.RefusedError) {
			if c, ok := ctx.Value(connKey{}).(*conn); ok {
				(&request{server: s, conn: c}).refuse(w, r, err.Status, "request", err.Error())
			}
		},
	}
	s.proxy = &httputil.ReverseProxy{
		Rewrite: rewrite, Transport: transport{}, ModifyResponse: modifyResponse, ErrorHandler: proxyFailed,
		ErrorLog: log.New(io.Discard, "", 0), // it can quote what the sandbox says
	}
	if s.Router != nil {
		s.peers = newPeers(s.Router)
	}
	return s
}

// Shutdown is [http1.Server.Shutdown].
func (s *Server) Shutdown(ctx context.Context) error { return s.web.Shutdown(ctx) }

// Close closes every connection.
func (s *Server) Close() { s.web.Close() }

// enter makes a place for a request to a port.
func (s *Server) enter(host string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.load[host]
	if l == nil {
		if now := time.Now(); now.Sub(s.forgot) >= time.Second {
			s.forgot = now
			s.forgetPaces(now)
		}
		l = &load{pace: rate.NewLimiter(requestRate, requestBurst)}
		s.load[host] = l
	}
	if l.count >= maxRequests || !l.pace.Allow() {
		return false
	}
	l.count++
	return true
}

// forgetPaces drops what a new load would not differ from. s.mu is held.
func (s *Server) forgetPaces(now time.Time) {
	for host, l := range s.load {
		if l.count == 0 && l.pace.TokensAt(now) >= requestBurst {
			delete(s.load, host)
		}
	}
}

func (s *Server) leave(host string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.load[host].count--
}

// conn is a connection to the listener.
type conn struct {
	net.Conn
	source netip.AddrPort
	from   *audit.Endpoint // source as events have it
	port   string          // of the listener, as Host has it
	known  func()          // gives the place back that it has before a port is known
	place  *access.Port    // that has the connection in its share, nil before one is known
}

// countFor counts the connection among those to a port, from its first request with the
// token to its end, or to a request to a port of another sandbox.
func (c *conn) countFor(p *quota.Places, to access.Port) bool {
	if c.place != nil && c.place.SandboxID == to.SandboxID && c.place.Owner == to.Owner {
		return true
	}
	c.leave(p)
	if !p.Enter(to.SandboxID, to.Owner) {
		return false
	}
	c.known()
	c.place = &to
	return true
}

func (c *conn) leave(p *quota.Places) {
	if c.place != nil {
		p.Leave(c.place.SandboxID, c.place.Owner)
		c.place = nil
	}
}

type connKey struct{}

// ServeConn serves a connection until it ends.
func (s *Server) ServeConn(nc net.Conn) {
	source := addrPort(nc.RemoteAddr())
	c := &conn{
		Conn: nc, source: source, from: &audit.Endpoint{IP: event.Text(source.Addr()), Port: int(source.Port())},
		port: strconv.Itoa(int(addrPort(nc.LocalAddr()).Port())),
	}
	c.known = s.unknown.Enter(connlimit.Source(nc.RemoteAddr()), func() {
		(&request{server: s, conn: c}).record(floor("", "inbound-connections", "too many connections to exposed ports have shown no token: the oldest of them is closed"))
		_ = nc.Close()
	})
	defer c.known()
	ctx, cancel := context.WithCancel(context.WithValue(s.Life, connKey{}, c))
	defer cancel()
	defer c.leave(s.conns)
	s.web.ServeConn(ctx, nc, func(ctx context.Context, w http.ResponseWriter, r *http.Request) {
		(&request{Context: ctx, server: s, conn: c, started: time.Now()}).serve(w, r)
	})
}

func addrPort(a net.Addr) netip.AddrPort {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	p := t.AddrPort()
	return netip.AddrPortFrom(p.Addr().Unmap().WithZone(""), p.Port())
}
