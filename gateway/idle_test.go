package gateway_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sallyport/gateway"
	"sallyport/gateway/upstream"
	"sallyport/internal/test/must"
	"sallyport/policy"
)

// quiet is a gateway in a bubble of time, between connections in memory.
type quiet struct {
	*env
	in chan net.Conn
	up chan net.Conn
}

// pipes is a listener for connections in memory.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}
func (p *pipes) Close() error   { p.once.Do(func() { close(p.done) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// end is one of a connection in memory.
type end struct {
	net.Conn
	local, remote net.Addr
}

func (e end) LocalAddr() net.Addr  { return e.local }
func (e end) RemoteAddr() net.Addr { return e.remote }

// dial connects as a sandbox does to the one name that there is.
func (q *quiet) dial() net.Conn {
	near, far := net.Pipe()
	q.in <- end{far, net.TCPAddrFromAddrPort(netip.AddrPortFrom(synthetic, 80)), net.TCPAddrFromAddrPort(netip.AddrPortFrom(sandboxAddr, 40000))}
	return near
}

// Dial and RoundTripper are the double of the way out.
func (q *quiet) Dial(context.Context, upstream.Route) (net.Conn, error) { return q.dialUp(nil, "", "") }

func (q *quiet) dialUp(context.Context, string, string) (net.Conn, error) {
	near, far := net.Pipe()
	q.up <- end{far, &net.TCPAddr{}, &net.TCPAddr{}}
	return near, nil
}

func (q *quiet) RoundTripper(upstream.Route) (http.RoundTripper, error) {
	return &http.Transport{DialContext: q.dialUp, DisableKeepAlives: true, DisableCompression: true}, nil
}

// inQuiet runs a test in a bubble. serve, if any, takes the upstream's
// connections; handler is an upstream of HTTP otherwise.
func inQuiet(t *testing.T, decide func(policy.Input) policy.Decision, serve func(net.Conn), handler http.Handler, test func(t *testing.T, q *quiet)) {
	synctest.Test(t, func(t *testing.T) {
		q := &quiet{env: &env{t: t, registry: prometheus.NewRegistry(), names: map[netip.Addr]string{synthetic: "api.example.test"}, decide: decide}}
		sandboxes := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
		upstreams := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
		q.in, q.up = sandboxes.conns, upstreams.conns
		g, err := gateway.New(gateway.Options{
			Identities: q, Names: q, Decider: q, Recorder: q, Certificates: &authority{}, Upstreams: q, Broker: q,
			Logger: slog.New(slog.DiscardHandler), Metrics: q.registry, Refusal: refusal,
		})
		must.OK(t, err)
		q.gateway = g
		var work sync.WaitGroup
		work.Go(func() { _ = g.ServeTransparent(context.Background(), sandboxes) })
		server := &http.Server{Handler: handler}
		work.Go(func() {
			if serve == nil {
				_ = server.Serve(upstreams)
				return
			}
			for {
				c, err := upstreams.Accept()
				if err != nil {
					return
				}
				work.Go(func() { serve(c) })
			}
		})
		test(t, q)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = g.Shutdown(ctx)
		_ = upstreams.Close()
		_ = server.Close()
		work.Wait()
	})
}

// hours is how long the tests are silent; the longest timeout that the gateway
// has is of minutes.
const hours = 30 * time.Hour

// TestHoursOfSilence: what has begun goes on, however long nothing is said.
func TestHoursOfSilence(t *testing.T) {
	t.Parallel()
	const head = " HTTP/1.1\r\nHost: api.example.test\r\n"
	plain := func(policy.Input) policy.Decision { return policy.Decision{Action: policy.Allow} }
	slow := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/thinks":
			time.Sleep(hours)
			io.WriteString(w, "at last")
		case "/events":
			w.Header().Set("Content-Type", "text/event-stream")
			for i := range 3 {
				fmt.Fprintf(w, "data: %d\n\n", i)
				w.(http.Flusher).Flush()
				time.Sleep(hours)
			}
		case "/upload":
			b, err := io.ReadAll(r.Body)
			fmt.Fprint(w, string(b), err)
		}
	})
	ask := func(t *testing.T, c net.Conn, request string) *http.Response {
		io.WriteString(c, request)
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		must.OK(t, err)
		return resp
	}
	t.Run("WebSocket", func(t *testing.T) {
		inQuiet(t, plain, nil, echoing, func(t *testing.T, q *quiet) {
			c := q.dial()
			defer c.Close()
			io.WriteString(c, "GET /"+head+"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\nOrigin: http://x\r\n\r\n")
			in := bufio.NewReader(c)
			if resp, err := http.ReadResponse(in, nil); err != nil || resp.StatusCode != 101 {
				t.Fatal(resp, err)
			}
			s := &socket{c, in}
			for range 3 {
				s.echoes(t, "still there")
				time.Sleep(hours)
			}
			s.echoes(t, "still there")
		})
	})
	t.Run("WebSocket in HTTP/2", func(t *testing.T) {
		inQuiet(t, plain, nil, echoing, func(t *testing.T, q *quiet) {
			m := &versionEnv{netEnv: &netEnv{env: q.env}, version: "h2", scheme: "http", origin: &origin{name: "api.example.test", port: 80}}
			m.dial = func(context.Context, string, string) (net.Conn, error) { return q.dial(), nil }
			s, resp, err := m.upgrade(t, "/")
			if err != nil {
				t.Fatal(resp, err)
			}
			for range 3 {
				s.echoes(t, "still there")
				time.Sleep(hours)
			}
			s.echoes(t, "still there")
			s.ReadWriteCloser.(*stream).Conn.Close()
		})
	})
	t.Run("answer that takes its time", func(t *testing.T) {
		inQuiet(t, plain, nil, slow, func(t *testing.T, q *quiet) {
			c := q.dial()
			defer c.Close()
			if body := text(t, ask(t, c, "GET /thinks"+head+"\r\n")); body != "at last" {
				t.Errorf("got %q", body)
			}
		})
	})
	t.Run("answer that takes its time, by HTTP/2", func(t *testing.T) {
		inQuiet(t, plain, nil, slow, func(t *testing.T, q *quiet) {
			c, err := newFrames(q.dial())
			must.OK(t, err)
			defer c.Close()
			id, err := c.open(true, field{":method", "GET"}, field{":scheme", "http"}, field{":path", "/events"}, field{":authority", "api.example.test"})
			must.OK(t, err)
			if a := c.waitFor(id, 10*hours); a.status != "200" || a.body != "data: 0\n\ndata: 1\n\ndata: 2\n\n" {
				t.Errorf("%+v", a)
			}
		})
	})
	t.Run("events", func(t *testing.T) {
		inQuiet(t, plain, nil, slow, func(t *testing.T, q *quiet) {
			c := q.dial()
			defer c.Close()
			if body := text(t, ask(t, c, "GET /events"+head+"\r\n")); body != "data: 0\n\ndata: 1\n\ndata: 2\n\n" {
				t.Errorf("got %q", body)
			}
		})
	})
	t.Run("slow upload", func(t *testing.T) {
		inQuiet(t, plain, nil, slow, func(t *testing.T, q *quiet) {
			c := q.dial()
			defer c.Close()
			io.WriteString(c, "POST /upload"+head+"Transfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
			const pieces = 400 // a day of them: none may take longer than five minutes
			for range pieces {
				time.Sleep(4 * time.Minute)
				io.WriteString(c, "1\r\nx\r\n")
			}
			if body := text(t, ask(t, c, "3\r\ntwo\r\n0\r\n\r\n")); body != "one"+strings.Repeat("x", pieces)+"two<nil>" {
				t.Errorf("got %q", body)
			}
		})
	})
	t.Run("tunnel", func(t *testing.T) {
		back := func(c net.Conn) { _, _ = io.Copy(c, c); c.Close() }
		inQuiet(t, tunnel, back, nil, func(t *testing.T, q *quiet) {
			c := q.dial()
			defer c.Close()
			for range 3 {
				io.WriteString(c, "\x00raw")
				b := make([]byte, 4)
				if _, err := io.ReadFull(c, b); err != nil || string(b) != "\x00raw" {
					t.Fatalf("%q %v", b, err)
				}
				time.Sleep(hours)
			}
		})
	})
	// The clock is what ends these.
	t.Run("but no connection without a request", func(t *testing.T) {
		inQuiet(t, plain, nil, slow, func(t *testing.T, q *quiet) {
			c := q.dial()
			defer c.Close()
			begun := time.Now()
			resp := ask(t, c, "GET /"+head+"\r\n")
			resp.Body.Close()
			if _, err := c.Read(make([]byte, 1)); err == nil || time.Since(begun) > time.Hour {
				t.Errorf("%v after %v", err, time.Since(begun))
			}
		})
	})
	t.Run("but no connection without a request, by HTTP/2", func(t *testing.T) {
		inQuiet(t, plain, nil, slow, func(t *testing.T, q *quiet) {
			c, err := newFrames(q.dial())
			must.OK(t, err)
			defer c.Close()
			begun := time.Now()
			if a := c.waitFor(1, hours); !a.gone || time.Since(begun) > time.Hour {
				t.Errorf("%+v after %v", a, time.Since(begun))
			}
		})
	})
}
