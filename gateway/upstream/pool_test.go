package upstream

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sallyport/policy"
)

func TestReachesVerifiedUpstream(t *testing.T) {
	ca, z := newAuthority(t), newZone(t)
	s := newSite(t, "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{ca.host(t, []string{"api.example.test", "127.0.0.1"}, nil)}}, hello)
	plain := newSite(t, "127.0.0.1:0", nil, hello)
	z.set("api.example.test", []string{"127.0.0.1"})
	p := newPool(t, Options{})
	up := loopback(z, ca.file(t))
	for _, tt := range []struct {
		name  string
		route Route
	}{
		{"name over TLS", Route{Sandbox: "a", Host: "api.example.test", Port: s.port, TLS: true, Upstream: up}},
		{"name in another spelling", Route{Sandbox: "a", Host: "API.Example.test", Port: s.port, TLS: true, Upstream: up}},
		{"address over TLS", Route{Sandbox: "a", Host: "127.0.0.1", Port: s.port, TLS: true, Upstream: up}},
		{"name without TLS", Route{Sandbox: "a", Host: "api.example.test", Port: plain.port, Upstream: up}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			body, err := get(t, p, tt.route)
			if err != nil || !strings.HasPrefix(strings.ToLower(body), "hello ") {
				t.Errorf("got %q, %v", body, err)
			}
		})
	}
}

func TestIPv6Literal(t *testing.T) {
	if l, err := net.Listen("tcp", "[::1]:0"); err != nil {
		t.Skipf("this machine has no IPv6 loopback: %v", err)
	} else {
		l.Close()
	}
	ca := newAuthority(t)
	s := newSite(t, "[::1]:0", &tls.Config{Certificates: []tls.Certificate{ca.host(t, []string{"::1"}, nil)}}, hello)
	p := newPool(t, Options{})
	r := Route{Sandbox: "a", Host: "::1", Port: s.port, TLS: true, Upstream: &policy.Upstream{Addresses: []string{"::1"}, Roots: ca.file(t)}}
	if _, err := get(t, p, r); err != nil {
		t.Error(err)
	}
	r.Upstream = nil
	if _, err := p.Dial(t.Context(), r); kind(t, err) != KindAddress {
		t.Errorf("got %v", err)
	}
}

func TestCertificates(t *testing.T) {
	ca, stranger, z := newAuthority(t), newAuthority(t), newZone(t)
	z.set("api.example.test", []string{"127.0.0.1"})
	names := []string{"api.example.test"}
	for _, tt := range []struct {
		name string
		cert tls.Certificate
		max  uint16
		kind Kind
		says string
	}{
		{"expired", ca.host(t, names, func(c *x509.Certificate) {
			c.NotBefore, c.NotAfter = time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour)
		}), 0, KindCertificate, "is valid from"},
		{"not yet valid", ca.host(t, names, func(c *x509.Certificate) { c.NotBefore = time.Now().Add(30 * time.Minute) }), 0, KindCertificate, "is valid from"},
		{"another name", ca.host(t, []string{"evil.example.test"}, nil), 0, KindCertificate, "another name"},
		{"common name only", ca.host(t, nil, func(c *x509.Certificate) { c.Subject.CommonName = names[0] }), 0, KindCertificate, ""},
		{"unknown authority", stranger.host(t, names, nil), 0, KindCertificate, "upstream: {roots:"},
		{"self-signed", (&authority{}).host(t, names, nil), 0, KindCertificate, ""},
		{"client certificate", ca.host(t, names, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }), 0, KindCertificate, ""},
		{"TLS 1.1", ca.host(t, names, nil), tls.VersionTLS11, KindTLS, "TLS 1.2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			served := false
			s := newSite(t, "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{tt.cert}, MinVersion: tls.VersionTLS10, MaxVersion: tt.max},
				http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served = true }))
			p := newPool(t, Options{})
			_, err := get(t, p, Route{Sandbox: "a", Host: "api.example.test", Port: s.port, TLS: true, Upstream: loopback(z, ca.file(t))})
			if got := kind(t, err); got != tt.kind {
				t.Errorf("kind %v (%v), want %v", got, errors.Unwrap(err), tt.kind)
			}
			if !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%q does not say %q", err, tt.says)
			}
			s.Close()
			if served {
				t.Error("a request reached an upstream that was not verified")
			}
		})
	}
}

func TestRebinding(t *testing.T) {
	ca, z := newAuthority(t), newZone(t)
	cert := ca.host(t, []string{"api.example.test"}, nil)
	good := newSite(t, "127.0.0.2:0", &tls.Config{Certificates: []tls.Certificate{cert}}, hello)
	bad, err := net.Listen("tcp", netip.AddrPortFrom(netip.MustParseAddr("127.0.0.3"), good.port).String())
	if err != nil {
		t.Fatal(err)
	}
	reached := make(chan struct{}, 9)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := bad.Accept()
			if err != nil {
				return
			}
			c.Close()
			reached <- struct{}{}
		}
	}()
	t.Cleanup(func() { bad.Close(); <-done })
	// The first look-up gives what the rule names, the next ones what it does not.
	z.set("api.example.test", []string{"127.0.0.2"}, []string{"127.0.0.3"})
	z.set("both.example.test", []string{"127.0.0.3", "127.0.0.3"})
	up := &policy.Upstream{Addresses: []string{"127.0.0.2"}, Roots: ca.file(t), Resolver: z.addr}
	p := newPool(t, Options{})
	r := Route{Sandbox: "a", Host: "api.example.test", Port: good.port, TLS: true, Upstream: up}
	if _, err := get(t, p, r); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name  string
		fetch func() error
	}{
		{"a new connection", func() error { r := r; r.Credential = "other"; _, err := get(t, p, r); return err }},
		{"a tunnel", func() error { _, err := p.Dial(t.Context(), r); return err }},
		{"several addresses", func() error { r := r; r.Host = "both.example.test"; _, err := p.Dial(t.Context(), r); return err }},
		{"a bare address", func() error { r := r; r.Host = "127.0.0.3"; _, err := p.Dial(t.Context(), r); return err }},
		{"a mapped address", func() error { r := r; r.Host = "::ffff:127.0.0.3"; _, err := p.Dial(t.Context(), r); return err }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.fetch()
			if kind(t, err) != KindAddress {
				t.Fatalf("got %v", err)
			}
			var a *AddressError
			if !errors.As(err, &a) || a.Class != Loopback || a.Addr.String() != "127.0.0.3" {
				t.Errorf("got %#v", a)
			}
			if !strings.Contains(err.Error(), `addresses: ["127.0.0.3"]`) {
				t.Errorf("%q does not say what to write", err)
			}
		})
	}
	if n := len(reached); n != 0 {
		t.Errorf("%d connections to an address that no rule names", n)
	}
}

func TestSandboxNetworkAndOwnAddresses(t *testing.T) {
	p := newPool(t, Options{Local: func() []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")} }})
	_, err := p.Dial(t.Context(), Route{Sandbox: "a", Host: "203.0.113.5", Port: 80, Upstream: &policy.Upstream{Addresses: []string{"203.0.0.0/16"}}})
	var a *AddressError
	if !errors.As(err, &a) || a.Class != Local {
		t.Errorf("got %v, want class local", err)
	}
}

// TestIsolation counts connections at the server: requests share one only when
// sandbox, credential and the way to the upstream are the same.
func TestIsolation(t *testing.T) {
	ca, z := newAuthority(t), newZone(t)
	z.set("api.example.test", []string{"127.0.0.1"})
	roots, otherRoots := ca.file(t), ca.file(t)
	base := Route{Sandbox: "a", Credential: "x", Host: "api.example.test", TLS: true, Upstream: loopback(z, roots)}
	for _, tt := range []struct {
		name   string
		change func(*Route)
		shared bool
	}{
		{"nothing", func(*Route) {}, true},
		{"an equal rule", func(r *Route) { r.Upstream = loopback(z, roots) }, true},
		{"the sandbox", func(r *Route) { r.Sandbox = "b" }, false},
		{"the credential", func(r *Route) { r.Credential = "y" }, false},
		{"no credential", func(r *Route) { r.Credential = "" }, false},
		{"the roots", func(r *Route) { r.Upstream = loopback(z, otherRoots) }, false},
		{"the addresses", func(r *Route) {
			r.Upstream = &policy.Upstream{Addresses: []string{"127.0.0.1"}, Roots: roots, Resolver: z.addr}
		}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t, "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{ca.host(t, []string{"api.example.test"}, nil)}}, hello)
			p := newPool(t, Options{})
			first := base
			first.Port = s.port
			second := first
			tt.change(&second)
			for _, r := range []Route{first, second, first, second} {
				if _, err := get(t, p, r); err != nil {
					t.Fatal(err)
				}
			}
			want := int64(2)
			if tt.shared {
				want = 1
			}
			if got := s.conns.Load(); got != want {
				t.Errorf("%d connections, want %d", got, want)
			}
			if got := s.resumed.Load(); got != 0 {
				t.Errorf("%d TLS sessions were resumed across routes", got)
			}
		})
	}
}

// TestSessionsAreNotShared has every request open a connection, and counts the
// TLS sessions that are resumed.
func TestSessionsAreNotShared(t *testing.T) {
	ca := newAuthority(t)
	for _, tt := range []struct {
		name    string
		change  func(*Route)
		resumed int64
	}{
		{"same route", func(*Route) {}, 3},
		{"another sandbox", func(r *Route) { r.Sandbox = "b" }, 2},
		{"another credential", func(r *Route) { r.Credential = "y" }, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t, "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{ca.host(t, []string{"127.0.0.1"}, nil)}},
				http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Connection", "close") }))
			p := newPool(t, Options{})
			first := Route{Sandbox: "a", Credential: "x", Host: "127.0.0.1", Port: s.port, TLS: true, Upstream: loopback(nil, ca.file(t))}
			second := first
			tt.change(&second)
			for _, r := range []Route{first, second, first, second} {
				if _, err := get(t, p, r); err != nil {
					t.Fatal(err)
				}
			}
			if got := s.resumed.Load(); got != tt.resumed {
				t.Errorf("%d sessions were resumed, want %d", got, tt.resumed)
			}
		})
	}
}

func TestRequestMustMatchItsRoute(t *testing.T) {
	s := newSite(t, "127.0.0.1:0", nil, hello)
	p := newPool(t, Options{})
	r := Route{Sandbox: "a", Host: "127.0.0.1", Port: s.port, Upstream: loopback(nil, "")}
	rt, err := p.RoundTripper(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		change func(*http.Request)
		ok     bool
	}{
		{"as it is", func(*http.Request) {}, true},
		{"no Host", func(r *http.Request) { r.Host = "" }, true},
		{"Host without port", func(r *http.Request) { r.Host = "127.0.0.1" }, true},
		{"another host", func(r *http.Request) { r.URL.Host = "127.0.0.2:80" }, false},
		{"another port", func(r *http.Request) { r.URL.Host = "127.0.0.1:1" }, false},
		{"no port", func(r *http.Request) { r.URL.Host = "127.0.0.1" }, false},
		{"another scheme", func(r *http.Request) { r.URL.Scheme = "https" }, false},
		{"opaque", func(r *http.Request) { r.URL.Opaque = "//evil.example.test/" }, false},
		{"Host that Unicode folds", func(r *http.Request) { r.Host = "127.0.0.1:\uff11" }, false},
		{"another Host", func(r *http.Request) { r.Host = "evil.example.test" }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			req := request(t, t.Context(), r)
			body := &closer{Reader: strings.NewReader("x")}
			req.Body, req.ContentLength, req.Method = body, 1, "POST"
			tt.change(req)
			resp, err := rt.RoundTrip(req)
			if err == nil {
				resp.Body.Close()
			}
			if (err == nil) != tt.ok {
				t.Fatalf("got %v, want ok %v", err, tt.ok)
			}
			if err != nil && (kind(t, err) != KindOther || !body.closed) {
				t.Errorf("kind %v, body closed %v", kind(t, err), body.closed)
			}
		})
	}
}

type closer struct {
	io.Reader
	closed bool
}

func (c *closer) Close() error { c.closed = true; return nil }

func TestErrorKinds(t *testing.T) {
	z := newZone(t)
	z.set("api.example.test", []string{"127.0.0.1"})
	closedPort := func() uint16 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		return portOf(t, l.Addr())
	}()
	const secret = "s3cr3t-echo"
	raw := func(answer string) uint16 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				c.SetReadDeadline(time.Now().Add(time.Second))
				c.Read(make([]byte, 4096))
				io.WriteString(c, answer)
				if answer == "" {
					io.Copy(io.Discard, c) // until the deadline
				}
				c.Close()
			}
		}()
		t.Cleanup(func() { l.Close(); <-done })
		return portOf(t, l.Addr())
	}
	z.hold(t, "slow.example.test")
	up := loopback(z, "")
	short := Options{DialTimeout: 300 * time.Millisecond, HandshakeTimeout: 300 * time.Millisecond, HeaderTimeout: 300 * time.Millisecond}
	for _, tt := range []struct {
		name  string
		route Route
		want  Kind
	}{
		{"no such name", Route{Host: "nobody.example.test", Port: 443, TLS: true, Upstream: up}, KindLookup},
		{"silent resolver", Route{Host: "slow.example.test", Port: 443, TLS: true, Upstream: up}, KindLookup},
		{"nobody listens", Route{Host: "api.example.test", Port: closedPort, Upstream: up}, KindRefused},
		{"silent TLS", Route{Host: "api.example.test", Port: raw(""), TLS: true, Upstream: up}, KindTimeout},
		{"silent HTTP", Route{Host: "api.example.test", Port: raw(""), Upstream: up}, KindTimeout},
		{"HTTP instead of TLS", Route{Host: "api.example.test", Port: raw("HTTP/1.1 400 " + secret + "\r\n\r\n"), TLS: true, Upstream: up}, KindTLS},
		{"noise instead of TLS", Route{Host: "api.example.test", Port: raw(secret + "\r\n"), TLS: true, Upstream: up}, KindTLS},
		{"noise instead of HTTP", Route{Host: "api.example.test", Port: raw(secret + "\r\n\r\n"), Upstream: up}, KindBroken},
		{"bad header", Route{Host: "api.example.test", Port: raw("HTTP/1.1 200 OK\r\n" + secret + "\r\n\r\n"), Upstream: up}, KindBroken},
		{"header of 2 MiB", Route{Host: "api.example.test", Port: raw("HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 2<<20) + "\r\n\r\n"), Upstream: up}, KindBroken},
		{"closed at once", Route{Host: "api.example.test", Port: raw("\r\n"), Upstream: up}, KindBroken},
		{"short spelling", Route{Host: "127.1", Port: 80, Upstream: up}, KindHost},
		{"hex spelling", Route{Host: "0x7f000001", Port: 80, Upstream: up}, KindHost},
		{"missing roots", Route{Host: "api.example.test", Port: 443, TLS: true, Upstream: loopback(z, "/nonexistent/roots.pem")}, KindRoots},
		{"bad address in the rule", Route{Host: "api.example.test", Port: 443, Upstream: &policy.Upstream{Addresses: []string{"x"}}}, KindRule},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.route.Sandbox = "a"
			_, err := get(t, newPool(t, short), tt.route)
			if got := kind(t, err); got != tt.want {
				t.Errorf("kind %v, want %v: %v", got, tt.want, errors.Unwrap(err))
			}
			if strings.Contains(err.Error(), secret) {
				t.Errorf("%q repeats what the upstream sent", err)
			}
		})
	}
	t.Run("canceled", func(t *testing.T) {
		r := Route{Sandbox: "a", Host: "api.example.test", Port: raw(""), Upstream: up}
		rt, err := newPool(t, Options{}).RoundTripper(r)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(50*time.Millisecond, func() { cancel(errors.New("the client went away")) })
		_, err = rt.RoundTrip(request(t, ctx, r))
		if got := kind(t, err); got != KindCanceled || !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
}

func TestRootsAreReadAgain(t *testing.T) {
	old, renewed, z := newAuthority(t), newAuthority(t), newZone(t)
	z.set("api.example.test", []string{"127.0.0.1"})
	s := newSite(t, "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{old.host(t, []string{"api.example.test"}, nil)}}, hello)
	path := filepath.Join(t.TempDir(), "roots.pem")
	old.write(t, path)
	p := newPool(t, Options{})
	r := Route{Sandbox: "a", Host: "api.example.test", Port: s.port, TLS: true, Upstream: loopback(z, path)}
	if _, err := get(t, p, r); err != nil {
		t.Fatal(err)
	}
	next := path + ".new"
	renewed.write(t, next)
	if err := os.Rename(next, path); err != nil {
		t.Fatal(err)
	}
	// Neither the idle connection nor its TLS session outlives the trust in it.
	if _, err := get(t, p, r); kind(t, err) != KindCertificate {
		t.Errorf("got %v", err)
	}
	if err := os.WriteFile(path, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := get(t, p, r); kind(t, err) != KindRoots {
		t.Errorf("got %v", err)
	}
}

func TestProxyEnvironmentIsIgnored(t *testing.T) {
	proxy := newSite(t, "127.0.0.1:0", nil, hello)
	t.Setenv("HTTP_PROXY", proxy.URL)
	t.Setenv("http_proxy", proxy.URL)
	s := newSite(t, "127.0.0.2:0", nil, hello)
	if _, err := get(t, newPool(t, Options{}), Route{Sandbox: "a", Host: "127.0.0.2", Port: s.port, Upstream: loopback(nil, "")}); err != nil {
		t.Fatal(err)
	}
	if proxy.conns.Load() != 0 || s.conns.Load() != 1 {
		t.Error("went through the proxy of the environment")
	}
}

func TestBodiesAreNotDecompressed(t *testing.T) {
	got := ""
	s := newSite(t, "127.0.0.1:0", nil, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.Header.Get("Accept-Encoding") }))
	if _, err := get(t, newPool(t, Options{}), Route{Sandbox: "a", Host: "127.0.0.1", Port: s.port, Upstream: loopback(nil, "")}); err != nil {
		t.Fatal(err)
	}
	if s.Close(); got != "" {
		t.Errorf("asked for %q on its own", got)
	}
}

func TestForgetClosesWhatIsOpen(t *testing.T) {
	s := newSite(t, "127.0.0.1:0", nil, hello)
	p := newPool(t, Options{})
	r := Route{Sandbox: "a", Host: "127.0.0.1", Port: s.port, Upstream: loopback(nil, "")}
	tunnel, err := p.Dial(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	other := r
	other.Sandbox = "b"
	stays, err := p.Dial(t.Context(), other)
	if err != nil {
		t.Fatal(err)
	}
	defer stays.Close()
	held, err := p.RoundTripper(r)
	if err != nil {
		t.Fatal(err)
	}
	p.Forget("a")
	tunnel.SetReadDeadline(time.Now().Add(5 * time.Second))
	if _, err := tunnel.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the tunnel lives on: %v", err)
	}
	if _, err := held.RoundTrip(request(t, t.Context(), r)); kind(t, err) != KindClosed {
		t.Errorf("a forgotten sandbox reached its upstream: %v", err)
	}
	if _, err := io.WriteString(stays, "GET / HTTP/1.0\r\n\r\n"); err != nil {
		t.Errorf("another sandbox's tunnel: %v", err)
	}
	p.Close()
	if _, err := p.RoundTripper(r); kind(t, err) != KindClosed {
		t.Errorf("a closed pool: %v", err)
	}
}

func TestConnectionOpenedWhileForgottenIsClosed(t *testing.T) {
	s := newSite(t, "127.0.0.1:0", nil, hello)
	c, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	tn := newTenant()
	if err := tn.reserve(); err != nil {
		t.Fatal(err)
	}
	tn.close()
	if _, err := tn.settle(c.(*net.TCPConn)); !errors.Is(err, errClosed) {
		t.Errorf("got %v", err)
	}
	if _, err := c.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the connection is open: %v", err)
	}
}

func TestConnectionsAreBounded(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p := newPool(t, Options{})
	r := Route{Sandbox: "a", Host: "127.0.0.1", Port: portOf(t, l.Addr()), Upstream: loopback(nil, "")}
	tn, err := p.tenant(r)
	if err != nil {
		t.Fatal(err)
	}
	tn.mu.Lock()
	tn.dialling = maxConns - 1
	tn.mu.Unlock()
	c, err := p.Dial(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Dial(t.Context(), r); kind(t, err) != KindBusy {
		t.Errorf("got %v, want busy", err)
	}
	c.Close()
	c, err = p.Dial(t.Context(), r)
	if err != nil {
		t.Fatalf("after one was closed: %v", err)
	}
	c.Close()
}

func TestDestinationsAreBounded(t *testing.T) {
	s := newSite(t, "127.0.0.1:0", nil, hello)
	p := newPool(t, Options{})
	r := Route{Sandbox: "a", Host: "127.0.0.1", Port: s.port, Upstream: loopback(nil, "")}
	if _, err := get(t, p, r); err != nil {
		t.Fatal(err)
	}
	for i := range maxDestinations {
		other := r
		other.Credential = string(rune('A' + i))
		if _, err := p.RoundTripper(other); err != nil {
			t.Fatal(err)
		}
	}
	tn, _ := p.tenant(r)
	if got := tn.destinations.Len(); got != maxDestinations {
		t.Errorf("%d destinations, want %d", got, maxDestinations)
	}
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		tn.mu.Lock()
		open := len(tn.conns)
		tn.mu.Unlock()
		if open == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d idle connections of an evicted destination are open", open)
		}
	}
}

func BenchmarkRoundTripper(b *testing.B) {
	p := newPool(b, Options{})
	for _, bb := range []struct {
		name string
		up   *policy.Upstream
	}{{"public", nil}, {"named", &policy.Upstream{Addresses: []string{"10.0.0.0/8"}}}} {
		b.Run(bb.name, func(b *testing.B) {
			r := Route{Sandbox: "a", Credential: "c", Host: "api.example.test", Port: 443, TLS: true, Upstream: bb.up}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := p.RoundTripper(r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkRoundTrip compares a pool with the bare transport below it.
func BenchmarkRoundTrip(b *testing.B) {
	ca := newAuthority(b)
	s := newSite(b, "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{ca.host(b, []string{"127.0.0.1"}, nil)}}, hello)
	p := newPool(b, Options{})
	r := Route{Sandbox: "a", Host: "127.0.0.1", Port: s.port, TLS: true, Upstream: loopback(nil, ca.file(b))}
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	bare := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DisableCompression: true}
	b.Cleanup(bare.CloseIdleConnections)
	for _, bb := range []struct {
		name string
		rt   func() (http.RoundTripper, error)
	}{
		{"bare", func() (http.RoundTripper, error) { return bare, nil }},
		{"pool", func() (http.RoundTripper, error) { return p.RoundTripper(r) }},
	} {
		b.Run(bb.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				rt, err := bb.rt()
				if err != nil {
					b.Fatal(err)
				}
				resp, err := rt.RoundTrip(request(b, b.Context(), r))
				if err != nil {
					b.Fatal(err)
				}
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		})
	}
}
