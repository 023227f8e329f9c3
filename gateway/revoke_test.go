package gateway_test

import (
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"sallyport/audit"
	"sallyport/internal/test/must"
	"sallyport/policy"
)

// soon is how long what is no longer allowed may go on, on a machine that has
// other things to do; it should be a second.
const soon = 20 * time.Second

// withdraw changes the policy: what is for such a path is denied from now on.
func (w *netEnv) withdraw(path string, allow func(policy.Input) policy.Decision) (at time.Time) {
	at = time.Now()
	w.policy(func(in policy.Input) policy.Decision {
		if in.Request != nil && in.Request.Path == path {
			return policy.Decision{Action: policy.Deny, Rule: "closed", RuleType: "egress", Reason: "not any more", Revision: "r2"}
		}
		d := allow(in)
		d.Revision = "r2"
		return d
	})
	w.gateway.Redecide()
	return at
}

// revoked wants the completion that says so.
func (w *netEnv) revoked(t *testing.T, path string) {
	t.Helper()
	var d, c *audit.Event
	for deadline := time.Now().Add(soon); c == nil && time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		w.mu.Lock()
		for _, e := range w.events {
			switch {
			case e.HTTPRequest == nil || e.HTTPRequest.URL.Path != path || e.Action == audit.ActionDenied && e.Unmapped.Sallyport.Kind == audit.KindDecision:
			case e.Unmapped.Sallyport.Kind == audit.KindDecision:
				d = e
			case e.Metadata.CorrelationUID == d.ID():
				c = e
			}
		}
		w.mu.Unlock()
	}
	if c == nil || c.Policy == nil || c.Rule == nil {
		t.Fatalf("the completion of %s: %+v", path, c)
	}
	if d.Policy.Version != "r1" || c.Policy.Version != "r2" || c.Rule.Name != "closed" || c.Detail != "the policy no longer allows it: not any more" ||
		c.Action != audit.ActionDenied || c.StatusID != audit.StatusFailure || c.Unmapped.Sallyport.Decision != "deny" {
		t.Errorf("%s, allowed by %s, was completed by %+v, rule %v, policy %v", path, d.Policy.Version, c, c.Rule, c.Policy)
	}
}

func TestRevokedWebSockets(t *testing.T) {
	t.Parallel()
	eachWebSocket(t, func(t *testing.T, m *versionEnv) {
		m.mux.Handle("/gone", echoing)
		m.mux.Handle("/kept", echoing)
		gone, _, err := m.upgrade(t, "/gone")
		must.OK(t, err)
		kept, _, err := m.upgrade(t, "/kept")
		must.OK(t, err)
		gone.echoes(t, "hello")
		kept.echoes(t, "hello")
		began := m.withdraw("/gone", m.allow)
		kind, payload, err := gone.receive()
		if err != nil || kind != wsClose || binary.BigEndian.Uint16(payload) != 1008 || string(payload[2:]) != "the policy no longer allows it" {
			t.Fatalf("frame of kind %d, %q, %v", kind, payload, err)
		}
		if _, err := io.Copy(io.Discard, gone.in); err != nil {
			t.Errorf("the end: %v", err)
		}
		if took := time.Since(began); took > soon {
			t.Errorf("it took %v", took)
		}
		time.Sleep(time.Second)
		kept.echoes(t, "still here")
		_ = kept.Close()
		m.revoked(t, "/gone")
	})
}

// A WebSocket whose client reads nothing, in the middle of a frame, has no clean
// end, but an end.
func TestRevokedWebSocketOfAClientThatDoesNotRead(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"h1", "h2"} {
		t.Run(version, func(t *testing.T) {
			m := newVersionEnv(t, "transparent", version, "h1", "https")
			over := make(chan struct{})
			m.handle("/gone", func(w http.ResponseWriter, r *http.Request) {
				defer close(over)
				c, rw, err := http.NewResponseController(w).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				defer c.Close()
				fmt.Fprintf(rw, "HTTP/1.1 101 x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: %s\r\n\r\n", accept(r))
				_, _ = rw.Write([]byte{0x82, 127, 0, 0, 0, 1, 0, 0, 0, 0}) // 4 GiB
				_ = rw.Flush()
				_, _ = io.Copy(c, &endless{left: 1 << 32})
			})
			if _, _, err := m.upgrade(t, "/gone"); err != nil {
				t.Fatal(err)
			}
			time.Sleep(300 * time.Millisecond) // until all buffers are full
			m.withdraw("/gone", m.allow)
			select {
			case <-over:
			case <-time.After(soon):
				t.Error("the upstream's end goes on")
			}
			m.revoked(t, "/gone")
		})
	}
}

// Every form of a request that is under way: a response that goes on and on, a request whose
// body does, and one that has no answer yet.
func TestRevokedRequests(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, m *versionEnv) {
		ended := make(chan string, 10)
		stream := func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			for {
				if _, err := io.WriteString(w, "data: tick\n\n"); err != nil {
					break
				}
				_ = http.NewResponseController(w).Flush()
				select {
				case <-r.Context().Done():
					ended <- r.URL.Path
					return
				case <-time.After(20 * time.Millisecond):
				}
			}
			ended <- r.URL.Path
		}
		m.handle("/stream", stream)
		m.handle("/kept", stream)
		begun := make(chan struct{}, 10)
		m.handle("/wait", func(w http.ResponseWriter, r *http.Request) {
			begun <- struct{}{}
			<-r.Context().Done()
			ended <- r.URL.Path
		})
		m.handle("/send", func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.ReadFull(r.Body, make([]byte, 3000))
			begun <- struct{}{}
			_, _ = io.Copy(io.Discard, r.Body)
			ended <- r.URL.Path
		})
		kept := m.do(t, m.request(t, "GET", "/kept", nil))
		upstream := func(began time.Time, path string) {
			t.Helper()
			for {
				select {
				case got := <-ended:
					if got == path {
						return
					}
					t.Errorf("%s ended", got)
				case <-time.After(time.Until(began.Add(soon))):
					t.Errorf("%s goes on at the upstream", path)
					return
				}
			}
		}

		resp := m.do(t, m.request(t, "GET", "/stream", nil))
		began := m.withdraw("/stream", m.allow)
		_, err := io.Copy(io.Discard, resp.Body)
		if err == nil || time.Since(began) > soon {
			t.Errorf("the response ended with %v after %v", err, time.Since(began))
		}
		var reset http2.StreamError
		if m.version == "h2" && !errors.As(err, &reset) && !strings.Contains(fmt.Sprint(err), "stream ID") {
			t.Errorf("the client of HTTP/2 met %v", err)
		}
		upstream(began, "/stream")
		m.revoked(t, "/stream")

		m.policy(m.allow)
		answered := make(chan *http.Response, 1)
		go func() { r, _ := m.client.Do(m.request(t, "GET", "/wait", nil)); answered <- r }()
		select {
		case <-begun:
		case <-time.After(soon):
			t.Fatal("the request did not reach the upstream")
		}
		began = m.withdraw("/wait", m.allow)
		if r := <-answered; r == nil {
			t.Error("no answer")
		} else if body := text(t, r); r.StatusCode != 403 || !strings.Contains(body, "rule: closed") || !strings.Contains(body, "not any more") || time.Since(began) > soon {
			t.Errorf("%d %s after %v", r.StatusCode, body, time.Since(began))
		}
		upstream(began, "/wait")

		m.policy(m.allow)
		in, out := io.Pipe()
		go func() {
			for {
				if _, err := out.Write(make([]byte, 1000)); err != nil {
					return
				}
				time.Sleep(5 * time.Millisecond)
			}
		}()
		defer in.Close()
		go func() { r, _ := m.client.Do(m.request(t, "POST", "/send", in)); answered <- r }()
		select {
		case <-begun:
		case <-time.After(soon):
			t.Fatal("the request did not reach the upstream")
		}
		began = m.withdraw("/send", m.allow)
		if r := <-answered; r != nil { // a client may meet the end of the connection first
			r.Body.Close()
		}
		if took := time.Since(began); took > soon {
			t.Errorf("the body took %v to end", took)
		}
		upstream(began, "/send")

		var b [12]byte
		for range 20 { // which was there all the time
			if _, err := io.ReadFull(kept.Body, b[:]); err != nil || string(b[:]) != "data: tick\n\n" {
				t.Fatalf("%q %v", b, err)
			}
		}
		kept.Body.Close()
	})
}

// A response that nobody takes is ended too.
func TestRevokedRequestOfAClientThatDoesNotRead(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, m *versionEnv) {
		over := make(chan struct{})
		m.handle("/big", func(w http.ResponseWriter, r *http.Request) {
			defer close(over)
			_, _ = io.Copy(w, &endless{left: 1 << 32})
		})
		resp := m.do(t, m.request(t, "GET", "/big", nil))
		time.Sleep(200 * time.Millisecond)
		m.withdraw("/big", m.allow)
		select {
		case <-over:
		case <-time.After(soon):
			t.Error("the upstream's end goes on")
		}
		m.revoked(t, "/big") // whose completion does not wait for the client
		resp.Body.Close()
	})
}

// A credential whose rule has gone, or that another has replaced, flows no more
// although the request is allowed.
func TestRevokedCredential(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		change func(d policy.Decision, w *netEnv) policy.Decision
	}{
		{"without", func(d policy.Decision, w *netEnv) policy.Decision { d.Inject = nil; return d }},
		{"another", func(d policy.Decision, w *netEnv) policy.Decision {
			d.Inject = []policy.Injection{{Credential: "other"}}
			return d
		}},
		{"elsewhere", func(d policy.Decision, w *netEnv) policy.Decision {
			d.Inject[0].Inject.Header = &policy.HeaderInject{Name: "X-Key", Value: "{{ .token }}"}
			return d
		}},
		{"another way", func(d policy.Decision, w *netEnv) policy.Decision {
			way := *w.reach
			way.Addresses = append([]string{"10.0.0.0/8"}, way.Addresses...)
			d.Upstream = &way
			return d
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := newVersionEnv(t, "transparent", "h2", "h2", "https")
			m.credential("key", token)
			with := func(in policy.Input) policy.Decision {
				d := m.allow(in)
				if in.Phase == policy.PhaseRequest {
					d.Inject = []policy.Injection{{Credential: "key"}}
				}
				return d
			}
			m.policy(with)
			over := make(chan struct{}, 1)
			m.handle("/", func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.WriteString(w, r.Header.Get("Authorization"))
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
				over <- struct{}{}
			})
			resp := m.do(t, m.request(t, "GET", "/", nil))
			m.policy(func(in policy.Input) policy.Decision { d := with(in); d.Revision = "r2"; return d })
			m.gateway.Redecide()
			select {
			case <-over:
				t.Fatal("it ended although nothing had changed for it")
			case <-time.After(300 * time.Millisecond):
			}
			m.policy(func(in policy.Input) policy.Decision {
				d := with(in)
				if in.Phase == policy.PhaseRequest {
					d = test.change(d, m.netEnv)
				}
				return d
			})
			m.gateway.Redecide()
			select {
			case <-over:
			case <-time.After(soon):
				t.Error("it goes on")
			}
			_, _ = io.Copy(io.Discard, resp.Body)
		})
	}
}

func TestRevokedTunnels(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"transparent", "explicit"} {
		t.Run(way, func(t *testing.T) {
			w := newNetEnv(t)
			w.policy(w.tunnel)
			dial := dialler(w.steer)
			if way == "explicit" {
				dial = w.connect
			}
			open := func(name string) net.Conn {
				c, err := dial(t.Context(), "tcp", w.bytes(name, "hello").address())
				must.OK(t, err)
				t.Cleanup(func() { c.Close() })
				_ = c.SetDeadline(time.Now().Add(patience))
				pong(t, c, "hello", "ping")
				return c
			}
			gone, kept := open("gone.example.test"), open("kept.example.test")
			began := time.Now()
			w.policy(func(in policy.Input) policy.Decision {
				d := w.tunnel(in)
				if in.Destination.Host == "gone.example.test" {
					d = policy.Decision{Action: policy.Deny, Rule: "closed", RuleType: "egress", Reason: "not any more"}
				}
				d.Revision = "r2"
				return d
			})
			w.gateway.Redecide()
			if n, err := io.Copy(io.Discard, gone); n > 0 || time.Since(began) > soon {
				t.Errorf("%d bytes, %v, after %v", n, err, time.Since(began))
			}
			time.Sleep(time.Second / 2)
			pong(t, kept, "", "still here")
			kept.Close()
			decisions, completions := w.settled(t)
			for _, d := range decisions {
				c := completions[d.ID()]
				if d.Destination.Hostname == "gone.example.test" && (c.Policy == nil || c.Policy.Version != "r2" || c.Rule.Name != "closed" ||
					!strings.HasPrefix(c.Detail, "the policy no longer allows it") || c.Action != audit.ActionDenied || c.Traffic.BytesOut != 4) {
					t.Errorf("%+v %+v %+v", c, c.Rule, c.Traffic)
				}
				if d.Destination.Hostname == "kept.example.test" && c.StatusID != audit.StatusSuccess {
					t.Errorf("what was kept: %+v", c)
				}
			}
		})
	}
}

// pong wants a greeting, and then what it says come back.
func pong(t *testing.T, c net.Conn, greeting, say string) {
	t.Helper()
	if _, err := io.WriteString(c, say); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, len(greeting)+len(say))
	if _, err := io.ReadFull(c, b); err != nil || string(b) != greeting+say {
		t.Fatalf("%q %v", b, err)
	}
}

// A connection that waits for its next request ends when it could not be opened
// any more.
func TestRevokedConnection(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"h1", "h2"} {
		t.Run(version, func(t *testing.T) {
			m := newVersionEnv(t, "transparent", version, "h1", "https")
			m.handle("/", func(w http.ResponseWriter, r *http.Request) {})
			text(t, m.do(t, m.request(t, "GET", "/", nil)))
			m.policy(func(in policy.Input) policy.Decision { d := m.allow(in); d.Revision = "r2"; return d })
			m.gateway.Redecide()
			time.Sleep(time.Second / 2)
			text(t, m.do(t, m.request(t, "GET", "/", nil)))
			if n := m.entered(); n != 1 {
				t.Fatalf("%d connections: a change that is none for it ended one", n)
			}
			m.policy(func(in policy.Input) policy.Decision {
				if in.Phase == policy.PhaseConnect {
					return policy.Decision{Action: policy.Deny, Reason: "closed"}
				}
				return m.allow(in)
			})
			m.gateway.Redecide()
			must.Soon(t, "the connection's end", func() bool { return m.gauge("sallyport_gateway_connections") == 0 })
			time.Sleep(time.Second / 2) // the client sees it too
			resp := m.do(t, m.request(t, "GET", "/", nil))
			if body := text(t, resp); resp.StatusCode != 403 || m.entered() != 2 {
				t.Errorf("%d %s on connection %d", resp.StatusCode, body, m.entered())
			}
		})
	}
}

// accept answers a WebSocket's key (RFC 6455, section 4.2.2).
func accept(r *http.Request) string {
	sum := sha1.Sum([]byte(r.Header.Get("Sec-Websocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	return base64.StdEncoding.EncodeToString(sum[:])
}
