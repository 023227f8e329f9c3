package gateway

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"sallyport/gateway/answer"
	"sallyport/gateway/event"
	"sallyport/gateway/form"
	"sallyport/internal/connlimit"
	"sallyport/policy"
)

// ServeExplicit is an HTTP proxy on ln for sandboxes that run elsewhere, until
// ctx is done or Shutdown. Each authenticates with Basic Proxy-Authorization
// (RFC 9110, section 11.7), name and token of a client. On an address that is
// not loopback ln should speak TLS. It returns nil at a regular end.
func (g *Gateway) ServeExplicit(ctx context.Context, ln net.Listener) error {
	if g.Clients == nil {
		_ = ln.Close()
		return errors.New("gateway: the explicit proxy needs clients")
	}
	release, ok := g.listen(ctx, ln)
	if !ok {
		return nil
	}
	defer release()
	return g.accept(ctx, ln, g.serveProxy)
}

// Bounds on connections to the explicit proxy whose client is not known yet, by the rule
// of package connlimit. Each has the time of one head to authenticate, and less of it
// where there are too many.
const (
	maxUnauthenticated        = 1024
	maxUnauthenticatedFromOne = 256 // address
)

// proxyConn is a connection to the explicit proxy.
type proxyConn struct {
	gateway       *Gateway
	authenticated func()   // gives the place of an unauthenticated connection back
	counted       []string // IDs of the clients that it is counted for
	peer          *peer    // of the last request whose client was known
	lifetime      lifetime
}

// session is the connection as far as it is known, without a target.
func (c *proxyConn) session() *session { return &session{peer: c.peer} }

// countFor counts the connection among those of a client, once. It tells whether there
// was room.
func (c *proxyConn) countFor(id string) bool {
	c.authenticated()
	if slices.Contains(c.counted, id) {
		return true
	}
	g := c.gateway
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.count[id] >= g.ConnectionsPerSandbox {
		return false
	}
	g.count[id]++
	c.counted = append(c.counted, id)
	return true
}

// end gives all places back.
func (c *proxyConn) end() {
	c.authenticated()
	c.lifetime.cancel()
	g := c.gateway
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, id := range c.counted {
		if g.count[id]--; g.count[id] == 0 {
			delete(g.count, id)
		}
	}
}

// serveProxy serves a connection to the explicit proxy.
func (g *Gateway) serveProxy(conn net.Conn) {
	p := unknownPeer(addrPort(conn.RemoteAddr()))
	authenticated := g.unauthenticated.Enter(connlimit.Source(conn.RemoteAddr()), func() {
		below := conn
		if t, ok := conn.(*tls.Conn); ok {
			below = t.NetConn() // TLS would wait to say goodbye
		}
		g.drop(below, p, target{}, "connections", "too many connections to the explicit proxy have not said who they are: the oldest of them is closed")
	})
	c := &proxyConn{gateway: g, authenticated: authenticated, peer: p}
	c.lifetime.begin(g.life, conn)
	defer c.end()
	if secure, ok := conn.(*tls.Conn); ok {
		c.lifetime.conn = secure.NetConn()
		ctx, cancel := context.WithTimeout(g.life, g.HandshakeTimeout)
		defer cancel()
		if err := secure.HandshakeContext(ctx); err != nil {
			g.metrics.Aborted.Inc()
			if errors.Is(err, context.DeadlineExceeded) {
				g.unfinished(p, target{}, "opening", silence)
			}
			_ = conn.Close()
			return
		}
	}
	g.web.ServeConn(context.WithValue(c.lifetime.ctx, sessionKey{}, c), conn, func(ctx context.Context, w http.ResponseWriter, r *http.Request) {
		g.forward(ctx, w, r, c)
	})
}

// forward answers one request to the explicit proxy.
func (g *Gateway) forward(ctx context.Context, w http.ResponseWriter, r *http.Request, c *proxyConn) {
	s := &session{peer: unknownPeer(remote(r)), life: &c.lifetime}
	header := r.Header.Get("Proxy-Authorization")
	name, token, given := form.Basic(header)
	sandbox, ok := g.Clients.Authenticate(name, token)
	if !given || !ok {
		if header != "" {
			g.authFailed(s.peer)
		}
		g.challenge(w, r)
		return
	}
	c.authenticated()
	s.peer = s.peer.is(Identity{Sandbox: sandbox})
	s.peer.secrets = g.secrets.Of(sandbox.ID)
	s.peer.valid = func() bool { return g.Clients.Present(sandbox) }
	c.peer = s.peer
	r.Header.Del("Proxy-Authorization") // spent: neither policy nor audit need see it
	destination := r.Host
	if r.Method != http.MethodConnect {
		destination = r.URL.Host
	}
	host, port, err := form.ParseAuthority(destination)
	switch {
	case err != nil:
		g.malformed(w, r, s.peer, "bad destination: "+err.Error())
	case r.Method == http.MethodConnect && port == 0:
		g.malformed(w, r, s.peer, "CONNECT needs host:port")
	case r.Method == http.MethodConnect:
		g.connectTunnel(w, r, s.peer, target{host: host, port: port})
	case r.URL.Scheme != "http":
		g.malformed(w, r, s.peer, "this is a proxy: send https through CONNECT, http in absolute-form")
	default:
		s.target = target{port: cmp.Or(port, 80), protocol: policy.ProtocolHTTP}.to(host)
		if !c.countFor(sandbox.ID) {
			g.unfinished(s.peer, s.target, "connections", errTooMany.Error())
			w.Header().Set("Connection", "close")
			(&answer.Answer{Status: http.StatusTooManyRequests, Reason: errTooMany.Error(), Remedy: "Close some."}).Write(w, r)
			return
		}
		g.absolute(ctx, w, r, s)
	}
}

// absolute carries a plain HTTP request. Each is a connection of its own to policy.
func (g *Gateway) absolute(ctx context.Context, w http.ResponseWriter, r *http.Request, s *session) {
	s.epoch = g.live.Epoch()
	d := g.connect(ctx, s.peer, s.target)
	s.asks = d.Action == policy.Approve && g.Approvals != nil
	if d.Action != policy.Allow && !s.asks {
		if d.Action == policy.Tunnel {
			d = floor(d, "tunnel", "a rule that carries bytes unread needs CONNECT")
		}
		q := g.request(ctx, s.life.cancel, s, nil)
		q.describe(r)
		q.deny(r, d).Write(w, r)
		return
	}
	g.serve(ctx, s.life.cancel, w, r, s, nil)
}

// connectTunnel takes the connection over and treats it like one that was
// steered here. The client is told yes at once, since a denial can only be read
// inside of its TLS: clients do not show the body of a refused CONNECT.
func (g *Gateway) connectTunnel(w http.ResponseWriter, r *http.Request, p *peer, t target) {
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		g.Logger.Error("taking over a CONNECT", "error", err)
		http.Error(w, "cannot take the connection over", http.StatusInternalServerError)
		return
	}
	c, err := g.enter(conn, p, t)
	if err != nil {
		g.drop(conn, p, t, "connections", err.Error())
		return
	}
	early, _ := rw.Reader.Peek(rw.Reader.Buffered())
	c.Seen = append(c.Seen, early...)
	g.mu.Lock()
	if g.closing {
		g.mu.Unlock()
		_ = c.Close()
		return
	}
	defer g.mu.Unlock()
	// In a goroutine of its own, so that a connection that may be idle for hours
	// does not hold on to what the request to the proxy needed.
	g.work.Go(func() { g.established(c) })
}

// established tells a client of the explicit proxy to go on, and follows the connection.
func (g *Gateway) established(c *connection) {
	_ = c.SetDeadline(time.Now().Add(g.HandshakeTimeout))
	if _, err := c.Conn.Write([]byte("HTTP/1.1 200 Connection established\r\n\r\n")); err != nil {
		_ = c.Close()
		return
	}
	_ = c.SetDeadline(time.Time{})
	g.follow(c)
}

// authFailed records a wrong name or token. Neither is in the event: a token that is
// wrong by one letter is nearly right.
func (g *Gateway) authFailed(p *peer) {
	d := floor(policy.Decision{}, "proxy-authentication", "the explicit proxy was given a name and token that are no client's")
	g.denials.Add(event.Text(p.source.Addr()), g.rejection(p, target{}, policy.PhaseConnect, d))
	g.metrics.Unauthenticated.Inc()
}

// challenge asks for a client's name and token.
func (g *Gateway) challenge(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Proxy-Authenticate", `Basic realm="Sallyport", charset="UTF-8"`)
	w.Header().Set("Connection", "close")
	(&answer.Answer{
		Status: http.StatusProxyAuthRequired,
		Reason: "this proxy needs the name and token of a client",
		Remedy: "Set the proxy to http://NAME:TOKEN@HOST:PORT. An operator makes a client with: sallyport client add NAME",
	}).Write(w, r)
}

// malformed refuses a malformed request to the proxy itself, and records it.
func (g *Gateway) malformed(w http.ResponseWriter, r *http.Request, p *peer, reason string) {
	d := floor(policy.Decision{}, "proxy-request", reason)
	a := denied(d, g.denial(p, target{}, g.rejection(p, target{}, policy.PhaseConnect, d)), "")
	a.Status = http.StatusBadRequest
	w.Header().Set("Connection", "close")
	a.Write(w, r)
}

// remote is the client's address, zero when the listener has another kind.
func remote(r *http.Request) netip.AddrPort {
	a, _ := netip.ParseAddrPort(r.RemoteAddr)
	return a
}
