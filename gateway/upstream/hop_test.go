package upstream

import (
	"bufio"
	"context"
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
						if err != nil {
							t.Fatal(err)
						}
						for range 2 {
							req := request(t, t.Context(), tt.route)
							req.Header.Set("Authorization", "Bearer injected")
							resp, err := rt.RoundTrip(req)
							if err != nil {
								t.Fatal(err)
							}
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
					if err != nil {
						t.Fatal(err)
					}
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
	c.SetReadDeadline(time.Now().Add(10 * time.Second))
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

// TestProxyFaults has proxies that do all but what they are asked.
func TestProxyFaults(t *testing.T) {
	z := newZone(t)
	z.set("api.example.test", []string{"127.0.0.2"})
	endless := func(head, more string) func(*fake, net.Conn) {
		return func(f *fake, c net.Conn) {
			sent := 0
			io.WriteString(c, head)
			for sent < 64<<20 {
				n, err := io.WriteString(c, more)
				sent += n
				if err != nil {
					return
				}
			}
			f.record("took everything")
		}
	}
	silent := func(_ *fake, c net.Conn) { io.Copy(io.Discard, c) }
	dribble := func(_ *fake, c net.Conn) {
		for _, err := io.WriteString(c, "HTTP/1.1 200 OK\r\nX: "); err == nil; _, err = io.WriteString(c, "x") {
			time.Sleep(20 * time.Millisecond)
		}
	}
	socks := func(answers ...string) func(*fake, net.Conn) {
		questions := []string{"\x05\x01\x00", "\x05\x01\x00\x01\x7f\x00\x00\x02\x01\xbb"}
		return func(f *fake, c net.Conn) {
			var steps [][2]string
			for i, a := range answers {
				steps = append(steps, [2]string{questions[i], a})
			}
			reply(f, c, steps...)
		}
	}
	const fine = "\x00\x01\x00\x00\x00\x00\x00\x00"
	for _, tt := range []struct {
		name   string
		scheme string
		handle func(*fake, net.Conn)
		kind   Kind
		says   string
	}{
		{"closes at once", "http", func(*fake, net.Conn) {}, KindProxy, "does not speak HTTP"},
		{"says nothing", "http", silent, KindTimeout, "did not answer in time"},
		{"says it slowly", "http", dribble, KindTimeout, "did not answer in time"},
		{"garbage", "http", saying("\x00\x01s3cr3t-echo\r\n\r\n"), KindProxy, "does not speak HTTP"},
		{"SOCKS", "http", saying("\x05\xff"), KindTimeout, ""}, // no line yet
		{"a status that is none", "http", saying("HTTP/1.1 2000 s3cr3t-echo\r\n\r\n"), KindProxy, ""},
		{"a version that is none", "http", saying("HTTP/2.0 200 OK\r\n\r\n"), KindProxy, "does not speak HTTP"},
		{"a bad header", "http", saying("HTTP/1.1 200 OK\r\ns3cr3t-echo\r\n\r\n"), KindProxy, ""},
		{"an endless line", "http", endless("HTTP/1.1 200 ", strings.Repeat("x", 4096)), KindProxy, ""},
		{"an endless head", "http", endless("HTTP/1.1 200 OK\r\n", strings.Repeat("X: y\r\n", 512)), KindProxy, ""},
		{"interim answers without end", "http", endless("", "HTTP/1.1 100 Continue\r\n\r\n"), KindProxy, ""},
		{"another protocol", "http", saying("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n"), KindProxy, "answered 101"},
		{"a redirect", "http", saying("HTTP/1.1 302 Found\r\nLocation: http://evil.example.test/s3cr3t-echo\r\n\r\n"), KindProxy, "answered 302"},
		{"bad request", "http", saying("HTTP/1.1 400 s3cr3t-echo\r\n\r\ns3cr3t-echo"), KindProxy, "answered 400"},
		{"forbidden", "http", saying("HTTP/1.1 403 Forbidden\r\n\r\n"), KindProxy, "resolve: proxy"},
		{"no CONNECT", "http", saying("HTTP/1.1 405 Method Not Allowed\r\n\r\n"), KindProxy, "does not do CONNECT"},
		{"a login", "http", saying("HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Negotiate, Basic realm=\"s3cr3t-echo\"\r\n\r\n"), KindProxy, "write proxyAuthRef"},
		{"a login of another kind", "http", saying("HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: NTLM\r\nProxy-Authenticate: Negotiate\r\n\r\n"), KindProxy, "not Basic"},
		{"unreachable", "http", saying("HTTP/1.1 503 Service Unavailable\r\n\r\n"), KindProxy, "could not reach 127.0.0.2:443 (503)"},
		{"an answer to no request", "http", saying("HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\ns3cr3t-echo"), KindProxy, "before it was sent any"},
		{"a body", "http", saying("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"), KindProxy, "before it was sent any"},
		{"no TLS", "https", saying("HTTP/1.1 200 OK\r\n\r\n"), KindProxy, ""},
		{"TLS that says nothing", "https", silent, KindTimeout, "did not answer in time"},
		{"plain text for TLS", "https", func(_ *fake, c net.Conn) { io.WriteString(c, "HTTP/1.1 400 s3cr3t-echo\r\n\r\n") }, KindProxy, "write http://"},
		{"SOCKS: closes at once", "socks5", func(*fake, net.Conn) {}, KindProxy, "does not speak SOCKS5"},
		{"SOCKS: says nothing", "socks5", silent, KindTimeout, "did not answer in time"},
		{"SOCKS: HTTP", "socks5", endless("HTTP/1.1 400 Bad Request\r\n\r\n", "s3cr3t-echo"), KindProxy, "does not speak SOCKS5"},
		{"SOCKS: version 4", "socks5", socks("\x00\x5b"), KindProxy, "does not speak SOCKS5"},
		{"SOCKS: no way to log in", "socks5", socks("\x05\xff"), KindProxy, "write proxyAuthRef"},
		{"SOCKS: a way that was not offered", "socks5", socks("\x05\x02"), KindProxy, "does not speak SOCKS5"},
		{"SOCKS: failure", "socks5", socks("\x05\x00", "\x05\x01"+fine), KindProxy, "failed to reach 127.0.0.2:443"},
		{"SOCKS: refused", "socks5", socks("\x05\x00", "\x05\x02"+fine), KindProxy, "resolve: proxy"},
		{"SOCKS: refused, and no more", "socks5", socks("\x05\x00", "\x05\x02"), KindProxy, "refuses 127.0.0.2:443"},
		{"SOCKS: nobody listens", "socks5", socks("\x05\x00", "\x05\x05"+fine), KindProxy, "nobody listening"},
		{"SOCKS: no CONNECT", "socks5", socks("\x05\x00", "\x05\x07"+fine), KindProxy, "does not do CONNECT"},
		{"SOCKS: a code of its own", "socks5", socks("\x05\x00", "\x05\x63"+fine), KindProxy, "(99)"},
		{"SOCKS: an address of no kind", "socks5", socks("\x05\x00", "\x05\x00\x00\x02\x00\x00\x00\x00\x00\x00"), KindProxy, "does not speak SOCKS5"},
		{"SOCKS: cut short", "socks5", socks("\x05\x00", "\x05\x00\x00\x03\xff"), KindTimeout, ""},
		{"SOCKS: an answer to no request", "socks5", socks("\x05\x00", "\x05\x00"+fine+"s3cr3t-echo"), KindProxy, "before it was sent any"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t, tt.scheme, tt.handle)
			var o Options
			if tt.kind == KindTimeout {
				o = Options{DialTimeout: 300 * time.Millisecond, HandshakeTimeout: 300 * time.Millisecond}
			}
			p := newPool(t, o)
			r := Route{Sandbox: "a", Host: "api.example.test", Port: 443, TLS: true, Upstream: &policy.Upstream{
				Addresses: []string{"127.0.0.2", proxyAddress}, Resolver: z.addr, Proxy: f.url,
			}}
			begin := time.Now()
			_, err := get(t, p, r)
			if kind(t, err) != tt.kind || !strings.Contains(err.Error(), tt.says) || !strings.Contains(err.Error(), f.url) {
				t.Errorf("got %v (%v), want %v with %q and %s", err, kind(t, err), tt.kind, tt.says, f.url)
			}
			if took := time.Since(begin); took > 5*time.Second {
				t.Errorf("took %v", took)
			}
			if slices.Contains(f.requests(), "took everything") {
				t.Error("read without bound")
			}
			hides(t, err)
			tn, _ := p.tenant(r)
			tn.mu.Lock()
			defer tn.mu.Unlock()
			if len(tn.conns)+tn.dialling != 0 {
				t.Errorf("%d connections are left", len(tn.conns)+tn.dialling)
			}
		})
	}
}

func TestProxyIsDown(t *testing.T) {
	z := newZone(t)
	z.set("proxy.example.test", []string{proxyAddress})
	p := newPool(t, Options{})
	port := freePort(t)
	for proxy, want := range map[string]string{
		"http://" + hostPort(proxyAddress, port):            "nothing listens",
		"socks5://" + hostPort(proxyAddress, port):          "nothing listens",
		"http://" + hostPort("proxy.example.test", port):    "nothing listens",
		"http://" + hostPort("nobody.example.test", port):   "no such host",
		"socks5://" + hostPort("nobody.example.test", port): "no such host",
	} {
		up := &policy.Upstream{Addresses: []string{"127.0.0.2", proxyAddress}, Resolver: z.addr, Proxy: proxy}
		_, err := get(t, p, Route{Sandbox: "a", Host: "127.0.0.2", Port: 80, Upstream: up})
		if kind(t, err) != KindProxy || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), proxy) {
			t.Errorf("%s: got %v (%v), want %q", proxy, err, kind(t, err), want)
		}
	}
}

func TestLoginsThatCannotBeSaid(t *testing.T) {
	f := newFake(t, "http", saying("HTTP/1.1 200 OK\r\n\r\n"))
	socks := newFake(t, "socks5", func(f *fake, c net.Conn) { reply(f, c, [2]string{"\x05\x02\x00\x02", "\x05\x02"}) })
	for _, tt := range []struct{ proxy, credential, says string }{
		{f.url, "colon", "colon"}, {socks.url, "long", "255 bytes"},
	} {
		p := newPool(t, Options{Logins: known})
		up := &policy.Upstream{Addresses: []string{"127.0.0.2", proxyAddress}, Proxy: tt.proxy, ProxyAuthRef: tt.credential}
		_, err := get(t, p, Route{Sandbox: "a", Host: "127.0.0.2", Port: 80, Upstream: up})
		if kind(t, err) != KindProxy || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: got %v", tt.credential, err)
		}
	}
	up := &policy.Upstream{Addresses: []string{"127.0.0.2", proxyAddress}, Proxy: f.url, ProxyAuthRef: "corp"}
	if _, err := get(t, newPool(t, Options{}), Route{Sandbox: "a", Host: "127.0.0.2", Port: 80, Upstream: up}); kind(t, err) != KindLogin {
		t.Errorf("without anybody to lease from: %v", err)
	}
	if len(f.requests()) > 0 {
		t.Error("a proxy was asked without the login that the rule says")
	}
}

// The certificate of a proxy is verified by roots of its own, the destination's
// by the destination's.
func TestProxyCertificates(t *testing.T) {
	ca, corporate := newAuthority(t), newAuthority(t)
	s := newSite(t, "127.0.0.2:0", &tls.Config{Certificates: []tls.Certificate{ca.host(t, []string{"127.0.0.2"}, nil)}}, by)
	honest := newFake(t, "http", tunnelling(straight, ""))
	_, behind, _ := strings.Cut(honest.url, "://")
	for _, tt := range []struct {
		name              string
		cert              tls.Certificate
		roots, proxyRoots string
		kind              Kind
		says              string
	}{
		{"verified", corporate.host(t, []string{proxyAddress}, nil), ca.file(t), corporate.file(t), 0, ""},
		{"the destination's roots", corporate.host(t, []string{proxyAddress}, nil), corporate.file(t), corporate.file(t), KindCertificate, "upstream: {roots:"},
		{"an unknown authority", newAuthority(t).host(t, []string{proxyAddress}, nil), ca.file(t), corporate.file(t), KindProxy, "upstream: {proxyRoots:"},
		{"the system's roots", corporate.host(t, []string{proxyAddress}, nil), ca.file(t), "", KindProxy, "upstream: {proxyRoots:"},
		{"the destination's authority", ca.host(t, []string{proxyAddress}, nil), ca.file(t), corporate.file(t), KindProxy, "upstream: {proxyRoots:"},
		{"another name", corporate.host(t, []string{"127.0.0.6"}, nil), ca.file(t), corporate.file(t), KindProxy, "another name"},
		{"roots that are not there", corporate.host(t, []string{proxyAddress}, nil), ca.file(t), "/nonexistent/roots.pem", KindRoots, "proxyRoots"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := len(honest.requests())
			up := &policy.Upstream{
				Addresses: []string{"127.0.0.2", proxyAddress}, Roots: tt.roots,
				Proxy: front(t, behind, tt.cert), ProxyRoots: tt.proxyRoots, ProxyAuthRef: "corp",
			}
			_, err := get(t, newPool(t, Options{Logins: known}), Route{Sandbox: "a", Host: "127.0.0.2", Port: s.port, TLS: true, Upstream: up})
			if tt.says == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if kind(t, err) != tt.kind || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("got %v (%v), want %v with %q", err, kind(t, err), tt.kind, tt.says)
			}
			if tt.kind != KindCertificate && len(honest.requests()) != before {
				t.Error("a proxy that was not verified was asked, and told the login")
			}
		})
	}
}

// TestProxyIsolation counts what proxies are asked for: requests share a
// connection only when all about the proxy is the same.
func TestProxyIsolation(t *testing.T) {
	s := newSite(t, "127.0.0.2:0", nil, by)
	one, other := newFake(t, "http", tunnelling(straight, "")), newFake(t, "http", tunnelling(straight, ""))
	asked := func() int { return len(one.requests()) + len(other.requests()) }
	for _, tt := range []struct {
		name   string
		change func(*policy.Upstream)
		shared bool
	}{
		{"nothing", func(*policy.Upstream) {}, true},
		{"the proxy", func(u *policy.Upstream) { u.Proxy = other.url }, false},
		{"the login", func(u *policy.Upstream) { u.ProxyAuthRef = "wrong" }, false},
		{"no login", func(u *policy.Upstream) { u.ProxyAuthRef = "" }, false},
		{"who resolves", func(u *policy.Upstream) { u.Resolve = policy.ResolveProxy }, false},
		{"no proxy", func(u *policy.Upstream) { u.Proxy, u.ProxyAuthRef = "", "" }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPool(t, Options{Logins: known})
			first := policy.Upstream{Addresses: []string{"127.0.0.2", proxyAddress}, Proxy: one.url, ProxyAuthRef: "corp"}
			second := first
			tt.change(&second)
			conns, asks := s.conns.Load(), asked()
			for _, up := range []*policy.Upstream{&first, &second, &first, &second} {
				if _, err := get(t, p, Route{Sandbox: "a", Host: "127.0.0.2", Port: s.port, Upstream: up}); err != nil {
					t.Fatal(err)
				}
			}
			want := int64(2)
			if tt.shared {
				want = 1
			}
			if got := s.conns.Load() - conns; got != want {
				t.Errorf("%d connections, want %d", got, want)
			}
			if second.Proxy != "" && asked()-asks != int(want) {
				t.Errorf("proxies were asked %d times, want %d", asked()-asks, want)
			}
		})
	}
}

// In a tunnel the destination may speak first, together with the proxy's answer.
func TestTunnelKeepsWhatComesEarly(t *testing.T) {
	ca := newAuthority(t)
	port := banner(t, "127.0.0.2:0")
	f := newFake(t, "http", tunnelling(straight, "early\n"))
	_, behind, _ := strings.Cut(f.url, "://")
	for name, proxy := range map[string]string{"plain": f.url, "over TLS": front(t, behind, ca.host(t, []string{proxyAddress}, nil))} {
		t.Run(name, func(t *testing.T) {
			up := &policy.Upstream{Addresses: []string{"127.0.0.2", proxyAddress}, Proxy: proxy}
			if strings.HasPrefix(proxy, "https") {
				up.ProxyRoots = ca.file(t)
			}
			p := newPool(t, Options{})
			r := Route{Sandbox: "a", Host: "127.0.0.2", Port: port, Upstream: up}
			c, err := p.Dial(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			said(t, c, "early")
			said(t, c, "hello 127.0.0.1")
			io.WriteString(c, "the end\n")
			// One direction ends; the other goes on.
			if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			rest, err := io.ReadAll(bufio.NewReader(c))
			if string(rest) != "the end\n" || err != nil {
				t.Errorf("after the end of one direction: %q, %v", rest, err)
			}
			c.Close()
			tn, _ := p.tenant(r)
			tn.mu.Lock()
			defer tn.mu.Unlock()
			if len(tn.conns) != 0 {
				t.Errorf("%d connections are counted after the last was closed", len(tn.conns))
			}
		})
	}
}

func TestForgetClosesWhatGoesThroughAProxy(t *testing.T) {
	ca := newAuthority(t)
	port := banner(t, "127.0.0.2:0")
	f := newFake(t, "http", tunnelling(straight, ""))
	_, behind, _ := strings.Cut(f.url, "://")
	p := newPool(t, Options{})
	for _, up := range []*policy.Upstream{
		{Addresses: []string{"127.0.0.2", proxyAddress}, Proxy: f.url},
		{Addresses: []string{"127.0.0.2", proxyAddress}, Proxy: front(t, behind, ca.host(t, []string{proxyAddress}, nil)), ProxyRoots: ca.file(t)},
	} {
		c, err := p.Dial(t.Context(), Route{Sandbox: "a", Host: "127.0.0.2", Port: port, Upstream: up})
		if err != nil {
			t.Fatal(err)
		}
		said(t, c, "hello 127.0.0.1")
		p.Forget("a")
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s: the tunnel lives on: %v", up.Proxy, err)
		}
		c.Close()
	}
}

// Whoever asked goes away while the proxy thinks.
func TestCanceledAtAProxy(t *testing.T) {
	for _, scheme := range []string{"http", "https", "socks5"} {
		arrived := make(chan struct{})
		f := newFake(t, scheme, func(_ *fake, c net.Conn) { close(arrived); io.Copy(io.Discard, c) })
		p := newPool(t, Options{})
		ctx, cancel := context.WithCancel(t.Context())
		go func() { <-arrived; cancel() }()
		begin := time.Now()
		_, err := p.Dial(ctx, Route{Sandbox: "a", Host: "127.0.0.2", Port: 80, Upstream: &policy.Upstream{Addresses: []string{"127.0.0.2", proxyAddress}, Proxy: f.url}})
		if kind(t, err) != KindCanceled || time.Since(begin) > 5*time.Second {
			t.Errorf("%s: got %v after %v", scheme, err, time.Since(begin))
		}
	}
}

func TestBadProxyInARule(t *testing.T) {
	p := newPool(t, Options{})
	_, err := p.Dial(t.Context(), Route{Sandbox: "a", Host: "127.0.0.2", Port: 80, Upstream: &policy.Upstream{Proxy: "http://someone:" + proxyPassword + "@" + proxyAddress + ":3128"}})
	if kind(t, err) != KindRule || !strings.Contains(err.Error(), "proxyAuthRef") {
		t.Errorf("got %v", err)
	}
	hides(t, err)
}
