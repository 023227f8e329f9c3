package upstream

import (
	"context"
	"crypto/tls"
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
	maxResponseHeader = 1 << 20 // bytes
	keepAlivePeriod   = 30 * time.Second
)

// destination carries requests of one sandbox, with one credential, to one place.
type destination struct {
	pool   *Pool
	tenant *tenant
	route  Route

	scheme    string
	authority string // host:port
	bare      string // host as it is in a URL
	dialled   string // what net.Dialer gets: an address, or a rooted name
	named     []netip.Prefix
	resolver  *net.Resolver
	roots     *roots
	transport *http.Transport
}

// destination checks a route and prepares to dial it.
func (p *Pool) destination(t *tenant, r Route) (*destination, error) {
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
	port := strconv.Itoa(int(r.Port))
	d := &destination{
		pool: p, tenant: t, route: r,
		scheme:    "http",
		authority: net.JoinHostPort(r.Host, port),
		bare:      r.Host,
		// Rooted, so that no search domain of the host is tried.
		dialled:  net.JoinHostPort(r.Host+".", port),
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
	return d, nil
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

func (d *destination) newTransport() *http.Transport {
	t := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			c, err := d.dial(ctx)
			if err != nil {
				return nil, err // not a nil *conn in an interface
			}
			return c, nil
		},
		DisableCompression:     true, // what the upstream sent is what the sandbox gets
		MaxIdleConns:           maxIdle,
		MaxIdleConnsPerHost:    maxIdle,
		IdleConnTimeout:        d.pool.o.IdleTimeout,
		TLSHandshakeTimeout:    d.pool.o.HandshakeTimeout,
		ResponseHeaderTimeout:  d.pool.o.HeaderTimeout,
		ExpectContinueTimeout:  time.Second,
		MaxResponseHeaderBytes: maxResponseHeader,
	}
	if d.route.TLS {
		t.TLSClientConfig = &tls.Config{
			ServerName:         d.route.Host,
			MinVersion:         tls.VersionTLS12,
			NextProtos:         []string{"http/1.1"},
			ClientSessionCache: tls.NewLRUClientSessionCache(4),
		}
		if d.roots != nil {
			t.TLSClientConfig.RootCAs = d.roots.pool
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
	if err != nil {
		return nil, d.fail(err)
	}
	return resp, nil
}

// is reports whether a URL leads to this destination.
func (d *destination) is(u *url.URL) bool {
	if u == nil || u.Scheme != d.scheme {
		return false
	}
	return strings.EqualFold(u.Host, d.authority) || d.usualPort() && strings.EqualFold(u.Host, d.bare)
}

// names reports whether a Host header is this destination's. Clients leave the
// port out even where RFC 9110 wants it.
func (d *destination) names(host string) bool {
	return strings.EqualFold(host, d.bare) || strings.EqualFold(host, d.authority)
}

func (d *destination) usualPort() bool {
	if d.route.TLS {
		return d.route.Port == 443
	}
	return d.route.Port == 80
}

// dial opens one TCP connection. Every address is judged by the hook that runs
// between socket(2) and connect(2), so nothing can change in between.
func (d *destination) dial(ctx context.Context) (*conn, error) {
	if err := d.tenant.reserve(); err != nil {
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
	c, err := dialer.DialContext(ctx, "tcp", d.dialled)
	if err != nil {
		d.tenant.settle(nil)
		// Of several addresses the dialer reports the first's failure; one that
		// we refused says more.
		if a := denied.Load(); a != nil {
			return nil, a
		}
		return nil, err
	}
	return d.tenant.settle(c.(*net.TCPConn)) // what "tcp" always is
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
