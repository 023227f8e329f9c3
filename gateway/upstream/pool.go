// Package upstream reaches destinations for the gateway: it resolves, classifies
// the very address connected to, dials, verifies TLS and pools.
//
// It guarantees that no connection is opened to an address that is not public
// unless the route's rule names it, whatever DNS answers and however often it
// changes its mind; that a proxy on the way is asked for such addresses only,
// unless the rule leaves the name to it; that TLS is verified, always, also
// inside of what a proxy opens; that a connection or TLS session made for one
// sandbox, credential, client certificate or way of reaching the destination serves no other; and
// that a RoundTripper sends nothing to another destination than its route's. It
// asks no policy: its caller has decided already.
package upstream

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"sallyport/internal/quota"
	"sallyport/policy"
)

// Bounds for one sandbox. The least recently used one makes room.
const (
	maxDestinations = 256
	maxConns        = 1024
	maxIdle         = 512 // idle connections to one destination
)

// Options of a Pool. The zero Options works.
type Options struct {
	// Local lists this host's own addresses (as /32 or /128) and the sandbox
	// networks. It is called for every connection; default: none.
	Local func() []netip.Prefix
	// Logins returns the logins of proxies. Default: none, so that a proxy with a login
	// cannot be used.
	Logins Logins
	Logger *slog.Logger // default: slog.Default()
	// DialTimeout bounds lookup and TCP connection. Default: 10 s.
	DialTimeout time.Duration
	// HandshakeTimeout bounds the TLS handshake. Default: 10 s.
	HandshakeTimeout time.Duration
	// IdleTimeout is how long a connection waits for the next request. Default: 90 s.
	IdleTimeout time.Duration
	// HeaderTimeout bounds the wait for a response's header. Default: none,
	// since a model may think for minutes before its first byte.
	HeaderTimeout time.Duration
}

// Route is a destination, the way to it, and the sandbox and credential that it is reached
// for.
type Route struct {
	Sandbox    string // ID
	Credential string // names of what is injected, empty for none
	Host       string // name, or the text of an IP address
	Port       uint16
	TLS        bool
	Upstream   *policy.Upstream
	// Certificate is shown in the TLS handshake with the destination, nil for none. A
	// connection serves only requests with the same one.
	Certificate *tls.Certificate
}

// Pool opens connections and keeps them for the next request. It is safe for
// concurrent use.
type Pool struct {
	o       Options
	roots   rootsCache
	windows *quota.Places // of responses that an upstream of HTTP/2 may send much of ahead

	mu        sync.RWMutex
	sandboxes map[string]*sandboxPool // by sandbox, until Forget
	closed    bool
}

// New returns an empty pool.
func New(o Options) *Pool {
	if o.Local == nil {
		o.Local = func() []netip.Prefix { return nil }
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	for _, d := range []struct {
		timeout *time.Duration
		value   time.Duration
	}{{&o.DialTimeout, 10 * time.Second}, {&o.HandshakeTimeout, 10 * time.Second}, {&o.IdleTimeout, 90 * time.Second}} {
		if *d.timeout == 0 {
			*d.timeout = d.value
		}
	}
	return &Pool{o: o, sandboxes: map[string]*sandboxPool{}, windows: quota.New(wideWindows, wideWindowsOfOne)}
}

// RoundTripper returns the transport of the route's destination, which refuses requests
// whose URL or Host names another one. Get it anew for each request: that is cheap, and a
// changed roots file is used a second later at most. Its errors, and those of RoundTrip,
// are *Error.
func (p *Pool) RoundTripper(r Route) (http.RoundTripper, error) {
	r.Host = normal(r.Host)
	t, err := p.sandbox(r)
	if err != nil {
		return nil, err
	}
	roots, err := r.trusted(p)
	if err != nil {
		return nil, err
	}
	k := keyOf(r)
	if d := t.lookup(k, roots); d != nil {
		return d, nil
	}
	d, err := p.destination(t, r)
	if err != nil {
		return nil, err
	}
	d.roots = roots
	d.transport = d.newTransport()
	return t.store(k, d), nil
}

// Dial opens a TCP connection for a tunnel; TLS, if any, is the sandbox's own.
// The caller closes it. Its errors are *Error.
func (p *Pool) Dial(ctx context.Context, r Route) (net.Conn, error) {
	r.Host = normal(r.Host)
	t, err := p.sandbox(r)
	if err != nil {
		return nil, err
	}
	d, err := p.destination(t, r)
	if err != nil {
		return nil, err
	}
	d.unread = true
	c, err := d.dial(ctx)
	if err != nil {
		return nil, d.fail(err)
	}
	return c, nil
}

// Forget closes every connection of a sandbox, also those in use.
func (p *Pool) Forget(sandbox string) {
	p.mu.Lock()
	t := p.sandboxes[sandbox]
	delete(p.sandboxes, sandbox)
	p.mu.Unlock()
	if t != nil {
		t.close()
	}
}

// Retire drops the destinations whose routes are gone: idle connections are closed at
// once, others after their last response, and no new request uses them.
func (p *Pool) Retire(gone func(Route) bool) {
	p.mu.RLock()
	all := make([]*sandboxPool, 0, len(p.sandboxes))
	for _, t := range p.sandboxes {
		all = append(all, t)
	}
	p.mu.RUnlock()
	for _, t := range all {
		t.retire(gone)
	}
}

// Close closes all connections and refuses new ones.
func (p *Pool) Close() {
	p.mu.Lock()
	all := p.sandboxes
	p.sandboxes, p.closed = nil, true
	p.mu.Unlock()
	for _, t := range all {
		t.close()
	}
}

func (p *Pool) sandbox(r Route) (*sandboxPool, error) {
	p.mu.RLock()
	t := p.sandboxes[r.Sandbox]
	p.mu.RUnlock()
	if t != nil {
		return t, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, &Error{Kind: KindClosed, Host: r.Host, Port: r.Port, Err: net.ErrClosed}
	}
	if t = p.sandboxes[r.Sandbox]; t == nil {
		t = newSandboxPool()
		p.sandboxes[r.Sandbox] = t
	}
	return t, nil
}

// key is everything that two requests must share to share a connection.
type key struct {
	credential, host      string
	port                  uint16
	tls                   bool
	addresses, roots, way string            // the resolver, and all about the proxy
	certificate           [sha256.Size]byte // digest of the client's, zero for none
}

func keyOf(r Route) key {
	k := key{credential: r.Credential, host: r.Host, port: r.Port, tls: r.TLS}
	if c := r.Certificate; c != nil {
		k.certificate = sha256.Sum256(c.Certificate[0])
	}
	if u := r.Upstream; u != nil {
		k.addresses, k.roots, k.way = strings.Join(u.Addresses, " "), u.Roots, u.Resolver
		if u.Proxy != "" {
			k.way = strings.Join([]string{u.Resolver, u.Proxy, u.ProxyAuthRef, u.ProxyRoots, u.Resolve}, " ")
		}
	}
	return k
}

// normal is a name in lower case without trailing dot.
func normal(host string) string { return strings.ToLower(strings.TrimSuffix(host, ".")) }
