package upstream

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"sallyport/internal/test/must"
	"sallyport/policy"
)

// TestProxyIsolation counts what proxies are asked for: requests share a
// connection only when all about the proxy is the same.
func TestProxyIsolation(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
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
			must.OK(t, err)
			defer c.Close()
			said(t, c, "early")
			said(t, c, "hello 127.0.0.1")
			io.WriteString(c, "the end\n")
			// One direction ends; the other goes on.
			must.OK(t, c.(interface{ CloseWrite() error }).CloseWrite())
			rest, err := io.ReadAll(bufio.NewReader(c))
			if string(rest) != "the end\n" || err != nil {
				t.Errorf("after the end of one direction: %q, %v", rest, err)
			}
			c.Close()
			tn, _ := p.sandbox(r)
			tn.mu.Lock()
			defer tn.mu.Unlock()
			if len(tn.conns) != 0 {
				t.Errorf("%d connections are counted after the last was closed", len(tn.conns))
			}
		})
	}
}

func TestForgetClosesWhatGoesThroughAProxy(t *testing.T) {
	t.Parallel()
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
		must.OK(t, err)
		said(t, c, "hello 127.0.0.1")
		p.Forget("a")
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s: the tunnel lives on: %v", up.Proxy, err)
		}
		c.Close()
	}
}

// The caller goes away while the proxy thinks.
func TestCanceledAtAProxy(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"http", "https", "socks5"} {
		arrived := make(chan struct{})
		f := newFake(t, scheme, func(_ *fake, c net.Conn) { close(arrived); io.Copy(io.Discard, c) })
		p := newPool(t, Options{})
		ctx, cancel := context.WithCancel(t.Context())
		go func() { <-arrived; cancel() }()
		_, err := p.Dial(ctx, Route{Sandbox: "a", Host: "127.0.0.2", Port: 80, Upstream: &policy.Upstream{Addresses: []string{"127.0.0.2", proxyAddress}, Proxy: f.url}})
		if kind(t, err) != KindCanceled {
			t.Errorf("%s: got %v", scheme, err)
		}
	}
}
