package gateway_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/internal/test/must"
	"sallyport/policy"
)

// bytes is an upstream that is no HTTP: it greets, sends all back and passes the
// end of each direction on.
func (w *netEnv) bytes(name, greeting string) *origin {
	w.t.Helper()
	addr := echo(w.t, greeting)
	a, err := net.ResolveTCPAddr("tcp", addr)
	must.OK(w.t, err)
	w.name(name)
	return &origin{name: name, port: uint16(a.Port)}
}

func (o *origin) address() string { return fmt.Sprintf("%s:%d", o.name, o.port) }

// A tunnel is for clients that trust their server's certificate only: nothing of
// ours is in it, and where it leads is our own look-up of its name.
func TestTunnelOfTLS(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"transparent", "explicit"} {
		t.Run(way, func(t *testing.T) {
			w := newNetEnv(t)
			w.policy(w.tunnel)
			o := w.origin("api.example.test", "h2", true)
			o.handle("/", func(w http.ResponseWriter, r *http.Request) {
				n, _ := io.Copy(io.Discard, r.Body)
				_, _ = io.Copy(w, &endless{left: n})
			})
			dial := dialler(w.steer)
			if way == "explicit" {
				dial = w.connect
			}
			client := w.agent("h2", true, dial, false)
			client.Transport.(*http.Transport).TLSClientConfig.RootCAs = w.public.pool
			const size = 16 << 20
			r, _ := http.NewRequestWithContext(t.Context(), "POST", o.url("https", "/"), &endless{left: size})
			resp, err := client.Do(r)
			must.OK(t, err)
			if n, err := io.Copy(io.Discard, resp.Body); n != size || err != nil || resp.TLS.PeerCertificates[0].Issuer.String() != w.public.cert.Subject.String() {
				t.Errorf("%d %v from %v", n, err, resp.TLS.PeerCertificates[0].Issuer)
			}
			resp.Body.Close()
			client.CloseIdleConnections()
			decisions, completions := w.settled(t)
			if len(decisions) != 1 || decisions[0].TLS.SNI != "api.example.test" || decisions[0].Unmapped.Sallyport.Decision != "tunnel" {
				t.Fatalf("%d decisions %+v", len(decisions), decisions[0])
			}
			// TLS and frames add a little.
			if c := completions[decisions[0].ID()]; c.Traffic.BytesIn < size || c.Traffic.BytesIn > size+size/20 || c.Traffic.BytesOut < size || c.Traffic.BytesOut > size+size/20 {
				t.Errorf("traffic %+v", c.Traffic)
			}
		})
	}
}

// Nothing of a tunnel that is refused leaves, not even a look-up.
func TestTunnelThatIsRefused(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, sni, address string
		decide             func(w *netEnv) func(policy.Input) policy.Decision
		looked             bool
		status             int
	}{
		{"carried", "api.example.test", "", nil, true, 0},
		{"another name in the handshake", "other.example.test", "", nil, false, 403},
		{"an address that no rule names", "api.example.test", "127.0.0.1", func(w *netEnv) func(policy.Input) policy.Decision {
			return func(in policy.Input) policy.Decision {
				d := w.tunnel(in)
				d.Upstream = &policy.Upstream{Resolver: w.zone.addr}
				return d
			}
		}, true, 403},
		{"the metadata address", "api.example.test", "169.254.169.254", nil, true, 403},
		{"denied", "api.example.test", "", func(w *netEnv) func(policy.Input) policy.Decision {
			return func(policy.Input) policy.Decision { return policy.Decision{} }
		}, false, 403},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newNetEnv(t)
			w.policy(w.tunnel)
			if test.decide != nil {
				w.policy(test.decide(w))
			}
			o := w.origin("api.example.test", "h1", true)
			o.handle("/", func(w http.ResponseWriter, r *http.Request) {})
			if test.address != "" {
				w.zone.set("api.example.test", net.ParseIP(test.address))
			}
			raw, err := w.steer(t.Context(), "tcp", o.address())
			must.OK(t, err)
			defer raw.Close()
			c := tls.Client(raw, &tls.Config{ServerName: test.sni, InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}})
			resp, body := send(t, c, "GET / HTTP/1.1\r\nHost: api.example.test\r\nConnection: close\r\n\r\n")
			issuer := c.ConnectionState().PeerCertificates[0]
			if test.status == 0 {
				if resp.StatusCode != 200 || issuer.CheckSignatureFrom(w.public.cert) != nil {
					t.Errorf("%d %s", resp.StatusCode, body)
				}
			} else if resp.StatusCode != test.status || resp.Header.Get("Sallyport-Decision") == "" || issuer.CheckSignatureFrom(w.ca.cert) != nil {
				t.Errorf("%d %s", resp.StatusCode, body)
			}
			if looked := len(w.zone.names()) > 0; looked != test.looked {
				t.Errorf("looked up: %v", w.zone.names())
			}
			if n := o.conns.Load(); (n > 0) != (test.status == 0) {
				t.Errorf("%d connections to the upstream", n)
			}
		})
	}
}

// A protocol that is neither TLS nor HTTP goes by name, and only if a rule carries it unread.
func TestOtherProtocols(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"transparent", "explicit"} {
		for _, action := range []policy.Action{policy.Tunnel, policy.Allow, policy.Deny, policy.Approve, ""} {
			for _, first := range []string{"client", "server"} {
				t.Run(fmt.Sprintf("%s/%q/%s speaks first", way, action, first), func(t *testing.T) {
					w := newNetEnv(t, speaksFirst)
					w.policy(func(in policy.Input) policy.Decision {
						if in.Destination.Host != "db.example.test" || in.Protocol != policy.ProtocolOther {
							t.Errorf("policy saw %+v", in)
						}
						return policy.Decision{Action: action, Upstream: w.reach}
					})
					greeting := ""
					if first == "server" {
						greeting = "220 ready\r\n"
					}
					o := w.bytes("db.example.test", greeting)
					dial := dialler(w.steer)
					if way == "explicit" {
						dial = w.connect
					}
					c, err := dial(t.Context(), "tcp", o.address())
					must.OK(t, err)
					defer c.Close()
					_ = c.SetDeadline(time.Now().Add(patience))
					in := bufio.NewReader(c)
					carried := action == policy.Tunnel
					if first == "server" && carried {
						if line, err := in.ReadString('\n'); err != nil || line != greeting {
							t.Fatalf("%q %v", line, err)
						}
					}
					io.WriteString(c, "\x00\x00\x00\x17 startup\n")
					c.(*net.TCPConn).CloseWrite()
					want := ""
					if carried {
						want = "\x00\x00\x00\x17 startup\n"
					}
					if got, err := io.ReadAll(in); string(got) != want || err != nil && carried {
						t.Errorf("got %q %v, want %q", got, err, want)
					}
					decisions, completions := w.settled(t)
					if len(decisions) != 1 || (len(completions) == 1) != carried {
						t.Fatalf("%d decisions, %d completions", len(decisions), len(completions))
					}
					if !carried {
						if len(w.zone.names()) > 0 || decisions[0].Action != audit.ActionDenied {
							t.Errorf("looked up %v, %+v", w.zone.names(), decisions[0])
						}
						return
					}
					if c := completions[decisions[0].ID()]; c.Traffic.BytesOut != 13 || c.Traffic.BytesIn != int64(13+len(greeting)) {
						t.Errorf("traffic %+v", c.Traffic)
					}
				})
			}
		}
	}
}

// A tunnel that nobody reads holds no more than sockets do, in either direction.
func TestTunnelWaitsForItsReader(t *testing.T) {
	w := newNetEnv(t)
	w.policy(w.tunnel)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	var work sync.WaitGroup
	body := &endless{left: 1 << 40}
	work.Go(func() {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		_, _ = io.Copy(c, struct{ io.Reader }{body})
		c.Close()
	})
	defer work.Wait()
	defer ln.Close()
	w.name("db.example.test")
	o := &origin{name: "db.example.test", port: addrPort(ln.Addr()).Port()}
	c, err := w.steer(t.Context(), "tcp", o.address())
	must.OK(t, err)
	defer c.Close()
	io.WriteString(c, "\x01")
	grew := heap(func() {
		if n := stalled(body.read.Load); n == 0 || n > buffered {
			t.Errorf("%d bytes were taken for a client that does not read", n)
		}
	})
	if grew > 8<<20 {
		t.Errorf("the heap grew by %d MiB", grew>>20)
	}
	c.Close()
	_, completions := w.settled(t)
	for _, c := range completions {
		if !strings.Contains(c.Detail, "broke") || c.Traffic.BytesIn == 0 {
			t.Errorf("completion %q %+v", c.Detail, c.Traffic)
		}
	}
}
