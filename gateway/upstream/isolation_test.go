package upstream

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"sallyport/internal/test/must"
	"sallyport/policy"
)

func TestRebinding(t *testing.T) {
	t.Parallel()
	ca, z := newAuthority(t), newZone(t)
	cert := ca.host(t, []string{"api.example.test"}, nil)
	good := newSite(t, "127.0.0.2:0", &tls.Config{Certificates: []tls.Certificate{cert}}, hello)
	bad, err := net.Listen("tcp", netip.AddrPortFrom(netip.MustParseAddr("127.0.0.3"), good.port).String())
	must.OK(t, err)
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
	t.Parallel()
	p := newPool(t, Options{Local: func() []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")} }})
	_, err := p.Dial(t.Context(), Route{Sandbox: "a", Host: "203.0.113.5", Port: 80, Upstream: &policy.Upstream{Addresses: []string{"203.0.0.0/16"}}})
	var a *AddressError
	if !errors.As(err, &a) || a.Class != Local {
		t.Errorf("got %v, want class local", err)
	}
}

func TestIsolation(t *testing.T) { versions(t, testIsolation) }

func testIsolation(t *testing.T, protos []string) {
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
			s := newSite(t, "127.0.0.1:0", &tls.Config{NextProtos: protos, Certificates: []tls.Certificate{ca.host(t, []string{"api.example.test"}, nil)}}, hello)
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

func TestSessionsAreNotShared(t *testing.T) { versions(t, testSessionsAreNotShared) }

func testSessionsAreNotShared(t *testing.T, protos []string) {
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
			s := newSite(t, "127.0.0.1:0", &tls.Config{NextProtos: protos, Certificates: []tls.Certificate{ca.host(t, []string{"127.0.0.1"}, nil)}},
				http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Connection", "close") }))
			p := newPool(t, Options{})
			first := Route{Sandbox: "a", Credential: "x", Host: "127.0.0.1", Port: s.port, TLS: true, Upstream: loopback(nil, ca.file(t))}
			second := first
			tt.change(&second)
			for i, r := range []Route{first, second, first, second} {
				if _, err := get(t, p, r); err != nil {
					t.Fatal(err)
				}
				s.await(t, int64(i)+1)
			}
			if got := s.resumed.Load(); got != tt.resumed {
				t.Errorf("%d sessions were resumed, want %d", got, tt.resumed)
			}
		})
	}
}

// versions runs a test against upstreams of either version of HTTP.
func versions(t *testing.T, test func(t *testing.T, protos []string)) {
	for _, protos := range [][]string{{"http/1.1"}, {"h2"}} {
		t.Run(protos[0], func(t *testing.T) { test(t, protos) })
	}
}

func TestForgetClosesWhatIsOpen(t *testing.T) {
	t.Parallel()
	s := newSite(t, "127.0.0.1:0", nil, hello)
	p := newPool(t, Options{})
	r := Route{Sandbox: "a", Host: "127.0.0.1", Port: s.port, Upstream: loopback(nil, "")}
	tunnel, err := p.Dial(t.Context(), r)
	must.OK(t, err)
	other := r
	other.Sandbox = "b"
	stays, err := p.Dial(t.Context(), other)
	must.OK(t, err)
	defer stays.Close()
	held, err := p.RoundTripper(r)
	must.OK(t, err)
	p.Forget("a")
	tunnel.SetReadDeadline(time.Now().Add(patience))
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
	t.Parallel()
	s := newSite(t, "127.0.0.1:0", nil, hello)
	c, err := net.Dial("tcp", s.Listener.Addr().String())
	must.OK(t, err)
	tn := newSandboxPool()
	must.OK(t, tn.reserve())
	tn.close()
	if _, err := tn.opened(c.(*net.TCPConn)); !errors.Is(err, errClosed) {
		t.Errorf("got %v", err)
	}
	if _, err := c.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the connection is open: %v", err)
	}
}

// A route that is gone leaves no connection for the next request that takes it,
// and others what they have.
func TestRetire(t *testing.T) { versions(t, testRetire) }

func testRetire(t *testing.T, protos []string) {
	ca, z := newAuthority(t), newZone(t)
	z.set("api.example.test", []string{"127.0.0.1"})
	roots := ca.file(t)
	s := newSite(t, "127.0.0.1:0", &tls.Config{NextProtos: protos, Certificates: []tls.Certificate{ca.host(t, []string{"api.example.test"}, nil)}}, hello)
	p := newPool(t, Options{})
	kept := Route{Sandbox: "a", Host: "api.example.test", Port: s.port, TLS: true, Upstream: loopback(z, roots)}
	gone := kept
	gone.Credential = "x"
	fetch := func(want int64) {
		t.Helper()
		for _, r := range []Route{kept, gone} {
			if _, err := get(t, p, r); err != nil {
				t.Fatal(err)
			}
		}
		if got := s.conns.Load(); got != want {
			t.Errorf("%d connections, want %d", got, want)
		}
	}
	fetch(2)
	var asked []string
	p.Retire(func(r Route) bool { asked = append(asked, r.Credential); return r.Credential == "x" })
	if len(asked) != 2 {
		t.Errorf("asked about %q", asked)
	}
	for deadline := time.Now().Add(patience); s.closed.Load() < 1 && time.Now().Before(deadline); {
		time.Sleep(5 * time.Millisecond)
	}
	if got := s.closed.Load(); got != 1 {
		t.Errorf("%d connections were closed, want 1", got)
	}
	fetch(3)
}
