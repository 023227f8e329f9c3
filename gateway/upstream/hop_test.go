package upstream

import (
	"crypto/tls"
	"encoding/base64"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sallyport/internal/test/must"
	"sallyport/policy"
)

// by says from where a request came, and what of a proxy's it carried.
var by = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	io.WriteString(w, r.Proto+" by "+host+" for "+r.Host+" key "+r.Header.Get("Authorization")+r.Header.Get("Proxy-Authorization"))
})

// TestRealProxies goes through proxies that others wrote: an HTTP request with
// and without TLS, and a tunnel, with and without a login, the destination's
// name resolved here and there.
func TestRealProxies(t *testing.T) {
	t.Parallel()
	ca, z := newAuthority(t), newZone(t)
	z.set("api.example.test", []string{"127.0.0.2"})
	roots := ca.file(t)
	// localhost is what a proxy of this machine can look up without a network.
	cert := ca.host(t, []string{"api.example.test", "localhost"}, nil)
	secure := newSite(t, "127.0.0.2:0", &tls.Config{Certificates: []tls.Certificate{cert}}, by)
	second := newSite(t, "127.0.0.2:0", &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2"}}, by)
	local := newSite(t, "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{cert}}, by)
	plain := newSite(t, "127.0.0.2:0", nil, by)
	first := banner(t, "127.0.0.2:0")

	overTLS := func(start func(testing.TB, bool) string) func(testing.TB, bool) string {
		return func(t testing.TB, login bool) string {
			_, behind, _ := strings.Cut(start(t, login), "://")
			return front(t, behind, ca.host(t, []string{proxyAddress}, nil))
		}
	}
	for _, real := range []struct {
		name  string
		start func(t testing.TB, login bool) string
	}{
		{"tinyproxy", tinyproxy}, {"tinyproxy behind TLS", overTLS(tinyproxy)}, {"microsocks", microsocks}, {"squid", squid},
	} {
		for _, login := range []bool{false, true} {
			name := real.name
			if login {
				name += " with a login"
			}
			t.Run(name, func(t *testing.T) {
				up := policy.Upstream{Addresses: []string{"127.0.0.2", proxyAddress}, Roots: roots, Resolver: z.addr, Proxy: real.start(t, login)}
				if strings.HasPrefix(up.Proxy, "https:") {
					up.ProxyRoots = roots
				}
				if login {
					up.ProxyAuthRef = "corp"
				}
				route := func(host string, port uint16, tls bool, up policy.Upstream) Route {
					return Route{Sandbox: "a", Host: host, Port: port, TLS: tls, Upstream: &up}
				}
				there := up
				there.Resolve, there.Addresses = policy.ResolveProxy, []string{proxyAddress}
				p := newPool(t, Options{Logins: known})
				for _, tt := range []struct {
					name  string
					site  *site
					route Route
				}{
					{"HTTPS", secure, route("api.example.test", secure.port, true, up)},
					{"HTTP/2", second, route("api.example.test", second.port, true, up)},
					{"HTTP", plain, route("api.example.test", plain.port, false, up)},
					{"a bare address", plain, route("127.0.0.2", plain.port, false, up)},
					{"resolved there", local, route("localhost", local.port, true, there)},
				} {
					t.Run(tt.name, func(t *testing.T) {
						before := tt.site.conns.Load()
						rt, err := p.RoundTripper(tt.route)
						must.OK(t, err)
						for range 2 {
							req := request(t, t.Context(), tt.route)
							req.Header.Set("Authorization", "Bearer injected")
							resp, err := rt.RoundTrip(req)
							must.OK(t, err)
							body, _ := io.ReadAll(resp.Body)
							resp.Body.Close()
							want := "HTTP/1.1"
							if tt.site == second {
								want = "HTTP/2.0"
							}
							want += " by " + proxyAddress + " for " + req.Host + " key Bearer injected"
							if string(body) != want {
								t.Errorf("got %q, want %q", body, want)
							}
						}
						if got := tt.site.conns.Load() - before; got != 1 {
							t.Errorf("%d connections for two requests", got)
						}
					})
				}
				t.Run("tunnel", func(t *testing.T) {
					c, err := p.Dial(t.Context(), route("api.example.test", first, false, up))
					must.OK(t, err)
					defer c.Close()
					said(t, c, "hello "+proxyAddress)
					io.WriteString(c, "over there\n")
					said(t, c, "over there")
				})
				if !login {
					return
				}
				for credential, want := range map[string]struct {
					kind Kind
					says string
				}{
					"": {KindProxy, "proxyAuthRef in the rule"}, "wrong": {KindProxy, "username or password of the rule's proxyAuthRef is wrong"},
					"unset": {KindLogin, `"unset"`},
				} {
					t.Run("login "+credential, func(t *testing.T) {
						bad := up
						bad.ProxyAuthRef = credential
						before := secure.conns.Load()
						_, err := get(t, p, route("api.example.test", secure.port, true, bad))
						if kind(t, err) != want.kind || !strings.Contains(err.Error(), want.says) {
							t.Errorf("got %v (%v), want %v with %q", err, kind(t, err), want.kind, want.says)
						}
						if secure.conns.Load() != before {
							t.Error("reached")
						}
						hides(t, err)
					})
				}
			})
		}
	}
}

// said reads one line.
func said(t testing.TB, c net.Conn, want string) {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(patience))
	var line []byte
	for b := make([]byte, 1); ; {
		if _, err := c.Read(b); err != nil {
			t.Fatalf("after %q: %v", line, err)
		}
		if b[0] == '\n' {
			break
		}
		line = append(line, b[0])
	}
	if string(line) != want {
		t.Errorf("got %q, want %q", line, want)
	}
}

// hides checks that no error on the way says a password or what a proxy sent.
func hides(t testing.TB, err error) {
	t.Helper()
	for e := err; e != nil; e = errors.Unwrap(e) {
		for _, secret := range []string{proxyPassword, "pr0xy-guess", base64.StdEncoding.EncodeToString([]byte(proxyUser + ":" + proxyPassword))} {
			if strings.Contains(e.Error(), secret) {
				t.Errorf("%q holds %q", e, secret)
			}
		}
	}
	if strings.Contains(err.Error(), "s3cr3t-echo") {
		t.Errorf("%q holds what the proxy sent", err)
	}
}

// TestAddressesHoldThroughAProxy: what the gateway would not dial, a proxy is
// not asked for, and it is asked for the very address that was judged.
func TestAddressesHoldThroughAProxy(t *testing.T) {
	t.Parallel()
	z := newZone(t)
	plain := newSite(t, "127.0.0.2:0", nil, hello)
	z.set("good.example.test", []string{"127.0.0.2"})
	z.set("bad.example.test", []string{"127.0.0.3"})
	z.set("both.example.test", []string{"127.0.0.3", "127.0.0.2"})
	z.set("rebound.example.test", []string{"127.0.0.2"}, []string{"169.254.169.254"})
	z.set("sandbox.example.test", []string{"203.0.113.7"})
	z.set("proxy.example.test", []string{proxyAddress})
	f := newFake(t, "http", tunnelling(straight, ""))
	socks := newFake(t, "socks5", func(f *fake, c net.Conn) { f.record("connection") })
	port := plain.port
	target := func(host string) string { return hostPort(host, port) }
	for _, tt := range []struct {
		name     string
		host     string
		fetches  int
		proxy    string
		resolve  string
		named    []string
		kind     Kind // of the last fetch
		class    Class
		reached  bool
		asked    []string
		resolved bool // here
	}{
		{name: "named", host: "good.example.test", fetches: 1, reached: true, asked: []string{target("127.0.0.2")}, resolved: true},
		{name: "not named", host: "bad.example.test", fetches: 1, kind: KindAddress, class: Loopback, resolved: true},
		{name: "one of two named", host: "both.example.test", fetches: 1, reached: true, asked: []string{target("127.0.0.2")}, resolved: true},
		{name: "rebound", host: "rebound.example.test", fetches: 2, kind: KindAddress, class: Metadata, asked: []string{target("127.0.0.2")}, resolved: true},
		{name: "a sandbox's", host: "sandbox.example.test", fetches: 1, kind: KindAddress, class: Local, named: []string{"203.0.0.0/8", proxyAddress}, resolved: true},
		{name: "a bare address", host: "127.0.0.3", fetches: 1, kind: KindAddress, class: Loopback},
		{name: "a bare address that the proxy would resolve", host: "127.0.0.3", fetches: 1, resolve: policy.ResolveProxy, kind: KindAddress, class: Loopback},
		{name: "a mapped address", host: "::ffff:127.0.0.3", fetches: 1, kind: KindAddress, class: Loopback},
		{name: "a short spelling", host: "127.3", fetches: 1, resolve: policy.ResolveProxy, kind: KindHost},
		{name: "no such name", host: "nobody.example.test", fetches: 1, kind: KindLookup, resolved: true},
		{name: "SOCKS, not named", host: "bad.example.test", fetches: 1, proxy: socks.url, kind: KindAddress, class: Loopback, resolved: true},
		{name: "the proxy itself", host: "proxy.example.test", fetches: 1, kind: KindProxy, resolved: true},
		{name: "a proxy that is not named", host: "good.example.test", fetches: 1, named: []string{"127.0.0.2"}, kind: KindAddress, class: Loopback, resolved: true},
		{name: "resolved there", host: "bad.example.test", fetches: 1, resolve: policy.ResolveProxy, named: []string{proxyAddress}, kind: KindProxy, asked: []string{target("bad.example.test")}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f.mu.Lock()
			f.asked = nil
			f.mu.Unlock()
			z.mu.Lock()
			clear(z.asked)
			z.mu.Unlock()
			up := &policy.Upstream{Addresses: tt.named, Resolver: z.addr, Proxy: f.url, Resolve: tt.resolve}
			if tt.named == nil {
				up.Addresses = []string{"127.0.0.2", proxyAddress}
			}
			if tt.proxy != "" {
				up.Proxy = tt.proxy
			}
			p := newPool(t, Options{Local: func() []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")} }})
			var err error
			for i := range tt.fetches {
				r := Route{Sandbox: "a", Host: tt.host, Port: port, Upstream: up}
				r.Credential = strings.Repeat("x", i) // a connection of its own
				_, err = get(t, p, r)
			}
			if (err == nil) != tt.reached || err != nil && kind(t, err) != tt.kind {
				t.Fatalf("got %v, want kind %v", err, tt.kind)
			}
			var denied *AddressError
			if errors.As(err, &denied) != (tt.kind == KindAddress) || denied != nil && denied.Class != tt.class {
				t.Errorf("got %#v, want class %v", denied, tt.class)
			}
			if diff := cmp.Diff(f.requests(), tt.asked); diff != "" {
				t.Errorf("the proxy was asked for something else: %s", diff)
			}
			if len(socks.requests()) > 0 {
				t.Error("the SOCKS proxy was asked")
			}
			z.mu.Lock()
			defer z.mu.Unlock()
			if got := z.asked[tt.host] > 0; got != tt.resolved {
				t.Errorf("looked up here: %v, want %v", got, tt.resolved)
			}
		})
	}
}

// The next address is tried when the proxy cannot reach one, and not many.
func TestProxyIsAskedForSeveralAddresses(t *testing.T) {
	t.Parallel()
	z := newZone(t)
	plain := newSite(t, "127.0.0.2:0", nil, hello)
	z.set("two.example.test", []string{"127.0.0.9", "127.0.0.2"})
	z.set("ten.example.test", strings.Fields("127.0.0.10 127.0.0.11 127.0.0.12 127.0.0.13 127.0.0.14 127.0.0.15 127.0.0.16"))
	f := newFake(t, "http", tunnelling(func(target string) string {
		if strings.HasPrefix(target, "127.0.0.2:") {
			return target
		}
		return ""
	}, ""))
	p := newPool(t, Options{})
	up := &policy.Upstream{Addresses: []string{"127.0.0.0/28", "127.0.0.16"}, Resolver: z.addr, Proxy: f.url}
	if _, err := get(t, p, Route{Sandbox: "a", Host: "two.example.test", Port: plain.port, Upstream: up}); err != nil {
		t.Error(err)
	}
	if got := f.requests(); len(got) > 2 || !slices.Contains(got, hostPort("127.0.0.2", plain.port)) {
		t.Errorf("asked for %q", got)
	}
	before := len(f.requests())
	_, err := get(t, p, Route{Sandbox: "a", Host: "ten.example.test", Port: plain.port, Upstream: up})
	if kind(t, err) != KindProxy || !strings.Contains(err.Error(), "(502)") {
		t.Errorf("got %v", err)
	}
	if got := len(f.requests()) - before; got != perFamily {
		t.Errorf("asked %d times, want %d", got, perFamily)
	}
	// No address of it may be better than one that the proxy refuses.
	refusing := newFake(t, "http", saying("HTTP/1.1 403 Forbidden\r\n\r\n"))
	up.Proxy = refusing.url
	if _, err := get(t, p, Route{Sandbox: "a", Host: "two.example.test", Port: plain.port, Upstream: up}); kind(t, err) != KindProxy {
		t.Errorf("got %v", err)
	}
	if got := refusing.requests(); len(got) != 1 {
		t.Errorf("asked %d times after a refusal", len(got))
	}
}
