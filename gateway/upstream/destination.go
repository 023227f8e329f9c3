package upstream

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"sallyport/policy"
)

// Bounds of what an upstream can make us hold.
const (
	maxResponseHeader = 256 << 10 // bytes of a head, the informational ones before it included
	keepAlivePeriod   = 30 * time.Second
)

// destination carries requests of one sandbox, with one credential, to one place.
type destination struct {
	pool    *Pool
	sandbox *sandboxPool
	route   Route

	scheme    string
	authority string // host:port
	bare      string // host as it is in a URL
	dialled   string // what net.Dialer gets: an address, or a rooted name
	named     []netip.Prefix
	resolver  *net.Resolver
	roots     *x509.CertPool
	hop       *hop           // the proxy on the way, or nil
	unread    bool           // for a tunnel, whose far end may speak first
	at        netip.AddrPort // to connect to, valid unless the name is looked up
	transport *transport
}

// destination checks a route and prepares to dial it.
func (p *Pool) destination(t *sandboxPool, r Route) (*destination, error) {
	addr, err := checkHost(r.Host)
	if err != nil {
		return nil, &Error{Kind: KindHost, Host: r.Host, Port: r.Port, Err: err}
	}
	u := r.Upstream
	if u == nil {
		u = &policy.Upstream{}
	}
	named, err := parseAddresses(u.Addresses)
	if err != nil {
		return nil, &Error{Kind: KindRule, Host: r.Host, Port: r.Port, Err: err}
	}
	d := &destination{
		pool: p, sandbox: t, route: r,
		scheme:    "http",
		authority: hostPort(r.Host, r.Port),
		bare:      r.Host,
		// Rooted, so that no search domain of the host is tried.
		dialled:  hostPort(r.Host+".", r.Port),
		named:    named,
		resolver: newResolver(u.Resolver, p.o.DialTimeout),
	}
	if r.TLS {
		d.scheme = "https"
	}
	if addr.IsValid() {
		d.dialled = netip.AddrPortFrom(addr, r.Port).String()
		if addr.Is6() {
			d.bare = "[" + r.Host + "]"
		}
	}
	if u.Proxy != "" {
		if d.hop, err = p.hop(t, u); err != nil {
			return nil, &Error{Kind: KindRule, Host: r.Host, Port: r.Port, Err: err}
		}
	}
	return d, nil
}

// hostPort is host and port as a URL has them.
func hostPort(host string, port uint16) string {
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}

// newResolver asks the server at address, or the host's when it is empty. Either
// way the host's /etc/hosts is consulted first.
func newResolver(address string, timeout time.Duration) *net.Resolver {
	r := &net.Resolver{PreferGo: true}
	if address != "" {
		r.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{Timeout: timeout}).DialContext(ctx, network, address)
		}
	}
	return r
}

// hostsFile knows what is in /etc/hosts, and asks nobody.
var hostsFile = &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
	return nil, errors.New("not in /etc/hosts")
}}

// inHosts tells whether /etc/hosts has a name of a single label. Package net
// finds such a one only as it is written there, and a rooted one not at all.
func (d *destination) inHosts(ctx context.Context) bool {
	if strings.ContainsAny(d.route.Host, ".:") {
		return false
	}
	_, err := hostsFile.LookupNetIP(ctx, "ip", d.route.Host)
	return err == nil
}

func (d *destination) newTransport() *transport {
	o, plain := &d.pool.o, !d.route.TLS
	t := &transport{
		dial: d.dial, near: d.hop == nil, pool: o, sandbox: d.route.Sandbox, windows: d.pool.windows,
		multi: newMultiplexer(o, plain, streamWindow), narrow: newMultiplexer(o, plain, narrowWindow),
	}
	if d.route.TLS {
		t.tls = clientTLS(d.route.Host, d.roots)
		t.tls.NextProtos = []string{"h2", "http/1.1"}
		t.tls.ClientSessionCache = tls.NewLRUClientSessionCache(4)
		t.tls.DynamicRecordSizingDisabled = true // a request goes in one write
		if c := d.route.Certificate; c != nil {
			// Also where the upstream names other authorities than its issuer: it then says
			// why it refuses.
			t.tls.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return c, nil }
		}
	}
	return t
}

// RoundTrip implements http.RoundTripper.
func (d *destination) RoundTrip(req *http.Request) (*http.Response, error) {
	if !d.is(req.URL) || req.Host != "" && !d.names(req.Host) {
		if req.Body != nil {
			req.Body.Close()
		}
		return nil, d.fail(errOther)
	}
	resp, err := d.transport.RoundTrip(req)
	if err == nil {
		return resp, nil
	}
	// The transport returns the context's cause, which may be anything.
	if ctx := req.Context().Err(); ctx != nil && !errors.Is(err, ctx) {
		err = fmt.Errorf("%w: %w", ctx, err)
	}
	return nil, d.fail(err)
}

// is reports whether a URL leads to this destination. An opaque one could put
// another authority into the request line.
func (d *destination) is(u *url.URL) bool {
	if u == nil || u.Scheme != d.scheme || u.Opaque != "" {
		return false
	}
	return equal(u.Host, d.authority) || d.usualPort() && equal(u.Host, d.bare)
}

// names reports whether a Host header is this destination's. Clients leave the
// port out even where RFC 9110 wants it.
func (d *destination) names(host string) bool {
	return equal(host, d.bare) || equal(host, d.authority)
}

// equal ignores the case of ASCII. Letters that Unicode folds into ASCII, like
// the Kelvin sign, are longer.
func equal(s, ascii string) bool { return len(s) == len(ascii) && strings.EqualFold(s, ascii) }

func (d *destination) usualPort() bool {
	if d.route.TLS {
		return d.route.Port == 443
	}
	return d.route.Port == 80
}

// dial opens one connection, by way of the proxy if there is one.
func (d *destination) dial(ctx context.Context) (stream, error) {
	if d.hop != nil {
		return d.through(ctx)
	}
	c, err := d.connect(ctx)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// connect opens one TCP connection. Every address is judged by the hook that runs
// between socket(2) and connect(2), so nothing can change in between.
func (d *destination) connect(ctx context.Context) (*conn, error) {
	if err := d.sandbox.reserve(); err != nil {
		return nil, err
	}
	var denied atomic.Pointer[AddressError]
	dialer := net.Dialer{
		Timeout:         d.pool.o.DialTimeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: keepAlivePeriod, Interval: keepAlivePeriod, Count: 5},
		Resolver:        d.resolver,
		ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
			if err := d.judge(address); err != nil {
				denied.Store(err)
				return err
			}
			return nil
		},
	}
	dialled := d.dialled
	switch {
	case d.at.IsValid():
		dialled = d.at.String()
	case d.inHosts(ctx):
		dialer.Resolver, dialled = hostsFile, d.authority
	}
	c, err := dialer.DialContext(ctx, "tcp", dialled)
	if err != nil {
		d.sandbox.opened(nil)
		// Of several addresses the dialer reports the first's failure; one that
		// we refused says more.
		if a := denied.Load(); a != nil {
			return nil, a
		}
		return nil, err
	}
	return d.sandbox.opened(c.(*net.TCPConn)) // what "tcp" always is
}

func (d *destination) judge(address string) *AddressError {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return &AddressError{Host: d.route.Host}
	}
	a := ap.Addr().Unmap().WithZone("")
	if class, ok := permitted(a, d.named, d.pool.o.Local()); !ok {
		return &AddressError{Host: d.route.Host, Addr: a, Class: class}
	}
	return nil
}
