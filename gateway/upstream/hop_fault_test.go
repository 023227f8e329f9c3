package upstream

import (
	"crypto/tls"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"sallyport/internal/test/must"
	"sallyport/policy"
)

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
			_, err := get(t, p, r)
			if kind(t, err) != tt.kind || !strings.Contains(err.Error(), tt.says) || !strings.Contains(err.Error(), f.url) {
				t.Errorf("got %v (%v), want %v with %q and %s", err, kind(t, err), tt.kind, tt.says, f.url)
			}
			if slices.Contains(f.requests(), "took everything") {
				t.Error("read without bound")
			}
			hides(t, err)
			tn, _ := p.sandbox(r)
			tn.mu.Lock()
			defer tn.mu.Unlock()
			if len(tn.conns)+tn.dialling != 0 {
				t.Errorf("%d connections are left", len(tn.conns)+tn.dialling)
			}
		})
	}
}

func TestProxyIsDown(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
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
				must.OK(t, err)
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

func TestBadProxyInARule(t *testing.T) {
	t.Parallel()
	p := newPool(t, Options{})
	_, err := p.Dial(t.Context(), Route{Sandbox: "a", Host: "127.0.0.2", Port: 80, Upstream: &policy.Upstream{Proxy: "http://someone:" + proxyPassword + "@" + proxyAddress + ":3128"}})
	if kind(t, err) != KindRule || !strings.Contains(err.Error(), "proxyAuthRef") {
		t.Errorf("got %v", err)
	}
	hides(t, err)
}
