package gateway_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/gateway"
	"sallyport/gateway/upstream"
	"sallyport/internal/test/must"
	"sallyport/policy"
	"sallyport/policy/engine"
)

// over waits until nothing is left of the sandboxes' connections and of those
// to an origin, and until the process has what it had before.
func (w *netEnv) over(t *testing.T, before kept, o *origin) {
	t.Helper()
	returned(t, before, func() string {
		if n, m := w.gauge("sallyport_gateway_connections"), o.open.Load(); n > 0 || m > 0 {
			return fmt.Sprintf("%v connections of sandboxes, %d to the upstream", n, m)
		}
		return ""
	})
}

// brief is a way out whose idle connections end at once.
func brief(t *testing.T) option {
	p := upstream.New(upstream.Options{IdleTimeout: 50 * time.Millisecond, HandshakeTimeout: 2 * time.Second})
	t.Cleanup(p.Close)
	return func(o *gateway.Options) { o.Upstreams = p }
}

// TestUpstreamsThatGoWrong resets, half-closes, hangs and worse, in both
// versions on both sides: the client is told each time, each exchange has its
// one completion, the next request is served, and nothing is left behind.
func TestUpstreamsThatGoWrong(t *testing.T) {
	for _, version := range []string{"h1", "h2"} {
		for _, far := range []string{"h1", "h2"} {
			t.Run(version+" to "+far, func(t *testing.T) {
				w := newNetEnv(t, brief(t))
				w.quiet = true
				o := w.origin("api.example.test", far, true)
				serveIll(o)
				serveWell(o)
				client := w.agent(version, true, w.steer, false)
				before := holding()
				for _, ill := range ills {
					ctx, cancel := context.WithTimeout(t.Context(), soon)
					waits := ill == "hang" || ill == "stall"
					if waits { // the client has enough of it
						go func() {
							for !w.decided("/open/"+ill) && ctx.Err() == nil {
								time.Sleep(5 * time.Millisecond)
							}
							time.Sleep(100 * time.Millisecond)
							cancel()
						}()
					}
					var body io.Reader
					if ill == "eats" {
						body = io.MultiReader(bytes.NewReader(pattern))
					}
					r, err := http.NewRequestWithContext(ctx, "POST", o.url("https", "/open/"+ill), body)
					must.OK(t, err)
					resp, err := client.Do(r)
					if err == nil {
						_, err = io.ReadAll(resp.Body)
						resp.Body.Close()
						if err == nil && resp.StatusCode != http.StatusBadGateway {
							t.Errorf("%s: %d, and it looks whole", ill, resp.StatusCode)
						}
					}
					if errors.Is(ctx.Err(), context.DeadlineExceeded) || waits && !errors.Is(err, context.Canceled) {
						t.Errorf("%s: %v", ill, err)
					}
					cancel()
					if resp, body := get(t, client, o.url("https", "/open/echo")); resp.StatusCode != 200 {
						t.Errorf("after %s: %d %s", ill, resp.StatusCode, body)
					}
				}
				decisions, completions := w.settled(t)
				if len(decisions) != 2*len(ills) {
					t.Errorf("%d decisions", len(decisions))
				}
				for _, d := range decisions {
					c := completions[d.ID()]
					if well := d.HTTPRequest.URL.Path == "/open/echo"; well != (c.StatusID == audit.StatusSuccess) {
						t.Errorf("%s: completion %d %q", d.HTTPRequest.URL.Path, c.StatusID, c.Detail)
					}
				}
				client.CloseIdleConnections()
				w.over(t, before, o)
			})
		}
	}
}

// decided tells whether there is a decision about a path.
func (l *env) decided(path string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.events, func(e *audit.Event) bool {
		return e.Unmapped.Sallyport.Kind == audit.KindDecision && e.HTTPRequest != nil && e.HTTPRequest.URL.Path == path
	})
}

// TestUpstreamsThatAreNone: where the certificate has expired or is another's,
// where nobody listens or nobody speaks, the client is told so, and no request
// has left.
func TestUpstreamsThatAreNone(t *testing.T) {
	for _, test := range []struct {
		name  string
		start func(w *netEnv) *origin
		code  int
		says  string
	}{
		{"expired", func(w *netEnv) *origin { return w.expired("api.example.test") }, 502, "valid from"},
		{"for another name", func(w *netEnv) *origin { return w.misnamed("api.example.test") }, 502, "another name"},
		{"refused", func(w *netEnv) *origin { return w.nobody("api.example.test") }, 502, "refused"},
		{"silent", func(w *netEnv) *origin { return w.mute("api.example.test") }, 504, "in time"},
	} {
		for _, version := range []string{"h1", "h2"} {
			t.Run(test.name+"/"+version, func(t *testing.T) {
				w := newNetEnv(t, brief(t))
				w.quiet = true
				w.credential("key", token)
				w.policy(func(in policy.Input) policy.Decision {
					d := inject("key")(in)
					d.Upstream = w.reach
					return d
				})
				o := test.start(w)
				var served atomic.Bool
				if o.mux != nil {
					o.handle("/", func(http.ResponseWriter, *http.Request) { served.Store(true) })
				}
				client := w.agent(version, true, w.steer, false)
				before := holding()
				resp, body := get(t, client, o.url("https", "/"))
				if resp.StatusCode != test.code || !strings.Contains(body, test.says) || !strings.Contains(body, resp.Header.Get("Sallyport-Decision")) {
					t.Errorf("%d %s", resp.StatusCode, body)
				}
				if served.Load() {
					t.Error("a request reached it")
				}
				decisions, completions := w.settled(t)
				if c := completions[decisions[0].ID()]; len(decisions) != 1 || c.StatusID != audit.StatusFailure || c.Detail == "" {
					t.Errorf("%d decisions, completion %+v", len(decisions), c)
				}
				client.CloseIdleConnections()
				w.over(t, before, o)
			})
		}
	}
}

// TestSandboxesThatVanish end their connection with a RST wherever they are:
// the upstream is told, the completion says who it was, nothing is left.
func TestSandboxesThatVanish(t *testing.T) {
	// begin sends a request and waits until it has arrived.
	h1 := func(request string) func(t *testing.T, w *netEnv, o *origin) net.Conn {
		return func(t *testing.T, w *netEnv, o *origin) net.Conn {
			c, err := w.env.secure(fmt.Sprintf("%s:%d", w.name(o.name), o.port), o.name)
			must.OK(t, err)
			fmt.Fprintf(c, request, o.address())
			return c
		}
	}
	h2 := func(end bool, path string) func(t *testing.T, w *netEnv, o *origin) net.Conn {
		return func(t *testing.T, w *netEnv, o *origin) net.Conn {
			c := w.frames(w.steer, o)
			if _, err := c.open(end, o.request(path)...); err != nil {
				t.Fatal(err)
			}
			return c.Conn
		}
	}
	for _, test := range []struct {
		name  string
		begin func(t *testing.T, w *netEnv, o *origin) net.Conn
	}{
		{"waiting", h1("GET /wait HTTP/1.1\r\nHost: %s\r\n\r\n")},
		{"in an upload", h1("POST /wait HTTP/1.1\r\nHost: %s\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")},
		{"in a download", h1("GET /flood HTTP/1.1\r\nHost: %s\r\n\r\n")},
		{"waiting, by HTTP/2", h2(true, "/wait")},
		{"in an upload by HTTP/2", h2(false, "/wait")},
		{"in a download by HTTP/2", h2(true, "/flood")},
		{"in a WebSocket", h1("GET /ws HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\nOrigin: http://x\r\n\r\n")},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newNetEnv(t, brief(t))
			w.quiet = true
			o := w.origin("api.example.test", "h1", true)
			begun, told := make(chan struct{}, 1), make(chan struct{}, 1)
			o.handle("/wait", func(_ http.ResponseWriter, r *http.Request) {
				begun <- struct{}{}
				_, _ = io.Copy(io.Discard, r.Body)
				<-r.Context().Done()
				told <- struct{}{}
			})
			o.handle("/flood", func(rw http.ResponseWriter, r *http.Request) {
				begun <- struct{}{}
				for err := error(nil); err == nil; {
					_, err = rw.Write(pattern)
				}
				told <- struct{}{}
			})
			o.handle("/ws", func(rw http.ResponseWriter, r *http.Request) {
				begun <- struct{}{}
				echoing.ServeHTTP(rw, r)
				told <- struct{}{}
			})
			before := holding()
			c := test.begin(t, w, o)
			await(t, begun)
			time.Sleep(20 * time.Millisecond)
			reset(c)
			await(t, told)
			_, completions := w.settled(t)
			for _, c := range completions {
				// How a WebSocket ends is between its ends.
				if want := "the sandbox went away"; c.Detail != want && c.HTTPResponse.Code != 101 {
					t.Errorf("completion %d %q", c.StatusID, c.Detail)
				}
			}
			if len(completions) != 1 {
				t.Errorf("%d completions", len(completions))
			}
			w.over(t, before, o)
		})
	}
}

// TestHalfCloses: a tunnel whose one end has said all it had to goes on in the
// other direction, whichever end it is.
func TestHalfCloses(t *testing.T) {
	w := newNetEnv(t)
	w.policy(w.tunnel)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	heard := make(chan string, 1)
	go func() {
		c, err := ln.Accept()
		if err != nil {
			close(heard)
			return
		}
		defer c.Close()
		_, _ = io.WriteString(c, "all I have to say")
		_ = c.(*net.TCPConn).CloseWrite()
		_ = c.SetReadDeadline(time.Now().Add(patience))
		b, err := io.ReadAll(c)
		heard <- fmt.Sprint(string(b), err)
	}()
	defer ln.Close()
	w.name("db.example.test")
	o := &origin{name: "db.example.test", port: addrPort(ln.Addr()).Port(), mux: http.NewServeMux()}
	before := holding()
	c, err := w.steer(t.Context(), "tcp", o.address())
	must.OK(t, err)
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	_, _ = io.WriteString(c, "\x00 first")
	if b, err := io.ReadAll(c); string(b) != "all I have to say" || err != nil {
		t.Errorf("%q %v", b, err)
	}
	time.Sleep(50 * time.Millisecond)
	_, _ = io.WriteString(c, ", and last")
	_ = c.(*net.TCPConn).CloseWrite()
	if got := await(t, heard); got != "\x00 first, and last<nil>" {
		t.Errorf("the upstream heard %q", got)
	}
	_, completions := w.settled(t)
	for _, c := range completions {
		if c.StatusID != audit.StatusSuccess || c.Traffic.BytesOut != 17 || c.Traffic.BytesIn != 17 {
			t.Errorf("completion %d %q %+v", c.StatusID, c.Detail, c.Traffic)
		}
	}
	c.Close()
	before.files = append(before.files, "the listener's connection") // closed by now
	w.over(t, before, o)
}

// TestUpstreamThatRefusesABody is not the sandbox that went away, though what
// is read of its body ends with an error then.
func TestUpstreamThatRefusesABody(t *testing.T) {
	t.Parallel()
	w := newNetEnv(t)
	o := w.scripted("api.example.test", func(c *frames, stream uint32) {
		time.Sleep(50 * time.Millisecond) // for the body to begin
		_ = c.WriteRSTStream(stream, http2.ErrCodeRefusedStream)
	})
	for _, version := range []string{"h1", "h2"} {
		body, more := io.Pipe()
		go func() {
			for i := range 1000 {
				if _, err := fmt.Fprint(more, i); err != nil {
					return
				}
				time.Sleep(time.Millisecond)
			}
			more.Close()
		}()
		r, err := http.NewRequestWithContext(t.Context(), "POST", o.url("https", "/"), body)
		must.OK(t, err)
		resp, err := w.agent(version, true, w.steer, false).Do(r)
		must.OK(t, err)
		if body := text(t, resp); resp.StatusCode != 502 || strings.Contains(body, "went away") {
			t.Errorf("%s: %d %s", version, resp.StatusCode, body)
		}
		more.CloseWithError(errors.New("over"))
	}
	_, completions := w.settled(t)
	for _, c := range completions {
		if c.StatusID != audit.StatusFailure || c.Detail == "the sandbox went away" {
			t.Errorf("completion %d %q", c.StatusID, c.Detail)
		}
	}
}

// slow is a recorder and a policy that take so long that nobody waits.
type slow struct {
	*env
	withdrawn bool
	asked     chan struct{}
}

func (s slow) Decide(ctx context.Context, in policy.Input) policy.Decision {
	if in.Request == nil || in.Request.Path != "/policy" {
		return allow(in)
	}
	s.asked <- struct{}{}
	<-ctx.Done()
	return policy.Decision{Err: fmt.Errorf("%w: %w", engine.ErrUndecided, ctx.Err())}
}

func (s slow) Append(ctx context.Context, events ...*audit.Event) error {
	s.asked <- struct{}{}
	<-ctx.Done()
	if s.withdrawn {
		return fmt.Errorf("%w: %w", auditlog.ErrWithdrawn, ctx.Err())
	}
	_ = s.env.Append(ctx, events...)
	return ctx.Err()
}

// TestSandboxThatVanishesBeforeTheDecision leaves no completion without its
// decision, and nothing that an operator would have to look into.
func TestSandboxThatVanishesBeforeTheDecision(t *testing.T) {
	for _, test := range []struct {
		name, path string
		withdrawn  bool
		want       []string // events
	}{
		{"while the policy decides", "/policy", false, []string{"decision denied"}},
		{"while it is written", "/", false, []string{"decision allowed", "completion allowed"}},
		{"before it is written", "/", true, []string{"connection "}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := slow{withdrawn: test.withdrawn, asked: make(chan struct{}, 1)}
			s.env = newEnv(t, func(o *gateway.Options) { o.Decider, o.Recorder = &s, &s })
			s.name("api.example.test")
			c, err := s.secure(s.env.name("api.example.test").String()+":443", "api.example.test")
			must.OK(t, err)
			fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: api.example.test\r\n\r\n", test.path)
			await(t, s.asked)
			reset(c)
			events := s.await(len(test.want))
			must.Soon(t, "the connection's end", func() bool { return s.gauge("sallyport_gateway_connections") == 0 })
			var got []string
			for _, e := range s.await(len(test.want)) {
				action := map[audit.Action]string{audit.ActionAllowed: "allowed", audit.ActionDenied: "denied"}[e.Action]
				got = append(got, fmt.Sprint(e.Unmapped.Sallyport.Kind, " ", action))
			}
			if fmt.Sprint(got) != fmt.Sprint(test.want) {
				t.Errorf("%q, want %q: %+v", got, test.want, events)
			}
			if n := s.gauge("sallyport_gateway_unevaluated_total") + s.gauge("sallyport_gateway_audit_failures_total"); n > 0 || s.dials() > 0 {
				t.Errorf("%v failures, %d dials", n, s.dials())
			}
		})
	}
}
