package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"sallyport/gateway/answer"
	"sallyport/gateway/form"
	"sallyport/gateway/http1"
	"sallyport/gateway/live"
	"sallyport/gateway/sniff"
	"sallyport/gateway/tcp"
	"sallyport/gateway/wire"
	"sallyport/policy"
)

var (
	errTooMany = errors.New("the sandbox has too many connections open")
	errInvalid = errors.New("the client's token is no longer good, or the sandbox has other tags by now: connect again")
)

// connection is a sandbox's, from its first byte to its end.
type connection struct {
	sniff.Conn
	session
	gateway  *Gateway
	lifetime lifetime
	handle   live.Handle // of a connection that is read
	within   bool        // its protocol is inside of TLS
	silent   bool        // was taken for a client that waits for its server
	once     sync.Once
	release  func()
	account  *account // nil for a client of the explicit proxy
}

// SyscallConn implements syscall.Conn: below TLS it is asked how TCP stands.
func (c *connection) SyscallConn() (syscall.RawConn, error) {
	if s, ok := tcp.Below(c.Conn.Conn).(syscall.Conn); ok {
		return s.SyscallConn()
	}
	return nil, errors.ErrUnsupported
}

// Close also gives the connection's place back.
func (c *connection) Close() error {
	c.once.Do(func() {
		c.account.stop(c)
		c.release()
	})
	return c.Conn.Close()
}

// Recheck implements live.Revocable, for a connection that is read.
func (c *connection) Recheck(ctx context.Context) *live.Revoked {
	if d := c.gateway.connect(ctx, c.peer, c.target); !c.readable(d) {
		return live.Compare(d, policy.Decision{Action: policy.Allow})
	}
	return nil
}

// Stop leaves it to the requests on the connection to say why: they are checked by the
// connection too. A client of HTTP/2 is told first to begin no others.
func (c *connection) Stop(*live.Revoked) {
	if goAway := c.lifetime.goAway.Load(); goAway != nil {
		(*goAway)()
	}
	time.AfterFunc(live.Grace/2, func() {
		c.lifetime.cancel()
		if top := c.lifetime.top.Load(); top != nil {
			_ = (*top).Close()
			return
		}
		_ = c.Conn.Close()
	})
}

// Cut implements live.Revocable.
func (c *connection) Cut() { _ = c.Conn.Close() }

// follow finds out what a connection wants and does it. It returns when the connection
// is over or is the HTTP server's. The connection outlives the listener that it came
// from: Shutdown drains it.
func (g *Gateway) follow(c *connection) {
	defer c.survive()
	if g.admitConnection(c) {
		g.intercept(c)
	}
}

// survive, deferred in each goroutine of a connection, has a panic end the connection alone.
func (c *connection) survive() {
	if p := recover(); p != nil {
		c.gateway.Logger.Error("panic on a connection", "sandbox", c.identity.Name, "panic", fmt.Sprint(p))
		_ = c.Close()
	}
}

// admitConnection tells whether a connection is to be read, and has done all there is to
// do with one that is not.
func (g *Gateway) admitConnection(c *connection) bool {
	ctx := c.lifetime.ctx
	protocol, sni, err := g.listenTo(ctx, c)
	if errors.Is(err, sniff.ErrClientHello) {
		c.protocol = policy.ProtocolOther // an answer cannot be sent on it
		g.deny(c, floor(policy.Decision{}, "tls", sniff.ErrClientHello.Error()))
		return false
	}
	if err != nil {
		g.metrics.Aborted.Inc()
		if !tcp.ClientLeft(err) { // or it was one of several that a client tries at once
			g.unfinished(c.peer, c.target, "opening", silence)
		}
		_ = c.Close()
		return false
	}
	c.protocol = protocol
	var problem string
	if c.target, problem = c.checkSNI(sni); problem != "" {
		g.deny(c, floor(policy.Decision{}, "name", problem))
		return false
	}
	if c.refused && protocol == policy.ProtocolHTTP {
		return true // each Host says which name was refused
	}
	var d policy.Decision
	var t *tunnel
	g.live.Decide(g.live.Epoch(), func() (*live.Handle, live.Revocable) {
		c.protocol, c.within = protocol, false
		d = g.connect(ctx, c.peer, c.target)
		if d.Action == policy.Deny && protocol == policy.ProtocolTLS {
			d = g.loginWithin(ctx, c, d)
		}
		if c.asks = d.Action == policy.Approve && g.Approvals != nil; c.asks && (!c.protocol.IsOther() || d.Authorised) {
			d.Action = policy.Allow // each of its requests is asked about
		}
		switch d.Action {
		case policy.Tunnel:
			t = &tunnel{connection: c, decision: d, seen: c.target}
			return &t.handle, t
		case policy.Allow:
			return &c.handle, c
		}
		return nil, nil
	})
	switch {
	case d.Action == policy.Allow && c.protocol.IsOther():
		g.speak(ctx, c)
	case d.Action == policy.Allow:
		// Not recorded: an intercepted connection sends nothing by itself. Each of its
		// requests has a decision of its own on disk before any of it leaves.
		return true
	case d.Action == policy.Tunnel:
		g.tunnel(ctx, t)
	case c.asks:
		g.tunnelApproved(ctx, c, d)
	default:
		g.deny(c, d)
	}
	return false
}

// loginWithin decides on TLS that was denied, with d, as what may be inside of it: a protocol
// that an egressAuth rule logs in by, which the connection has from then on.
func (g *Gateway) loginWithin(ctx context.Context, c *connection, d policy.Decision) policy.Decision {
	for _, p := range []policy.Protocol{policy.ProtocolPostgres, policy.ProtocolRedis} {
		inside := c.target
		inside.protocol = p
		if other := g.connect(ctx, c.peer, inside); other.Authorised {
			c.target, c.within = inside, true
			return other
		}
	}
	return d
}

// listenTo waits for the first bytes. A client that says nothing may be waiting
// for its server: if a rule would tunnel that, there is nothing more to learn.
func (g *Gateway) listenTo(ctx context.Context, c *connection) (policy.Protocol, string, error) {
	start := time.Now()
	_ = c.SetReadDeadline(start.Add(g.FirstByteTimeout))
	protocol, sni, err := c.Sniff()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		if like, _ := sniff.Classify(c.Seen); like.IsOther() && !c.refused {
			in := c.target.input(c.peer)
			in.Protocol = policy.ProtocolOther
			if a := g.decide(ctx, in).Action; a == policy.Tunnel || a == policy.Approve && g.Approvals != nil {
				_ = c.SetReadDeadline(time.Time{})
				c.silent = len(c.Seen) == 0
				return policy.ProtocolOther, "", nil
			}
			// A client of SSH may wait for its server to say the version first.
			if in.Protocol = policy.ProtocolSSH; len(c.Seen) == 0 && g.decide(ctx, in).Authorised {
				_ = c.SetReadDeadline(time.Time{})
				return policy.ProtocolSSH, "", nil
			}
		}
		_ = c.SetReadDeadline(start.Add(g.HandshakeTimeout))
		protocol, sni, err = c.Sniff()
	}
	if errors.Is(err, io.EOF) && len(c.Seen) > 0 {
		protocol, err = policy.ProtocolOther, nil // it ended after a few bytes
	}
	_ = c.SetReadDeadline(time.Time{})
	return protocol, sni, err
}

// deny records a denied connection once and, where it speaks a protocol that has room
// for it, says so.
func (g *Gateway) deny(c *connection, d policy.Decision) {
	id := g.denial(c.peer, c.target, g.rejection(c.peer, c.target, policy.PhaseConnect, d))
	where := form.JoinAuthority(c.host, c.port, c.tls())
	if c.host == "" {
		where = "this destination"
	}
	g.tell(c, denied(d, id, where))
}

// tell answers each request on a connection with a, or closes it.
func (g *Gateway) tell(c *connection, a *answer.Answer) {
	if c.protocol.IsOther() {
		if h, ok := g.Handlers[c.protocol].(wire.Refuser); ok {
			h.Tell(spoken{c}, a.Reason+" (decision "+a.Decision+")")
		}
		_ = c.Close()
		return
	}
	c.answer = a
	g.intercept(c)
}

// intercept ends the sandbox's TLS and gives the connection to the HTTP server.
func (g *Gateway) intercept(c *connection) {
	if !c.tls() {
		g.serveConn(c, &c.session)
		return
	}
	if conn := g.endTLS(c); conn != nil {
		g.serveConn(conn, &c.session)
	}
}

// endTLS ends TLS with a sandbox. It returns nil, and has closed the connection, where
// the handshake fails. protocols are what the client may name where no HTTP is inside.
//
//go:noinline
func (g *Gateway) endTLS(c *connection, protocols ...string) *tls.Conn {
	config, err := g.Certificates.ServerConfig(c.identity.ID, c.leaf())
	if err == nil && !c.tls() {
		config = config.Clone()
		config.NextProtos = protocols
	}
	if err != nil {
		g.Logger.Error("no certificate for an intercepted connection", "sandbox", c.identity.Name, "error", err)
		_ = c.Close()
		return nil
	}
	turn := g.hellos.Take(c.identity.ID)
	defer turn.End()
	conn := tls.Server(c, config)
	_ = c.SetDeadline(time.Now().Add(g.HandshakeTimeout))
	if err := conn.Handshake(); err != nil {
		// Most often a client that does not trust its sandbox's authority.
		g.metrics.Handshakes.Inc()
		g.Logger.Info("a sandbox did not finish its TLS handshake", "sandbox", c.identity.Name, "name", c.leaf(), "error", err)
		// One that was to be told of a denial is recorded already, and a client that
		// goes away in the middle may have had enough of waiting.
		if c.answer == nil && !tcp.ClientLeft(err) {
			g.unfinished(c.peer, c.target, "tls", "the TLS handshake with the sandbox's authority was not finished: a client that brings its own roots or pins certificates needs a rule with action tunnel")
		}
		_ = c.Close()
		return nil
	}
	_ = c.SetDeadline(time.Time{})
	c.lifetime.top.Store(conn)
	return conn
}

// Reasons why a connection that has asked for nothing is over.
const (
	silence   = "the connection was opened and did not say in time what for"
	noRequest = "the connection of HTTP/2 ended before a request came of it: it said nothing in time, or what cannot be read"
)

// silent records a connection that was set up and on which no request came in time. A
// denial that was never asked for is recorded already.
func (g *Gateway) silent(s *session, reason string) {
	g.metrics.Aborted.Inc()
	if s.answer == nil {
		g.unfinished(s.peer, s.target, "opening", reason)
	}
}

type sessionKey struct{}

// sessionOf is the session of the connection that a context is of, nil for none.
func sessionOf(ctx context.Context) *session {
	switch of := ctx.Value(sessionKey{}).(type) {
	case *session:
		return of
	case *proxyConn:
		return of.session()
	}
	return nil
}

// serveConn answers the requests of a connection that is being read.
func (g *Gateway) serveConn(c net.Conn, s *session) {
	ctx := context.WithValue(s.life.ctx, sessionKey{}, s)
	if speaksHTTP2(c) {
		g.serveHTTP2(ctx, c, s)
		return
	}
	g.web.ServeConn(ctx, c, func(ctx context.Context, w http.ResponseWriter, r *http.Request) {
		g.serve(ctx, s.life.cancel, w, r, s, nil)
	})
}

// unreadable answers a request that has no single reading, and records it.
func (g *Gateway) unreadable(ctx context.Context, w http.ResponseWriter, r *http.Request, err *http1.RefusedError) {
	d := floor(policy.Decision{}, "request-form", err.Error())
	var id string
	if s := sessionOf(ctx); s != nil {
		id = g.denial(s.peer, s.target, g.rejection(s.peer, s.target, policy.PhaseRequest, d))
	}
	a := denied(d, id, "")
	a.Status = err.Status
	if remedy, ok := forms[err.Status]; ok {
		a.Remedy = remedy
	}
	a.Write(w, r)
}

// forms say what to do about a head that was refused.
var forms = map[int]string{
	http.StatusRequestTimeout:              "Send the whole head of a request at once.",
	http.StatusMisdirectedRequest:          "Send the same host in the request target and in Host.",
	http.StatusExpectationFailed:           "Leave Expect out, or send Expect: 100-continue.",
	http.StatusRequestHeaderFieldsTooLarge: fmt.Sprintf("Send fewer or shorter headers: %d KiB is the most that a head may have, and 1000 fields.", maxHeader>>10),
	http.StatusTooManyRequests:             "Wait until requests with large heads that are under way have ended, or send smaller ones.",
	http.StatusNotImplemented:              "Send the body with a Content-Length, or with Transfer-Encoding: chunked, once and nothing besides.",
	http.StatusHTTPVersionNotSupported:     "Speak HTTP/1.1, or HTTP/2 from the connection's first byte on.",
}

// accountEvery is how often a connection is looked at until something is recorded of it.
// The datapath's flows are compared with the audit log: see internal/reconcile.
const accountEvery = 2500 * time.Millisecond

// Reasons of connections about which nothing is decided.
const (
	undecidedYet = "nothing is decided yet about what the connection has sent"
	undecidedEnd = "the connection ended before anything was decided about what it had sent"
)

// account sees to it that a connection that has sent bytes is in the audit log, soon after
// its first byte and at its end, whether or not that came to a request.
type account struct {
	gateway *Gateway
	peer    *peer
	target  target // as it was dialled
	timer   *time.Timer
	heard   atomic.Bool // when it was closed
}

func (g *Gateway) keepAccount(c *connection) *account {
	a := &account{gateway: g, peer: c.peer, target: c.target}
	a.timer = time.AfterFunc(time.Hour, func() { a.look(c) }) // which needs the timer
	a.timer.Reset(accountEvery)
	return a
}

func (a *account) look(c *connection) {
	switch {
	case a.peer.recorded.Load() || c.lifetime.ctx.Err() != nil:
	case tcp.Heard(c):
		a.gateway.undecided(a.peer, a.target, undecidedYet)
	default:
		a.timer.Reset(accountEvery)
	}
}

// stop is called before the connection is closed, after which the kernel tells nothing.
func (a *account) stop(c *connection) {
	if a != nil {
		a.timer.Stop()
		a.heard.Store(!a.peer.recorded.Load() && tcp.Heard(c))
	}
}

// end is called when all that is known of the connection has been recorded.
func (a *account) end() {
	if a.heard.Load() {
		a.gateway.undecided(a.peer, a.target, undecidedEnd)
	}
}
