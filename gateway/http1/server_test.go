package http1_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"sallyport/gateway/http1"
	"sallyport/gateway/tcp"
)

func TestKeepAlive(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, request, want string
		ends                bool
	}{
		{"1.1", get, "200 (7) GET /a ", false},
		{"1.1 with close", lines("GET / HTTP/1.1", "Host: h", "Connection: close"), "200 (6) GET /  close", true},
		{"1.1 with close in a list", lines("GET / HTTP/1.1", "Host: h", "Connection: x, CLOSE"), "200 (6) GET /  close", true},
		{"1.0", lines("GET / HTTP/1.0"), "200 (6) GET /  close", true},
		{"1.0 with keep-alive", lines("GET / HTTP/1.0", "Connection: keep-alive"), "200 (6) GET / ", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := serve(t, &http1.Server{}, hello)
			for range 3 {
				c.send(tt.request)
				a := c.read("GET")
				if a.String() != tt.want {
					t.Errorf("got %v, want %s", a, tt.want)
				}
				if kept := a.Header.Get("Connection") == "keep-alive"; kept != strings.Contains(tt.request, "keep-alive") {
					t.Errorf("Connection: %q", a.Header.Get("Connection"))
				}
				if tt.ends {
					c.closed()
					return
				}
			}
		})
	}
}

func TestPipelining(t *testing.T) {
	t.Parallel()
	c := serve(t, &http1.Server{}, hello)
	var all strings.Builder
	for i := range 50 {
		switch i % 3 {
		case 0:
			fmt.Fprintf(&all, "GET /%d HTTP/1.1\r\nHost: h\r\n\r\n", i)
		case 1:
			fmt.Fprintf(&all, "POST /%d HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nGE", i)
		case 2:
			fmt.Fprintf(&all, "POST /%d HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nG\r\n1\r\nE\r\n0\r\n\r\n", i)
		}
	}
	c.send(all.String())
	for i := range 50 {
		want := fmt.Sprintf("GET /%d ", i)
		if i%3 > 0 {
			want = fmt.Sprintf("POST /%d GE", i)
		}
		if got := c.read("GET"); got.body != want {
			t.Fatalf("got %q, want %q", got.body, want)
		}
	}
}

// TestGoneClient has the client leave while its answer is being made.
func TestGoneClient(t *testing.T) {
	post := lines("POST / HTTP/1.1", "Host: h", "Content-Length: 3")
	for _, tt := range []struct {
		name, sent string
		leave      func(c *client)
	}{
		{"without a body", get, func(c *client) { c.Close() }},
		{"after a body", post + "abc", func(c *client) { c.Close() }},
		{"after a chunked body", lines("POST / HTTP/1.1", "Host: h", "Transfer-Encoding: chunked") + "0\r\n\r\n", func(c *client) { c.Close() }},
		{"in a body", post + "ab", func(c *client) { c.Close() }},
		{"half", get, func(c *client) { _ = c.Conn.(interface{ CloseWrite() error }).CloseWrite() }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			entered, left := make(chan struct{}, 1), make(chan error, 1)
			c := serve(t, &http1.Server{}, func(ctx context.Context, _ http.ResponseWriter, r *http.Request) {
				entered <- struct{}{}
				if _, err := io.Copy(io.Discard, r.Body); err != nil {
					left <- err
					return
				}
				select {
				case <-ctx.Done():
					left <- ctx.Err()
				case <-time.After(patience):
					left <- nil
				}
			})
			c.send(tt.sent)
			within(t, entered, "the handler")
			tt.leave(c)
			if err := within(t, left, "the handler to notice"); err == nil {
				t.Error("the handler was not told")
			}
			c.ended()
		})
	}
}

// TestWatchedClient has a client that stays, and sends its next request while
// the one before is still being answered.
func TestWatchedClient(t *testing.T) {
	t.Parallel()
	c := serve(t, &http1.Server{}, func(ctx context.Context, w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			select {
			case <-ctx.Done():
				t.Error("a client that is there was taken for gone")
			case <-time.After(400 * time.Millisecond):
			}
		}
		hello(ctx, w, r)
	})
	for range 2 {
		c.send(lines("GET /slow HTTP/1.1", "Host: h"))
		if got := c.receive("GET"); got != "200 (10) GET /slow " {
			t.Errorf("got %s", got)
		}
		c.send(lines("POST /slow HTTP/1.1", "Host: h", "Content-Length: 1") + "x")
		time.Sleep(200 * time.Millisecond) // it is being watched by now
		c.send(get)
		if got := c.receive("POST"); got != "200 (12) POST /slow x" {
			t.Errorf("got %s", got)
		}
		if got := c.receive("GET"); got != "200 (7) GET /a " {
			t.Errorf("got %s", got)
		}
	}
}

func TestIdleTimeout(t *testing.T) {
	t.Parallel()
	c := serve(t, &http1.Server{IdleTimeout: time.Second, HeadTimeout: time.Minute}, hello)
	start := time.Now()
	c.send(get)
	c.receive("GET")
	c.closed()
	if d := time.Since(start); d < time.Second || d > patience/2 {
		t.Errorf("closed after %v", d)
	}
	c.ended()
}

// slow is a handler that waits to be let go on.
type slow struct{ entered, on chan struct{} }

func newSlow() *slow { return &slow{make(chan struct{}, 10), make(chan struct{})} }

func (s *slow) serve(ctx context.Context, w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/slow" {
		s.entered <- struct{}{}
		<-s.on
	}
	hello(ctx, w, r)
}

// released is a Budget that tells of each release.
type released chan struct{}

func (released) Take(int64) error { return nil }
func (r released) Release()       { r <- struct{}{} }

func TestShutdown(t *testing.T) {
	t.Parallel()
	ready, h := make(released, 10), newSlow()
	s := &http1.Server{Budget: func(context.Context) http1.Budget { return ready }}
	idle, fresh, busy, half := serve(t, s, h.serve), serve(t, s, h.serve), serve(t, s, h.serve), serve(t, s, h.serve)
	idle.send(get)
	idle.receive("GET")
	busy.send(lines("GET /slow HTTP/1.1", "Host: h") + get)
	within(t, h.entered, "the handler")
	half.send(get + "GET /a HT") // of which the first is answered when both have been read
	half.receive("GET")
	within(t, ready, "the end of a request") // until which its connection would not take another
	within(t, ready, "the end of the other")

	short, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if err := s.Shutdown(short); err != context.DeadlineExceeded {
		t.Errorf("got %v while a request was under way", err)
	}
	for _, c := range []*client{idle, fresh} {
		c.closed()
		c.ended()
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Shutdown(context.Background()) }()
	close(h.on)
	if got := busy.receive("GET"); got != "200 (10) GET /slow  close" {
		t.Errorf("got %s", got)
	}
	busy.closed() // the request behind it is the client's to send again
	half.send("TP/1.1\r\nHost: h\r\n\r\n")
	if got := half.receive("GET"); got != "200 (7) GET /a  close" {
		t.Errorf("got %s", got)
	}
	half.Close()
	busy.Close()
	if err := within(t, ended, "Shutdown"); err != nil {
		t.Error(err)
	}
	late := serve(t, s, h.serve)
	late.closed()
	late.ended()
}

func TestClose(t *testing.T) {
	t.Parallel()
	s := &http1.Server{}
	entered, left := make(chan struct{}, 1), make(chan struct{}, 1)
	h := func(ctx context.Context, w http.ResponseWriter, r *http.Request) {
		entered <- struct{}{}
		<-ctx.Done()
		left <- struct{}{}
	}
	idle, busy := serve(t, s, h), serve(t, s, h)
	busy.send(get)
	within(t, entered, "the handler")
	s.Close()
	within(t, left, "the handler's end")
	for _, c := range []*client{idle, busy} {
		c.closed()
		c.ended()
	}
	if err := s.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
}

// TestCloseDoesNotWait has clients of TLS that do not read: each goodbye to one
// of them takes 5 s (crypto/tls).
func TestCloseDoesNotWait(t *testing.T) {
	t.Parallel()
	s := &http1.Server{}
	entered := make(chan struct{}, 1)
	for range 3 {
		ours, theirs, _ := secure(t)
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.ServeConn(context.Background(), theirs, func(ctx context.Context, w http.ResponseWriter, r *http.Request) {
				entered <- struct{}{}
				_, _ = io.Copy(w, zeros{})
			})
		}()
		t.Cleanup(func() { <-done })
		if _, err := io.WriteString(ours, get); err != nil {
			t.Fatal(err)
		}
		within(t, entered, "the handler")
	}
	time.Sleep(300 * time.Millisecond) // their buffers are full by now
	start := time.Now()
	s.Close()
	if err := s.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
	if d := time.Since(start); d > 4*time.Second {
		t.Errorf("it took %v", d)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestPanic(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		h    http1.Handler
		want string // what the client reads in all
	}{
		{"before a word", func(context.Context, http.ResponseWriter, *http.Request) { panic("x") }, ""},
		{"on purpose", func(_ context.Context, w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "held")
			panic(http.ErrAbortHandler)
		}, ""},
		{"in the middle", func(_ context.Context, w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "said")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}, "4\r\nsaid\r\n"},
		{"invalid status", func(_ context.Context, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(42) }, ""},
		{"after an unread body", func(_ context.Context, _ http.ResponseWriter, r *http.Request) { _, _ = r.Body.Read(nil); panic("x") }, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := serve(t, &http1.Server{}, tt.h)
			c.send(lines("POST / HTTP/1.1", "Host: h", "Content-Length: 1000") + "a")
			got, _ := c.rest()
			if _, body, _ := strings.Cut(got, "\r\n\r\n"); body != tt.want {
				t.Errorf("got %q", got)
			}
			c.ended()
		})
	}
}

// TestPanicTLS shows that TLS does not say goodbye after what was broken off: a
// client of HTTP/1.0 could not tell it from the end otherwise.
func TestPanicTLS(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		panics  bool
		goodbye bool
	}{{"whole", false, true}, {"broken off", true, false}} {
		t.Run(tt.name, func(t *testing.T) {
			ours, theirs, seen := secure(t)
			done := make(chan struct{})
			go func() {
				defer close(done)
				(&http1.Server{}).ServeConn(context.Background(), theirs, func(_ context.Context, w http.ResponseWriter, _ *http.Request) {
					_, _ = io.WriteString(w, strings.Repeat("a", 10_000))
					w.(http.Flusher).Flush()
					if tt.panics {
						panic(http.ErrAbortHandler)
					}
				})
			}()
			if _, err := io.WriteString(ours, "GET / HTTP/1.0\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadAll(ours); err != nil { // crypto/tls takes both for the end
				t.Fatal(err)
			}
			ours.Close()
			within(t, done, "the end")
			if got := seen.alerts(); got > 0 != tt.goodbye {
				t.Errorf("%d alerts", got)
			}
		})
	}
}

// TestLastWords shows that the answer to a client that is still sending
// arrives: a connection that is closed with bytes unread is reset.
func TestLastWords(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, sent string }{
		{"large body", lines("POST / HTTP/1.1", "Host: h", "Content-Length: 100000000") + strings.Repeat("a", 100<<10)},
		{"refused head", "GET / HTTP/9.9\r\n\r\n" + strings.Repeat("a", 100<<10)},
		{"pipelined behind a close", lines("GET / HTTP/1.1", "Host: h", "Connection: close") + strings.Repeat(get, 100)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := serve(t, &http1.Server{}, func(_ context.Context, w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusForbidden)
			})
			c.send(tt.sent)
			got, reset := c.rest()
			if strings.Count(got, "HTTP/1.1 ") != 1 || !strings.Contains(got, "Connection: close") || reset {
				t.Errorf("got %q, reset %v", got, reset)
			}
			time.Sleep(50 * time.Millisecond)
			if err := tcp.Reset(c.Conn); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestLastWordsInAFlood has a client send more than is read of what nobody
// wants, and look for the answer only then.
func TestLastWordsInAFlood(t *testing.T) {
	t.Parallel()
	s := &http1.Server{}
	c := serve(t, s, func(_ context.Context, w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusRequestEntityTooLarge)
	})
	c.send(lines("POST / HTTP/1.1", "Host: h", "Content-Length: 100000000"))
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		_, _ = io.Copy(c, io.LimitReader(zeros{}, 100_000_000))
	}()
	select {
	case <-sent:
		t.Error("it was broken off before it could read")
	case <-time.After(200 * time.Millisecond):
	}
	if resp, err := http.ReadResponse(c.in, nil); err != nil || resp.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("got %v, %v", resp, err)
	}
	s.Close() // does not wait for the rest of the time
	c.ended()
	_ = c.Close()
	<-sent
}
