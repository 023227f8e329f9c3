package gateway

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"syscall"
	"time"

	"sallyport/audit"
	"sallyport/gateway/form"
	"sallyport/gateway/http1"
	"sallyport/gateway/sniff"
	"sallyport/gateway/tcp"
	"sallyport/policy"
)

var errTooMany = errors.New("the sandbox has too many connections open")

// connection is a sandbox's, from its first byte to its end.
type connection struct {
	sniff.Conn
	gateway *Gateway
	flow    *flow
	line    line
	place   entry // of a connection that is read
	silent  bool  // was taken for a client that waits for its server
	once    sync.Once
	release func()
}

// SyscallConn implements syscall.Conn: below TLS it is asked how TCP stands.
func (o *connection) SyscallConn() (syscall.RawConn, error) {
	if s, ok := tcp.Below(o.Conn.Conn).(syscall.Conn); ok {
		return s.SyscallConn()
	}
	return nil, errors.ErrUnsupported
}

// Close also gives the connection's place back.
func (o *connection) Close() error {
	o.once.Do(o.release)
	return o.Conn.Close()
}

// follow finds out what a connection wants and does it. It returns when the
// connection is over or is the HTTP server's. The connection outlives the
// listener that it came from: Shutdown drains it.
func (g *Gateway) follow(o *connection) {
	defer func() {
		if p := recover(); p != nil {
			g.logger.Error("panic on a connection", "sandbox", o.flow.identity.Name, "panic", fmt.Sprint(p))
			_ = o.Close()
		}
	}()
	if g.heard(o) {
		g.intercept(o)
	}
}

// heard tells whether a connection is to be read, and has done all there is to
// do with one that is not.
func (g *Gateway) heard(o *connection) bool {
	ctx, f := o.line.ctx, o.flow
	protocol, sni, err := g.listenTo(ctx, o)
	if errors.Is(err, sniff.ErrClientHello) {
		f.protocol = policy.ProtocolOther // nothing can be said in it
		g.deny(o, floor(policy.Decision{}, "tls", sniff.ErrClientHello.Error()))
		return false
	}
	if err != nil {
		g.metrics.aborted.Inc()
		if !tcp.ClientLeft(err) { // or it was one of several that a client tries at once
			g.unfinished(f, "opening", silence)
		}
		_ = o.Close()
		return false
	}
	f.protocol = protocol
	if misuse := f.agree(sni); misuse != "" {
		g.deny(o, floor(policy.Decision{}, "name", misuse))
		return false
	}
	if f.refused && protocol == policy.ProtocolHTTP {
		return true // each Host says which name was refused
	}
	for {
		round := g.underway.round.Load()
		d := g.connect(ctx, f)
		if f.asks = d.Action == policy.Approve && g.approvals != nil; f.asks {
			if protocol == policy.ProtocolOther {
				g.tunnelApproved(ctx, o, d)
				return false
			}
			d.Action = policy.Allow // each of its requests is asked about
		}
		switch d.Action {
		case policy.Tunnel:
			t := &tunnelling{connection: o, decision: d, input: *f}
			if !g.underway.enter(&t.place, t, round) {
				continue
			}
			g.tunnel(ctx, t)
		case policy.Allow:
			if !g.underway.enter(&o.place, o, round) {
				continue
			}
			// Not recorded: an intercepted connection sends nothing by itself. Each
			// of its requests has a decision of its own on disk before any of it
			// leaves.
			return true
		default:
			g.deny(o, d)
		}
		return false
	}
}

// listenTo waits for the first bytes. A client that says nothing may be waiting
// for its server: if a rule would tunnel that, there is nothing more to learn.
func (g *Gateway) listenTo(ctx context.Context, o *connection) (policy.Protocol, string, error) {
	start := time.Now()
	_ = o.SetReadDeadline(start.Add(g.firstByte))
	protocol, sni, err := o.Sniff()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		if len(o.Seen) == 0 && !o.flow.refused {
			in := o.flow.input()
			in.Protocol = policy.ProtocolOther
			if a := g.decide(ctx, in).Action; a == policy.Tunnel || a == policy.Approve && g.approvals != nil {
				_ = o.SetReadDeadline(time.Time{})
				o.silent = true
				return policy.ProtocolOther, "", nil
			}
		}
		_ = o.SetReadDeadline(start.Add(g.handshake))
		protocol, sni, err = o.Sniff()
	}
	if errors.Is(err, io.EOF) && len(o.Seen) > 0 {
		protocol, err = policy.ProtocolOther, nil // said all it wanted to, in few bytes
	}
	_ = o.SetReadDeadline(time.Time{})
	return protocol, sni, err
}

// agree takes in the name of a ClientHello and says why it cannot stand.
func (f *flow) agree(sni string) string {
	if sni == "" {
		f.authority = form.JoinAuthority(f.host, f.port, f.tls())
		return ""
	}
	name, err := form.Hostname(sni)
	if err != nil || form.IsAddress(name) {
		return "the name in the TLS handshake is not a host name"
	}
	f.sni = name
	switch {
	case f.refused:
		f.host = name
	case f.host != name && !f.bare():
		return "the connection is to " + f.host + " but the TLS handshake names " + name
	}
	f.authority = form.JoinAuthority(f.host, f.port, f.tls())
	return ""
}

// connect decides on a connection.
func (g *Gateway) connect(ctx context.Context, f *flow) policy.Decision {
	if f.refused {
		return g.unlisted(ctx, f)
	}
	d := g.decide(ctx, f.input())
	switch {
	case d.Action != policy.Allow:
		return d
	case f.protocol == policy.ProtocolOther:
		return floor(d, "protocol", "neither TLS nor HTTP: only a rule with action tunnel can carry it")
	case f.bare() && f.sni != "":
		return floor(d, "name", "the connection is to the address "+f.host+" but the TLS handshake names "+f.sni+": connect to the name")
	}
	return d
}

// unlisted denies a connection to the refusal address, with policy's reason
// where it has one. A rule may have come since the look-up: the name needs to
// be looked up again, since this address stands for none.
func (g *Gateway) unlisted(ctx context.Context, f *flow) policy.Decision {
	if f.host == "" {
		return floor(policy.Decision{}, "name", "no rule allows the name that led to this address")
	}
	d := g.decide(ctx, f.input())
	if d.Action == policy.Allow || d.Action == policy.Tunnel || d.Action == policy.Approve && g.approvals != nil {
		d = floor(d, "stale-name", "the name "+f.host+" was refused when it was looked up and is allowed by now: look it up again")
	}
	return d
}

// deny records a denied connection once and, where it speaks a protocol that
// has room for it, says so.
func (g *Gateway) deny(o *connection, d policy.Decision) {
	f := o.flow
	id := g.denial(f, g.rejection(f, policy.PhaseConnect, d))
	where := form.JoinAuthority(f.host, f.port, f.tls())
	if f.host == "" {
		where = "this destination"
	}
	g.tell(o, denied(d, id, where))
}

// rejection counts a refused connection and makes its event.
func (g *Gateway) rejection(f *flow, phase policy.Phase, d policy.Decision) *audit.Event {
	g.metrics.decision(phase, d)
	d.Revision = cmp.Or(d.Revision, g.revision())
	e := f.event(new(audit.Exchange), audit.ClassNetwork, audit.NetworkRefuse, phase, d)
	e.Connection = overTCP()
	return e
}

// overTCP describes a connection that a sandbox has opened.
func overTCP() *audit.Connection {
	return &audit.Connection{ProtocolName: "tcp", ProtocolNum: 6, Direction: 2}
}

// tell answers whatever is asked on a connection, or closes it.
func (g *Gateway) tell(o *connection, a *answer) {
	if o.flow.protocol == policy.ProtocolOther {
		_ = o.Close()
		return
	}
	o.flow.answer = a
	g.intercept(o)
}

// intercept ends the sandbox's TLS and gives the connection to the HTTP server.
func (g *Gateway) intercept(o *connection) {
	if !o.flow.tls() {
		g.serve(o, o.flow)
		return
	}
	if conn := g.agreed(o); conn != nil {
		g.serve(conn, o.flow)
	}
}

// agreed ends TLS with a sandbox. It returns nil, and has closed the connection,
// where that came to nothing.
func (g *Gateway) agreed(o *connection) *tls.Conn {
	f := o.flow
	config, err := g.certificates.ServerConfig(f.identity.ID, f.leaf())
	if err != nil {
		g.logger.Error("no certificate for an intercepted connection", "sandbox", f.identity.Name, "error", err)
		_ = o.Close()
		return nil
	}
	var mine turn
	mine.begin(g.hellos, f.identity.ID)
	defer mine.end()
	conn := tls.Server(o, config)
	_ = o.SetDeadline(time.Now().Add(g.handshake))
	if err := conn.Handshake(); err != nil {
		// Most often a client that does not trust its sandbox's authority.
		g.metrics.handshakes.Inc()
		g.logger.Info("a sandbox did not finish its TLS handshake", "sandbox", f.identity.Name, "name", f.leaf(), "error", err)
		// One that was to be told of a denial is recorded already, and whoever
		// goes away in the middle may have had enough of waiting.
		if f.answer == nil && !tcp.ClientLeft(err) {
			g.unfinished(f, "tls", "the TLS handshake with the sandbox's authority was not finished: a client that brings its own roots or pins certificates needs a rule with action tunnel")
		}
		_ = o.Close()
		return nil
	}
	_ = o.SetDeadline(time.Time{})
	o.line.top.Store(conn)
	return conn
}

// silence is why a connection is over that has asked for nothing.
const (
	silence   = "the connection was opened and did not say in time what for"
	noRequest = "the connection of HTTP/2 ended before a request came of it: it said nothing in time, or what cannot be read"
)

// unfinished records a connection that nothing was decided about. Those that
// come from nobody known are alike by the address that they come from.
func (g *Gateway) unfinished(f *flow, rule, reason string) {
	g.floods.add(cmp.Or(f.host, text(f.source.Addr())), g.rejection(f, policy.PhaseConnect, floor(policy.Decision{}, rule, reason)))
}

// silent records a connection that was agreed on and on which no request came in
// time. A denial that nobody came for is recorded already.
func (g *Gateway) silent(f *flow, reason string) {
	g.metrics.aborted.Inc()
	if f.answer == nil {
		g.unfinished(f, "opening", reason)
	}
}

type flowKey struct{}

// whose is the connection that a context is of, nil for none.
func whose(ctx context.Context) *flow {
	switch of := ctx.Value(flowKey{}).(type) {
	case *flow:
		return of
	case *caller:
		return of.who()
	}
	return nil
}

// serve answers the requests of a connection that is being read.
func (g *Gateway) serve(c net.Conn, f *flow) {
	ctx := context.WithValue(f.line.ctx, flowKey{}, f)
	if speaksHTTP2(c) {
		g.serveHTTP2(ctx, c, f)
		return
	}
	g.web.ServeConn(ctx, c, func(ctx context.Context, w http.ResponseWriter, r *http.Request) {
		g.serveExchange(ctx, f.line.cancel, w, r, f, new(turn))
	})
}

// unreadable answers a request that has no single reading, and records it.
func (g *Gateway) unreadable(ctx context.Context, w http.ResponseWriter, r *http.Request, err *http1.RefusedError) {
	d := floor(policy.Decision{}, "request-form", err.Error())
	var id string
	if f := whose(ctx); f != nil {
		id = g.denial(f, g.rejection(f, policy.PhaseRequest, d))
	}
	a := denied(d, id, "")
	a.Status = err.Status
	if remedy, ok := forms[err.Status]; ok {
		a.Remedy = remedy
	}
	a.write(w, r)
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
