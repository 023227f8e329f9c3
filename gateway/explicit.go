package gateway

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"sallyport/gateway/form"
	"sallyport/internal/connlimit"
	"sallyport/policy"
)

// ServeExplicit is an HTTP proxy on ln for sandboxes that run elsewhere, until
// ctx is done or Shutdown. Each authenticates with Basic Proxy-Authorization
// (RFC 9110, section 11.7), name and token of a client. On an address that is
// not loopback ln should speak TLS. It returns nil at a regular end.
func (g *Gateway) ServeExplicit(ctx context.Context, ln net.Listener) error {
	if g.clients == nil {
		_ = ln.Close()
		return errors.New("gateway: the explicit proxy needs clients")
	}
	release, ok := g.listen(ctx, ln)
	if !ok {
		return nil
	}
	defer release()
	return g.accept(ctx, ln, g.proxied)
}

// proxied serves a connection to the explicit proxy.
func (g *Gateway) proxied(c net.Conn) {
	f := newFlow(addrPort(c.RemoteAddr()))
	known := g.strangers.Enter(connlimit.Source(c.RemoteAddr()), func() {
		g.drop(bare(c), newFlow(addrPort(c.RemoteAddr())), "connections",
			"too many connections to the explicit proxy have not said who they are: the oldest of them is closed")
	})
	by := &caller{gateway: g, known: known, flow: f}
	by.line.begin(g.life, c)
	defer by.end()
	if secure, ok := c.(*tls.Conn); ok {
		by.line.conn = secure.NetConn()
		ctx, cancel := context.WithTimeout(g.life, g.handshake)
		defer cancel()
		if err := secure.HandshakeContext(ctx); err != nil {
			g.metrics.aborted.Inc()
			if errors.Is(err, context.DeadlineExceeded) {
				g.unfinished(f, "opening", silence)
			}
			_ = c.Close()
			return
		}
	}
	g.web.ServeConn(context.WithValue(by.line.ctx, flowKey{}, by), c, func(ctx context.Context, w http.ResponseWriter, r *http.Request) {
		g.forward(ctx, w, r, by)
	})
}

// bare is a connection below its TLS, which would wait to say goodbye.
func bare(c net.Conn) net.Conn {
	if t, ok := c.(*tls.Conn); ok {
		return t.NetConn()
	}
	return c
}

// forward answers one request to the explicit proxy.
func (g *Gateway) forward(ctx context.Context, w http.ResponseWriter, r *http.Request, by *caller) {
	f := newFlow(remote(r))
	f.line = &by.line
	header := r.Header.Get("Proxy-Authorization")
	name, token, given := proxyAuth(header)
	identity, ok := g.clients.Authenticate(name, token)
	if !given || !ok {
		if header != "" {
			g.impostor(f)
		}
		g.challenge(w, r)
		return
	}
	by.known()
	f.identity = identity
	f.valid = func() bool { return g.clients.Present(identity) }
	by.flow = f
	r.Header.Del("Proxy-Authorization") // spent: neither policy nor audit need see it
	target := r.Host
	if r.Method != http.MethodConnect {
		target = r.URL.Host
	}
	host, port, err := form.ParseAuthority(target)
	switch {
	case err != nil:
		g.malformed(w, r, f, "bad destination: "+err.Error())
	case r.Method == http.MethodConnect && port == 0:
		g.malformed(w, r, f, "CONNECT needs host:port")
	case r.Method == http.MethodConnect:
		f.host, f.port = host, port
		g.connectTunnel(w, r, f)
	case r.URL.Scheme != "http":
		g.malformed(w, r, f, "this is a proxy: send https through CONNECT, http in absolute-form")
	default:
		f.host, f.port, f.protocol = host, cmp.Or(port, 80), policy.ProtocolHTTP
		f.authority = form.JoinAuthority(f.host, f.port, false)
		if !by.sit(f.identity.ID) {
			g.unfinished(f, "connections", errTooMany.Error())
			w.Header().Set("Connection", "close")
			(&answer{Status: http.StatusTooManyRequests, Reason: errTooMany.Error(), Remedy: "Close some."}).write(w, r)
			return
		}
		g.absolute(ctx, w, r, f)
	}
}

// absolute carries a plain HTTP request. Each is a connection of its own to policy.
func (g *Gateway) absolute(ctx context.Context, w http.ResponseWriter, r *http.Request, f *flow) {
	f.exposure = g.exposures.Of(f.identity.ID)
	f.round = g.underway.round.Load()
	d := g.connect(ctx, f)
	f.asks = d.Action == policy.Approve && g.approvals != nil
	if d.Action != policy.Allow && !f.asks {
		if d.Action == policy.Tunnel {
			d = floor(d, "tunnel", "a rule that carries bytes unread needs CONNECT")
		}
		x := g.exchange(ctx, f.line.cancel, f)
		x.describe(r)
		x.deny(r, d).write(w, r)
		return
	}
	g.serveExchange(ctx, f.line.cancel, w, r, f, new(turn))
}

// connectTunnel takes the connection over and treats it like one that was
// steered here. The client is told yes at once, since a denial can only be read
// inside of its TLS: clients do not show the body of a refused CONNECT.
func (g *Gateway) connectTunnel(w http.ResponseWriter, r *http.Request, f *flow) {
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		g.logger.Error("taking over a CONNECT", "error", err)
		http.Error(w, "cannot take the connection over", http.StatusInternalServerError)
		return
	}
	o, err := g.enter(conn, f)
	if err != nil {
		g.drop(conn, f, "connections", err.Error())
		return
	}
	early, _ := rw.Reader.Peek(rw.Reader.Buffered())
	o.Seen = append(o.Seen, early...)
	g.mu.Lock()
	if g.closing {
		g.mu.Unlock()
		_ = o.Close()
		return
	}
	defer g.mu.Unlock()
	// In a goroutine of its own, so that a connection that may be idle for hours
	// does not hold on to what the request to the proxy needed.
	g.work.Go(func() { g.established(o) })
}

// established tells a client of the explicit proxy to go on, and listens.
func (g *Gateway) established(o *connection) {
	_ = o.SetDeadline(time.Now().Add(g.handshake))
	if _, err := o.Conn.Write([]byte("HTTP/1.1 200 Connection established\r\n\r\n")); err != nil {
		_ = o.Close()
		return
	}
	_ = o.SetDeadline(time.Time{})
	g.follow(o)
}

// impostor records a wrong name or token. Neither is in the event: what is wrong
// by one letter is nearly right.
func (g *Gateway) impostor(f *flow) {
	d := floor(policy.Decision{}, "proxy-authentication", "the explicit proxy was given a name and token that are no client's")
	g.floods.add(text(f.source.Addr()), g.rejection(f, policy.PhaseConnect, d))
	g.metrics.unauthenticated.Inc()
}

// challenge asks for a client's name and token.
func (g *Gateway) challenge(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Proxy-Authenticate", `Basic realm="Sallyport", charset="UTF-8"`)
	w.Header().Set("Connection", "close")
	(&answer{
		Status: http.StatusProxyAuthRequired,
		Reason: "this proxy needs the name and token of a client",
		Remedy: "Set the proxy to http://NAME:TOKEN@HOST:PORT. An operator makes a client with: sallyport client add NAME",
	}).write(w, r)
}

// malformed refuses what a client asks the proxy itself, and records it.
func (g *Gateway) malformed(w http.ResponseWriter, r *http.Request, f *flow, reason string) {
	d := floor(policy.Decision{}, "proxy-request", reason)
	a := denied(d, g.denial(f, g.rejection(f, policy.PhaseConnect, d)), "")
	a.Status = http.StatusBadRequest
	w.Header().Set("Connection", "close")
	a.write(w, r)
}

// proxyAuth reads Basic credentials (RFC 7617).
func proxyAuth(header string) (name, token string, ok bool) {
	scheme, rest, found := strings.Cut(header, " ")
	if !found || !strings.EqualFold(scheme, "Basic") {
		return "", "", false
	}
	plain, err := base64.StdEncoding.DecodeString(strings.TrimSpace(rest))
	if err != nil {
		return "", "", false
	}
	return strings.Cut(string(plain), ":")
}

// remote is the client's address, zero when the listener has another kind.
func remote(r *http.Request) netip.AddrPort {
	a, _ := netip.ParseAddrPort(r.RemoteAddr)
	return a
}
