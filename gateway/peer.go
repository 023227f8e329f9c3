package gateway

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"sync/atomic"

	"sallyport/audit"
	"sallyport/gateway/answer"
	"sallyport/gateway/credential/sent"
	"sallyport/gateway/event"
	"sallyport/gateway/form"
	"sallyport/gateway/upstream"
	"sallyport/policy"
)

// peer is the sandbox or client behind a connection. It does not change.
type peer struct {
	identity Identity // zero where it is not known
	source   netip.AddrPort
	from     *audit.Endpoint // source as events have it; all of a connection's share one
	recorded *atomic.Bool    // an event has from, and is in the audit log or queued
	// valid says whether the sandbox or client may still use what it connected with;
	// nil: always.
	valid func() bool
	// secrets are what was sent to upstreams for the sandbox.
	secrets *sent.Secrets
}

// unknownPeer is the peer of a connection whose sandbox or client is not known.
func unknownPeer(source netip.AddrPort) *peer {
	var shared struct {
		from     audit.Endpoint
		recorded atomic.Bool
	}
	shared.from = audit.Endpoint{IP: event.Text(source.Addr()), Port: int(source.Port())}
	return &peer{source: source, from: &shared.from, recorded: &shared.recorded}
}

// is returns the peer as a known one.
func (p *peer) is(identity Identity) *peer {
	from := *p.from
	if identity.Address.IsValid() { // it is no client elsewhere
		from.Container = &audit.Container{Name: identity.Name, UID: identity.ID}
	}
	return &peer{source: p.source, from: &from, recorded: p.recorded, identity: identity}
}

// target is where a connection goes, and how it speaks. It does not change: its methods
// return others.
type target struct {
	// dialled is the address that the sandbox connected to, zero for a client of the
	// explicit proxy.
	dialled netip.Addr
	// host is what policy decides on: the name behind a synthetic address, the host of
	// a CONNECT, or a bare IP address. It is empty when the refusal address was dialled
	// and nothing has named a host yet.
	host string
	port uint16
	// refused says that the refusal address was dialled: nothing on this connection is
	// ever carried.
	refused  bool
	protocol policy.Protocol
	sni      string
	// authority is how host and port appear in a Host header.
	authority string
}

// bare tells whether the destination is an address rather than a name.
func (t target) bare() bool { return form.IsAddress(t.host) }

func (t target) tls() bool { return t.protocol == policy.ProtocolTLS }

func (t target) scheme() string {
	if t.tls() {
		return "https"
	}
	return "http"
}

// leaf is the name that the sandbox expects in a certificate.
func (t target) leaf() string {
	switch {
	case t.sni != "":
		return t.sni
	case t.host != "":
		return t.host
	}
	return t.dialled.String()
}

// to returns the target with another host.
func (t target) to(host string) target {
	t.host, t.authority = host, form.JoinAuthority(host, t.port, t.tls())
	return t
}

// checkSNI takes in the name of a ClientHello, empty for none, and says why it cannot
// stand.
func (t target) checkSNI(sni string) (_ target, problem string) {
	if sni == "" {
		return t.to(t.host), ""
	}
	name, err := form.Hostname(sni)
	if err != nil || form.IsAddress(name) {
		return t, "the name in the TLS handshake is not a host name"
	}
	t.sni = name
	switch {
	case t.refused:
		t.host = name
	case t.host != name && !t.bare():
		return t, "the connection is to " + t.host + " but the TLS handshake names " + name
	}
	return t.to(t.host), ""
}

// input is what policy decides a connection on.
func (t target) input(p *peer) policy.Input {
	return policy.Input{
		Phase:       policy.PhaseConnect,
		Sandbox:     p.identity.Sandbox,
		Destination: policy.Destination{Host: t.host, Port: t.port},
		Protocol:    t.protocol,
	}
}

// route is how a connection or request goes out.
func (t target) route(p *peer, d policy.Decision, credential string, tls bool) upstream.Route {
	return upstream.Route{
		Sandbox:    p.identity.ID,
		Credential: credential,
		Host:       t.host,
		Port:       t.port,
		TLS:        tls,
		Upstream:   d.Upstream,
	}
}

// session is what all requests on one connection share. It does not change once the
// connection is handed to the HTTP server.
type session struct {
	*peer
	target
	life *lifetime
	// epoch is that in which a connection that holds a single request was decided on, 0
	// for others: see [live.Set].
	epoch uint64
	// asks says that a rule wants approval for the connection: each of its requests is
	// asked about.
	asks bool
	// answer, when set, is all that a request on this connection is told.
	answer *answer.Answer
}

// readable tells whether a connection goes on being read under a decision.
func (s *session) readable(d policy.Decision) bool {
	return d.Action == policy.Allow || s.asks && d.Action == policy.Approve && (!s.protocol.IsOther() || d.Authorised)
}

// lifetime is a connection as far as it is ended.
type lifetime struct {
	ctx    context.Context // of all on it
	cancel context.CancelFunc
	conn   net.Conn
	top    atomic.Pointer[tls.Conn] // nil without TLS
	goAway atomic.Pointer[func()]   // sends GOAWAY (RFC 9113, section 6.8); nil without HTTP/2
}

func (l *lifetime) begin(ctx context.Context, c net.Conn) {
	l.ctx, l.cancel = context.WithCancel(ctx)
	l.conn = c
}
