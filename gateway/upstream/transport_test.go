package upstream

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sallyport/gateway/http1"
	"sallyport/internal/test/must"
)

// script is a server whose connections are served by the test, one after the
// other or at once.
func script(t *testing.T, serve func(n int, c net.Conn, in *bufio.Reader)) Route {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	var all sync.WaitGroup
	all.Go(func() {
		for n := 0; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.SetDeadline(time.Now().Add(patience))
			all.Go(func() {
				defer c.Close()
				serve(n, c, bufio.NewReader(c))
			})
		}
	})
	t.Cleanup(func() { l.Close(); all.Wait() })
	return Route{Sandbox: "a", Host: "127.0.0.1", Port: portOf(t, l.Addr()), Upstream: loopback(nil, "")}
}

// answer reads a request and answers it.
func answer(c net.Conn, in *bufio.Reader, raw string) bool {
	r, err := http.ReadRequest(in)
	if err != nil {
		return false
	}
	_, _ = io.Copy(io.Discard, r.Body)
	_, err = io.WriteString(c, raw)
	return err == nil
}

// send makes one request and returns what became of it.
func send(t *testing.T, p *Pool, r Route, method, body string) string {
	t.Helper()
	rt, err := p.RoundTripper(r)
	must.OK(t, err)
	req := request(t, t.Context(), r)
	req.Method = method
	if body != "" {
		req.Body, req.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
	}
	resp, err := rt.RoundTrip(req)
	if err != nil {
		return "failed"
	}
	defer resp.Body.Close()
	// In large pieces, which leave nothing behind the body in a buffer.
	var b strings.Builder
	if _, err := io.CopyBuffer(struct{ io.Writer }{&b}, resp.Body, make([]byte, 32<<10)); err != nil {
		return "broken"
	}
	return b.String()
}

// TestRepeated has a server that reads a second request on each connection and
// closes it without a word: whether it acted on it nobody knows.
func TestRepeated(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		method, body string
		want         string
		received     int64 // how often the server got it
	}{
		{"GET", "", "ok", 2},
		{"HEAD", "", "", 2},
		{"OPTIONS", "", "ok", 2},
		{"GET", "body", "failed", 1},
		{"POST", "", "failed", 1},
		{"POST", "body", "failed", 1},
		{"PUT", "", "failed", 1},
		{"PUT", "body", "failed", 1},
		{"PATCH", "", "failed", 1},
		{"DELETE", "", "failed", 1},
		{"PROPFIND", "", "failed", 1},
	} {
		t.Run(tt.method+" "+tt.body, func(t *testing.T) {
			const ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"
			const kept = 5 // connections that are idle when it comes
			var conns, received atomic.Int64
			var first sync.WaitGroup
			first.Add(kept)
			r := script(t, func(n int, c net.Conn, in *bufio.Reader) {
				conns.Add(1)
				if n < kept {
					req, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					_, _ = io.Copy(io.Discard, req.Body)
					first.Done()
					first.Wait() // so that each request gets a connection of its own
					_, _ = io.WriteString(c, ok+"ok")
				}
				req, err := http.ReadRequest(in)
				if err != nil {
					return
				}
				received.Add(1)
				_, _ = io.Copy(io.Discard, req.Body)
				if n >= kept {
					_, _ = io.WriteString(c, ok)
					if req.Method != "HEAD" {
						_, _ = io.WriteString(c, "ok")
					}
				}
			})
			p := newPool(t, Options{})
			var all sync.WaitGroup
			for range kept {
				all.Go(func() {
					if got := send(t, p, r, "GET", ""); got != "ok" {
						t.Errorf("got %q", got)
					}
				})
			}
			all.Wait()
			if got := send(t, p, r, tt.method, tt.body); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			time.Sleep(20 * time.Millisecond) // for what comes too often
			if got := received.Load(); got != tt.received {
				t.Errorf("the server got it %d times, want %d", got, tt.received)
			}
			if got, want := conns.Load(), kept+tt.received-1; got != want {
				t.Errorf("%d connections, want %d", got, want)
			}
		})
	}
}

func TestNotRepeatedAfterTimeout(t *testing.T) {
	t.Parallel()
	var received atomic.Int64
	r := script(t, func(n int, c net.Conn, in *bufio.Reader) {
		if n == 0 {
			answer(c, in, "HTTP/1.1 204 No Content\r\n\r\n")
		}
		for {
			if _, err := http.ReadRequest(in); err != nil {
				return
			}
			received.Add(1)
		}
	})
	p := newPool(t, Options{HeaderTimeout: 200 * time.Millisecond})
	send(t, p, r, "GET", "")
	if got := send(t, p, r, "GET", ""); got != "failed" {
		t.Errorf("got %q", got)
	}
	if got := received.Load(); got != 1 {
		t.Errorf("the server got it %d times", got)
	}
}

// TestSurplus has a server that says more than it was asked for.
func TestSurplus(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("a", 9000)
	for _, tt := range []struct{ name, first, want string }{
		{"response behind a response", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", "ok"},
		{"behind a large one", "HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n" + large + "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", large},
		{"behind a 204", "HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", ""},
	} {
		for _, secure := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/TLS=%v", tt.name, secure), func(t *testing.T) {
				ca := newAuthority(t)
				config := &tls.Config{Certificates: []tls.Certificate{ca.host(t, []string{"127.0.0.1"}, nil)}}
				r := script(t, func(n int, c net.Conn, in *bufio.Reader) {
					if secure {
						c = tls.Server(c, config)
						in = bufio.NewReader(c)
					}
					first := tt.first
					if n > 0 {
						first = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood"
					}
					if answer(c, in, first) {
						_, _ = io.Copy(io.Discard, in)
					}
				})
				if secure {
					r.TLS, r.Upstream = true, loopback(nil, ca.file(t))
				}
				p := newPool(t, Options{})
				if got := send(t, p, r, "GET", ""); got != tt.want {
					t.Fatalf("got %.50q", got)
				}
				if got := send(t, p, r, "GET", ""); got != "good" {
					t.Errorf("the next request got %.50q", got)
				}
			})
		}
	}
}

func TestBodyIsClosedWhenNobodyAnswers(t *testing.T) {
	t.Parallel()
	p := newPool(t, Options{})
	r := Route{Sandbox: "a", Host: "127.0.0.1", Port: 1, Upstream: loopback(nil, "")}
	for _, canceled := range []bool{false, true} {
		rt, err := p.RoundTripper(r)
		must.OK(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		if canceled {
			cancel()
		}
		body := &closer{Reader: strings.NewReader("x")}
		req := request(t, ctx, r)
		req.Method, req.Body, req.ContentLength = "POST", body, 1
		if _, err := rt.RoundTrip(req); err == nil || errors.Is(err, context.Canceled) != canceled || !body.closed {
			t.Errorf("got %v, body closed %v", err, body.closed)
		}
		cancel()
	}
}

func TestIdleConnectionsExpire(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{}, 10)
	r := script(t, func(_ int, c net.Conn, in *bufio.Reader) {
		for answer(c, in, "HTTP/1.1 204 No Content\r\n\r\n") {
		}
		ended <- struct{}{}
	})
	p := newPool(t, Options{IdleTimeout: 100 * time.Millisecond})
	for range 2 {
		start := time.Now()
		send(t, p, r, "GET", "")
		select {
		case <-ended:
		case <-time.After(patience):
			t.Fatal("it is kept for ever")
		}
		if d := time.Since(start); d < 100*time.Millisecond {
			t.Errorf("closed after %v", d)
		}
	}
}

// TestNoCrosstalk carries requests from many clients to one upstream through an
// http1.Server and a Pool. Clients leave, uploads break off and answers come early,
// at random: what does arrive must belong to its request. Bodies look like
// requests and responses, so that what is read from a wrong place is taken for one.
func TestNoCrosstalk(t *testing.T) {
	t.Parallel()
	asks := func(id string) string {
		return "POST / HTTP/1.1\r\nHost: h\r\nX-Id: " + id + "\r\nContent-Length: 0\r\n\r\n"
	}
	says := func(id string) string { return "HTTP/1.1 200 OK\r\nX-Id: " + id + "\r\nContent-Length: 0\r\n\r\n" }
	ca := newAuthority(t)
	s := newSite(t, "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{ca.host(t, []string{"127.0.0.1"}, nil)}},
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			id := r.Header.Get("X-Id")
			w.Header().Set("X-Id", id)
			switch rand.IntN(8) {
			case 0: // before the request has been read
				w.WriteHeader(http.StatusForbidden)
				_, _ = io.WriteString(w, says(id))
				return
			case 1:
				panic(http.ErrAbortHandler)
			case 2:
				time.Sleep(time.Duration(rand.IntN(3000)) * time.Microsecond)
			case 3:
				w.WriteHeader(http.StatusEarlyHints)
			case 4:
				if r.ContentLength == 0 {
					w.WriteHeader(http.StatusNoContent)
					return
				}
			}
			b, err := io.ReadAll(r.Body)
			if err != nil {
				panic(http.ErrAbortHandler)
			}
			if strings.ReplaceAll(string(b), asks(id), "") != "" {
				t.Errorf("request %s came with the body of another", id)
			}
			pieces := make([]string, rand.IntN(20))
			size := 0
			for i := range pieces {
				pieces[i] = strings.Repeat(says(id), 1+rand.IntN(30))
				size += len(pieces[i])
			}
			if rand.IntN(2) == 0 {
				w.Header().Set("Content-Length", fmt.Sprint(size))
			}
			for _, p := range pieces {
				_, _ = io.WriteString(w, p)
				if rand.IntN(4) == 0 {
					w.(http.Flusher).Flush()
					time.Sleep(time.Duration(rand.IntN(1000)) * time.Microsecond)
				}
			}
		}))
	p := newPool(t, Options{})
	route := Route{Sandbox: "a", Host: "127.0.0.1", Port: s.port, TLS: true, Upstream: loopback(nil, ca.file(t))}
	var carried atomic.Int64
	carry := func(ctx context.Context, w http.ResponseWriter, r *http.Request) {
		rt, err := p.RoundTripper(route)
		if err != nil {
			t.Error(err)
			return
		}
		r = r.WithContext(ctx)
		r.URL.Scheme, r.URL.Host, r.Host = "https", fmt.Sprintf("127.0.0.1:%d", s.port), ""
		resp, err := rt.RoundTrip(r)
		if err != nil {
			w.Header().Set("X-Id", r.Header.Get("X-Id"))
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		defer resp.Body.Close()
		if rand.IntN(8) == 0 { // has seen enough
			_, _ = io.CopyN(io.Discard, resp.Body, int64(len(says("id00"))*rand.IntN(50)))
			panic(http.ErrAbortHandler)
		}
		for k, v := range resp.Header {
			w.Header()[k] = v
		}
		w.WriteHeader(resp.StatusCode)
		if _, err := io.Copy(w, resp.Body); err != nil {
			panic(http.ErrAbortHandler)
		}
		carried.Add(1)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	front := &http1.Server{}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { front.ServeConn(context.Background(), c, carry) })
		}
	})
	defer serving.Wait()
	defer front.Close()
	defer l.Close()

	var clients sync.WaitGroup
	var whole atomic.Int64
	for n := range 12 {
		clients.Go(func() {
			tr := &http.Transport{}
			defer tr.CloseIdleConnections()
			for i := range 150 {
				id := fmt.Sprintf("%c%03d", 'a'+n, i)
				ctx, cancel := context.WithCancel(t.Context())
				if rand.IntN(4) == 0 {
					time.AfterFunc(time.Duration(rand.IntN(4000))*time.Microsecond, cancel)
				}
				r, err := http.NewRequestWithContext(ctx, "GET", "http://"+l.Addr().String()+"/", nil)
				if err != nil {
					t.Error(err)
				}
				r.Header.Set("X-Id", id)
				if rand.IntN(3) == 0 {
					body := strings.Repeat(asks(id), rand.IntN(500))
					r.Method, r.Body, r.ContentLength = "POST", io.NopCloser(&hesitant{strings.NewReader(body), rand.IntN(len(body) + 1)}), int64(len(body))
					if rand.IntN(2) == 0 {
						r.ContentLength = -1
					}
				}
				resp, err := tr.RoundTrip(r)
				if err != nil {
					cancel()
					continue
				}
				if got := resp.Header.Get("X-Id"); got != id {
					t.Errorf("request %s got the response of %q", id, got)
				}
				if rand.IntN(5) == 0 { // leaves it half-read
					_, _ = io.CopyN(io.Discard, resp.Body, 100)
				} else if b, err := io.ReadAll(resp.Body); err == nil {
					if strings.ReplaceAll(string(b), says(id), "") != "" {
						t.Errorf("request %s got %.40q", id, b)
					}
					whole.Add(1)
				}
				resp.Body.Close()
				cancel()
			}
		})
	}
	clients.Wait()
	t.Logf("%d carried, %d whole, over %d connections", carried.Load(), whole.Load(), s.conns.Load())
	if s.conns.Load() >= carried.Load() {
		t.Error("no connection was used twice: this shows nothing")
	}
}

// hesitant is a body that pauses once, at times for longer than a response is
// kept waiting for its request's end.
type hesitant struct {
	*strings.Reader
	at int
}

func (h *hesitant) Read(p []byte) (int, error) {
	if h.at == 0 {
		time.Sleep(time.Duration(rand.IntN(70)) * time.Millisecond)
		h.at = -1
	}
	if h.at > 0 {
		p = p[:min(len(p), h.at)]
	}
	n, err := h.Reader.Read(p)
	if h.at > 0 {
		h.at -= n
	}
	return n, err
}
