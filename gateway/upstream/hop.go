package upstream

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"
	"time"

	"sallyport/gateway/credential"
	"sallyport/policy"
)

// Logins leases the logins of proxies.
type Logins interface {
	// Login returns username and password of a credential for a proxy, given as
	// scheme://host:port.
	Login(ctx context.Context, name, proxy string) (username, password credential.Secret, err error)
}

// stream is a connection to a destination, and the socket that carries it.
type stream interface {
	net.Conn
	syscall.Conn
}

// hop is the proxy on the way to a destination.
type hop struct {
	proxy policy.Proxy
	// direct reaches the proxy, whose address is judged as any is.
	direct *destination
	login  string // name of a credential, empty for none
	roots  string // file, empty for the system's
	names  bool   // the proxy looks names up
}

func (p *Pool) hop(t *sandboxPool, u *policy.Upstream) (*hop, error) {
	proxy, err := policy.ParseProxy(u.Proxy)
	if err != nil {
		return nil, fmt.Errorf("upstream.proxy: %w", err)
	}
	direct, err := p.destination(t, Route{
		Host: proxy.Host, Port: proxy.Port, Upstream: &policy.Upstream{Addresses: u.Addresses, Resolver: u.Resolver},
	})
	if err != nil {
		return nil, err
	}
	return &hop{proxy, direct, u.ProxyAuthRef, u.ProxyRoots, u.Resolve == policy.ResolveProxy}, nil
}

// protocol is what the proxy should speak.
func (h *hop) protocol() string {
	if h.proxy.Scheme == policy.ProxySOCKS5 {
		return "SOCKS5"
	}
	return "HTTP"
}

// target is what a proxy is asked for.
type target struct {
	addr netip.Addr // invalid when the proxy is to look name up
	name string
	port uint16
}

func (t target) String() string {
	host := t.name
	if t.addr.IsValid() {
		host = t.addr.String()
	}
	return hostPort(host, t.port)
}

// login is who a proxy is told that we are; nil says nothing.
type login struct{ username, password credential.Secret }

// through opens a connection by way of the proxy. All of it, lookup, connection
// and the proxy's answers, takes at most DialTimeout and HandshakeTimeout together.
func (d *destination) through(ctx context.Context) (stream, error) {
	ctx, cancel := context.WithTimeout(ctx, d.pool.o.DialTimeout+d.pool.o.HandshakeTimeout)
	defer cancel()
	targets, err := d.targets(ctx)
	if err != nil {
		return nil, err
	}
	l, err := d.hop.lease(ctx)
	if err != nil {
		return nil, err
	}
	for i, to := range targets {
		c, err := d.open(ctx, to, l)
		if err == nil {
			return c, nil
		}
		if p := (*ProxyError)(nil); i == len(targets)-1 || !errors.As(err, &p) || !p.elsewhere {
			return nil, err
		}
	}
	return nil, &net.DNSError{Err: "no address", Name: d.route.Host, IsNotFound: true}
}

// perFamily bounds how many addresses of a destination a proxy is asked for.
const perFamily = 2

// targets looks the destination up and leaves what may be dialled, IPv4 first,
// since that is what most proxies have.
func (d *destination) targets(ctx context.Context) ([]target, error) {
	addr, err := netip.ParseAddr(d.route.Host)
	if err != nil && d.hop.names {
		return []target{{name: d.route.Host, port: d.route.Port}}, nil
	}
	all := []netip.Addr{addr}
	if err != nil {
		resolver, name := d.resolver, d.route.Host+"."
		if d.inHosts(ctx) {
			resolver, name = hostsFile, d.route.Host
		}
		if all, err = resolver.LookupNetIP(ctx, "ip", name); err != nil {
			return nil, err
		}
	}
	var four, six []target
	var denied *AddressError
	for _, a := range all {
		a = a.Unmap()
		switch err := d.judge(netip.AddrPortFrom(a, d.route.Port).String()); {
		case err != nil:
			denied = err
		case a.Is4() && len(four) < perFamily:
			four = append(four, target{addr: a, port: d.route.Port})
		case a.Is6() && len(six) < perFamily:
			six = append(six, target{addr: a, port: d.route.Port})
		}
	}
	if denied != nil && len(four)+len(six) == 0 {
		return nil, denied
	}
	return append(four, six...), nil
}

func (h *hop) lease(ctx context.Context) (*login, error) {
	if h.login == "" {
		return nil, nil
	}
	logins := h.direct.pool.o.Logins
	if logins == nil {
		return nil, &LoginError{Credential: h.login, Err: credential.ErrUnknown}
	}
	username, password, err := logins.Login(ctx, h.login, h.proxy.String())
	if err != nil {
		return nil, &LoginError{Credential: h.login, Err: err}
	}
	return &login{username, password}, nil
}

// open connects to the proxy and asks it for the target.
func (d *destination) open(ctx context.Context, to target, l *login) (stream, error) {
	h := d.hop
	raw, err := h.direct.connect(ctx)
	if err != nil {
		return nil, h.failed(err)
	}
	// An address may be named for the proxy's sake: it is not for the sandbox to
	// talk to, least of all as the proxy itself.
	if remote, ok := raw.RemoteAddr().(*net.TCPAddr); ok && remote.AddrPort().Addr().Unmap() == to.addr {
		_ = raw.Close()
		return nil, &ProxyError{Proxy: h.proxy.String(), advice: fmt.Sprintf("is %s itself, where %s leads to: write a rule without proxy for it", to.addr, d.route.Host)}
	}
	stop := context.AfterFunc(ctx, func() { _ = raw.SetDeadline(time.Unix(1, 0)) })
	c, err := d.ask(ctx, raw, to, l)
	if !stop() {
		err = errors.Join(ctx.Err(), err)
	}
	if err != nil {
		_ = raw.Close()
		return nil, h.failed(err)
	}
	return c, nil
}

// maxProxyHead bounds all that a proxy says before the tunnel begins, in bytes.
const maxProxyHead = 64 << 10

var errProxyEarly = errors.New("bytes of a destination that has been sent nothing")

func (d *destination) ask(ctx context.Context, raw *conn, to target, l *login) (stream, error) {
	h := d.hop
	var c net.Conn = raw
	if h.proxy.Scheme == policy.ProxyHTTPS {
		secure, err := h.secure(ctx, raw)
		if err != nil {
			return nil, err
		}
		c = secure
	}
	in := bufio.NewReader(io.LimitReader(c, maxProxyHead))
	negotiate := askHTTP
	if h.proxy.Scheme == policy.ProxySOCKS5 {
		negotiate = askSOCKS
	}
	if err := negotiate(c, in, to, l); err != nil {
		return nil, err
	}
	early, _ := in.Peek(in.Buffered()) // no more than there is
	switch {
	case len(early) > 0 && !d.unread:
		// A TLS server and an HTTP server speak when spoken to. This is an
		// answer to a question that was not asked yet.
		return nil, errProxyEarly
	case len(early) == 0 && c == net.Conn(raw):
		return raw, nil
	}
	return &passage{Conn: c, raw: raw, early: early}, nil
}

// secure does the TLS handshake with the proxy. No session of it is kept, which
// would outlive the trust in its roots.
func (h *hop) secure(ctx context.Context, raw net.Conn) (net.Conn, error) {
	roots, err := h.direct.pool.trusted(h.roots, "proxyRoots", h.proxy.Host, h.proxy.Port)
	if err != nil {
		return nil, err
	}
	config := clientTLS(h.proxy.Host, roots)
	config.NextProtos = []string{"http/1.1"}
	c := tls.Client(raw, config)
	return c, c.HandshakeContext(ctx)
}

// passage is a connection that is more than its socket: TLS to the proxy, or
// with bytes that came together with the proxy's answer.
type passage struct {
	net.Conn
	raw   *conn
	early []byte
}

func (p *passage) Read(b []byte) (int, error) {
	if len(p.early) > 0 {
		n := copy(b, p.early)
		p.early = p.early[n:]
		return n, nil
	}
	return p.Conn.Read(b)
}

// SyscallConn implements syscall.Conn.
func (p *passage) SyscallConn() (syscall.RawConn, error) { return p.raw.SyscallConn() }

// CloseWrite ends one direction, as TCP and TLS can.
func (p *passage) CloseWrite() error {
	return p.Conn.(interface{ CloseWrite() error }).CloseWrite() // *conn or *tls.Conn
}
