package upstream

import (
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

	"sallyport/internal/test/must"
	"sallyport/policy"
)

func TestReachesVerifiedUpstream(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
	if l, err := net.Listen("tcp", "[::1]:0"); err != nil {
		must.Lack(t, "this machine has no IPv6 loopback: %v", err)
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

// TestIsolation counts connections at the server: requests share one only when
// sandbox, credential and the way to the upstream are the same.
// TestSessionsAreNotShared has every request open a connection, and counts the
// TLS sessions that are resumed.
func TestRequestMustMatchItsRoute(t *testing.T) {
	t.Parallel()
	s := newSite(t, "127.0.0.1:0", nil, hello)
	p := newPool(t, Options{})
	r := Route{Sandbox: "a", Host: "127.0.0.1", Port: s.port, Upstream: loopback(nil, "")}
	rt, err := p.RoundTripper(r)
	must.OK(t, err)
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

func TestRootsAreReadAgain(t *testing.T) {
	t.Parallel()
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
	must.OK(t, os.Rename(next, path))
	time.Sleep(rootsAge)
	// Neither the idle connection nor its TLS session outlives the trust in it.
	if _, err := get(t, p, r); kind(t, err) != KindCertificate {
		t.Errorf("got %v", err)
	}
	must.OK(t, os.WriteFile(path, []byte("no certificate"), 0o600))
	time.Sleep(rootsAge)
	if _, err := get(t, p, r); kind(t, err) != KindRoots {
		t.Errorf("got %v", err)
	}
}

// The system's authorities are those of now too, for requests and for connections that a
// protocol of its own asks for TLS on.
func TestSystemRootsAreReadAgain(t *testing.T) {
	old, renewed, z := newAuthority(t), newAuthority(t), newZone(t)
	z.set("api.example.test", []string{"127.0.0.1"})
	s := newSite(t, "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{old.host(t, []string{"api.example.test"}, nil)}}, hello)
	path := filepath.Join(t.TempDir(), "bundle.pem")
	t.Setenv("SSL_CERT_FILE", path)
	t.Setenv("SSL_CERT_DIR", t.TempDir())
	p := newPool(t, Options{})
	r := Route{Sandbox: "a", Host: "api.example.test", Port: s.port, TLS: true, Upstream: loopback(z, "")}
	ways := map[string]func() error{
		"a request": func() error { _, err := get(t, p, r); return err },
		"a connection": func() error {
			c, err := p.DialTLS(t.Context(), r, netip.Addr{}, nil)
			if err == nil {
				c.Close()
			}
			return err
		},
	}
	for _, is := range []struct {
		roots *authority
		ok    bool
	}{{old, true}, {renewed, false}, {old, true}} {
		is.roots.write(t, path+".new")
		must.OK(t, os.Rename(path+".new", path))
		for name, way := range ways {
			err := way()
			for deadline := time.Now().Add(patience); (err == nil) != is.ok; err = way() {
				if time.Now().After(deadline) {
					t.Fatalf("%s: got %v, want ok %v", name, err, is.ok)
				}
				time.Sleep(10 * time.Millisecond)
			}
			if !is.ok && kind(t, err) != KindCertificate {
				t.Errorf("%s: got %v", name, err)
			}
		}
	}
	// Plain HTTP does without.
	must.OK(t, os.Remove(path))
	plain := newSite(t, "127.0.0.1:0", nil, hello)
	if _, err := get(t, p, Route{Sandbox: "a", Host: "api.example.test", Port: plain.port, Upstream: loopback(z, "")}); err != nil {
		t.Error(err)
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
	t.Parallel()
	got := ""
	s := newSite(t, "127.0.0.1:0", nil, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.Header.Get("Accept-Encoding") }))
	if _, err := get(t, newPool(t, Options{}), Route{Sandbox: "a", Host: "127.0.0.1", Port: s.port, Upstream: loopback(nil, "")}); err != nil {
		t.Fatal(err)
	}
	if s.Close(); got != "" {
		t.Errorf("asked for %q on its own", got)
	}
}

func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	defer l.Close()
	p := newPool(t, Options{})
	r := Route{Sandbox: "a", Host: "127.0.0.1", Port: portOf(t, l.Addr()), Upstream: loopback(nil, "")}
	tn, err := p.sandbox(r)
	must.OK(t, err)
	tn.mu.Lock()
	tn.dialling = maxConns - 1
	tn.mu.Unlock()
	c, err := p.Dial(t.Context(), r)
	must.OK(t, err)
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
	t.Parallel()
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
	tn, _ := p.sandbox(r)
	if got := tn.destinations.Len(); got != maxDestinations {
		t.Errorf("%d destinations, want %d", got, maxDestinations)
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
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
				must.OK(b, err)
				resp, err := rt.RoundTrip(request(b, b.Context(), r))
				must.OK(b, err)
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		})
	}
}

// TestSingleLabelInHosts: such a name is found where package net does not find
// it rooted, and its address is judged like any other.
func TestSingleLabelInHosts(t *testing.T) {
	t.Parallel()
	if _, err := net.DefaultResolver.LookupHost(t.Context(), "localhost"); err != nil {
		must.Lack(t, "no localhost in /etc/hosts")
	}
	server, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	defer server.Close()
	port := uint16(server.Addr().(*net.TCPAddr).Port)
	p := New(Options{DialTimeout: patience})
	defer p.Close()
	c, err := p.Dial(t.Context(), Route{Host: "localhost", Port: port, Upstream: &policy.Upstream{Addresses: []string{"127.0.0.0/8", "::1"}, Resolver: "127.0.0.1:1"}})
	must.OK(t, err)
	c.Close()
	var refused *Error
	if _, err := p.Dial(t.Context(), Route{Host: "localhost", Port: port}); !errors.As(err, &refused) || refused.Kind != KindAddress {
		t.Errorf("Dial of an address that no rule names: %v", err)
	}
}
