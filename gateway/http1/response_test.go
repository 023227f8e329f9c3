package http1_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sallyport/gateway/http1"
	"sallyport/internal/test/must"
)

// TestFraming compares what is on the wire, but for the Date.
func TestFraming(t *testing.T) {
	write := func(status int, parts ...string) http1.Handler {
		return func(_ context.Context, w http.ResponseWriter, _ *http.Request) {
			if status != 0 {
				w.WriteHeader(status)
			}
			for _, p := range parts {
				if p == "flush" {
					w.(http.Flusher).Flush()
					continue
				}
				_, _ = io.WriteString(w, p)
			}
		}
	}
	with := func(name, value string, h http1.Handler) http1.Handler {
		return func(ctx context.Context, w http.ResponseWriter, r *http.Request) {
			w.Header().Set(name, value)
			h(ctx, w, r)
		}
	}
	long := strings.Repeat("a", 3000)
	const (
		modern = "GET / HTTP/1.1\r\nHost: h\r\n\r\n"
		old    = "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
		head   = "HEAD / HTTP/1.1\r\nHost: h\r\n\r\n"
		ok     = "HTTP/1.1 200 OK\r\n"
	)
	for _, tt := range []struct {
		name, request string
		h             http1.Handler
		want          string
		ends          bool
	}{
		{"nothing", modern, write(0), ok + "Content-Length: 0\r\n\r\n", false},
		{"short", modern, write(0, "a", "", "b"), ok + "Content-Length: 2\r\n\r\nab", false},
		{"long", modern, write(0, "a", long), ok + "Transfer-Encoding: chunked\r\n\r\nbb9\r\na" + long + "\r\n0\r\n\r\n", false},
		{"long, declared", modern, with("Content-Length", "3001", write(0, "a", long)), ok + "Content-Length: 3001\r\n\r\na" + long, false},
		{"flushed", modern, write(0, "a", "flush", "flush", "b"), ok + "Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n1\r\nb\r\n0\r\n\r\n", false},
		{"flushed before a word", modern, write(0, "flush"), ok + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", false},
		{"nonsense length", modern, with("Content-Length", "x", write(0, "a")), ok + "Content-Length: 1\r\n\r\na", false},
		{"coding of the handler's", modern, with("Transfer-Encoding", "gzip", write(0, "a")), ok + "Content-Length: 1\r\n\r\na", false},
		{"handler ends the connection", modern, with("Connection", "Close", write(0, "a")), ok + "Content-Length: 1\r\nConnection: close\r\n\r\na", true},
		{"hop-by-hop headers of the handler's", modern, with("Keep-Alive", "timeout=5", write(0)), ok + "Content-Length: 0\r\n\r\n", false},
		{"line feed in a value", modern, with("A", "b\r\nC: d", write(0)), ok + "A: b  C: d\r\nContent-Length: 0\r\n\r\n", false},
		{"line feed in a name", modern, with("A\r\nB", "c", write(0)), ok + "Content-Length: 0\r\n\r\n", false},
		{"unknown status", modern, write(799), "HTTP/1.1 799 \r\nContent-Length: 0\r\n\r\n", false},
		{"two statuses", modern, write(404, "flush"), "HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", false},
		{"204", modern, with("Content-Length", "3", write(204, "abc")), "HTTP/1.1 204 No Content\r\n\r\n", false},
		{"304", modern, with("Content-Length", "3", write(304, "abc", "flush")), "HTTP/1.1 304 Not Modified\r\nContent-Length: 3\r\n\r\n", false},
		{"304 without length", modern, write(304), "HTTP/1.1 304 Not Modified\r\n\r\n", false},
		{"HEAD", head, with("Content-Length", "3", write(0, "abc")), ok + "Content-Length: 3\r\n\r\n", false},
		{"HEAD without length", head, write(0, long, "flush"), ok + "\r\n", false},
		{"HEAD with trailers", head, with("Trailer", "A", write(0)), ok + "\r\n", false},
		{"1.0", old, write(0, "a"), ok + "Content-Length: 1\r\nConnection: keep-alive\r\n\r\na", false},
		{"1.0, long", old, write(0, long), ok + "Connection: close\r\n\r\n" + long, true},
		{"1.0, long, declared", old, with("Content-Length", "3000", write(0, long)), ok + "Content-Length: 3000\r\nConnection: keep-alive\r\n\r\n" + long, false},
		{"1.0 with trailers", old, with("Trailer", "A", write(0, "a")), ok + "Connection: close\r\n\r\na", true},
		{"1.0 has no informational responses", old, with("A", "b", func(ctx context.Context, w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(103)
			w.WriteHeader(200)
		}), ok + "A: b\r\nContent-Length: 0\r\nConnection: keep-alive\r\n\r\n", false},
		{"101 that nobody takes", modern, with("Upgrade", "x", write(101, "abc")), "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", true},
		{"CONNECT that nobody takes", "CONNECT h:1 HTTP/1.1\r\n\r\n", write(200, "abc"), ok + "\r\n", true},
		{"CONNECT refused", "CONNECT h:1 HTTP/1.1\r\n\r\n", write(403, "abc"), "HTTP/1.1 403 Forbidden\r\nContent-Length: 3\r\n\r\nabc", false},
		{"less than declared", modern, with("Content-Length", "3", write(0, "ab")), ok + "Content-Length: 3\r\n\r\nab", true},
		{"nothing of what was declared", modern, with("Content-Length", "3", write(0)), ok + "Content-Length: 3\r\n\r\n", true},
		{"more than declared", modern, with("Content-Length", "3", write(0, "abcd")), ok + "Content-Length: 3\r\n\r\n", true},
		{"more than declared at last", modern, with("Content-Length", "3", write(0, "abc", "d")), ok + "Content-Length: 3\r\n\r\nabc", false},
		{"less than declared, with trailers", modern, with("Content-Length", "3", with("Trailer", "A", write(0, "ab"))),
			ok + "Transfer-Encoding: chunked\r\nTrailer: A\r\n\r\n2\r\nab\r\n", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := func(ctx context.Context, w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/a" {
					hello(ctx, w, r)
					return
				}
				w.Header()["Date"] = []string{"now"}
				tt.h(ctx, w, r)
			}
			c := serve(t, &http1.Server{}, h)
			c.send(tt.request)
			if !tt.ends {
				c.send(lines("GET /a HTTP/1.1", "Host: h", "Connection: close"))
			}
			got, _ := c.rest()
			got = strings.Replace(got, "Date: now\r\n", "", 1)
			if !tt.ends {
				var next string
				if i := strings.LastIndex(got, "HTTP/1.1 200 OK\r\n"); i >= 0 {
					got, next = got[:i], got[i:]
				}
				if !strings.HasSuffix(next, "\r\n\r\nGET /a ") {
					t.Errorf("the next request got %q", next)
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("want - got +\n%s", diff)
			}
		})
	}
}

func TestDate(t *testing.T) {
	t.Parallel()
	c := serve(t, &http1.Server{}, hello)
	c.send(get)
	got := c.read("GET").Header.Get("Date")
	if at, err := http.ParseTime(got); err != nil || time.Since(at).Abs() > 10*time.Second {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestResponseTrailers(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		h    func(w http.ResponseWriter)
		want http.Header
	}{
		{"announced", func(w http.ResponseWriter) {
			w.Header().Set("Trailer", "A, b, Content-Length")
			_, _ = io.WriteString(w, "body")
			w.Header().Set("A", "x")
			w.Header().Set("B", "y")
			w.Header().Set("Content-Length", "77")
		}, http.Header{"A": {"x"}, "B": {"y"}}},
		{"announced, of a declared body", func(w http.ResponseWriter) {
			w.Header().Set("Trailer", "A")
			w.Header().Set("Content-Length", "4")
			_, _ = io.WriteString(w, "body")
			w.Header().Set("A", "x")
		}, http.Header{"A": {"x"}}},
		{"late", func(w http.ResponseWriter) {
			_, _ = io.WriteString(w, "body")
			w.Header().Set(http.TrailerPrefix+"A", "x")
			w.Header().Set(http.TrailerPrefix+"Transfer-Encoding", "x")
		}, http.Header{"A": {"x"}}},
		{"late, after a flush", func(w http.ResponseWriter) {
			_, _ = io.WriteString(w, "body")
			w.(http.Flusher).Flush()
			w.Header().Set(http.TrailerPrefix+"A", "x\r\n\r\nHTTP/1.1 200 OK")
		}, http.Header{"A": {"x    HTTP/1.1 200 OK"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := serve(t, &http1.Server{}, func(_ context.Context, w http.ResponseWriter, r *http.Request) { tt.h(w) })
			for range 2 {
				c.send(get)
				got := c.read("GET")
				if got.String() != "200 (chunked) body" {
					t.Errorf("got %v", got)
				}
				if diff := cmp.Diff(tt.want, got.Trailer); diff != "" {
					t.Errorf("want - got +\n%s", diff)
				}
			}
		})
	}
}

func TestInformational(t *testing.T) {
	t.Parallel()
	said := make(chan struct{})
	c := serve(t, &http1.Server{}, func(_ context.Context, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "</a>; rel=preload")
		w.Header().Set("Content-Length", "3")
		w.WriteHeader(http.StatusEarlyHints)
		<-said
		w.WriteHeader(http.StatusProcessing)
		w.WriteHeader(http.StatusOK)
		w.WriteHeader(http.StatusEarlyHints) // too late
		_, _ = io.WriteString(w, "abc")
	})
	c.send(get)
	for _, want := range []int{103, 102} {
		a, err := http.ReadResponse(c.in, nil)
		if err != nil || a.StatusCode != want || a.Header.Get("Link") == "" || a.Header.Get("Content-Length") != "" {
			t.Fatalf("got %v, %v", a, err)
		}
		if want == 103 {
			close(said)
		}
	}
	if got := c.receive("GET"); got != "200 (3) abc" {
		t.Errorf("got %s", got)
	}
}

// TestStream has each piece arrive before the next is written.
func TestStream(t *testing.T) {
	t.Parallel()
	on := make(chan struct{})
	c := serve(t, &http1.Server{}, func(_ context.Context, w http.ResponseWriter, _ *http.Request) {
		for i := range 3 {
			fmt.Fprintf(w, "piece %d\n", i)
			if err := http.NewResponseController(w).Flush(); err != nil {
				t.Error(err)
			}
			<-on
		}
	})
	c.send(get)
	resp, err := http.ReadResponse(c.in, nil)
	must.OK(t, err)
	defer resp.Body.Close()
	body := bufio.NewReader(resp.Body)
	for i := range 3 {
		if got, err := body.ReadString('\n'); err != nil || got != fmt.Sprintf("piece %d\n", i) {
			t.Fatalf("got %q, %v", got, err)
		}
		on <- struct{}{}
	}
}

func TestHijack(t *testing.T) {
	echo := func(status int) http1.Handler {
		return func(_ context.Context, w http.ResponseWriter, r *http.Request) {
			if status != 0 {
				w.Header().Set("Connection", "Upgrade")
				w.WriteHeader(status)
			}
			conn, rw, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := w.Write([]byte("x")); !errors.Is(err, http.ErrHijacked) {
				t.Errorf("writing afterwards: %v", err)
			}
			if _, _, err := w.(http.Hijacker).Hijack(); !errors.Is(err, http.ErrHijacked) {
				t.Errorf("hijacking again: %v", err)
			}
			defer conn.Close()
			_, _ = io.Copy(conn, rw.Reader)
		}
	}
	for _, tt := range []struct {
		name, sent string
		h          http1.Handler
		want       string
	}{
		{"CONNECT", "CONNECT h:1 HTTP/1.1\r\n\r\nearly ", echo(0), "early late"},
		{"upgrade", lines("GET / HTTP/1.1", "Host: h") + "early ", echo(101), "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\r\nearly late"},
		{"while being watched", get, func(ctx context.Context, w http.ResponseWriter, r *http.Request) {
			time.Sleep(200 * time.Millisecond)
			echo(0)(ctx, w, r)
		}, "late"},
		{"while its body is being read", lines("POST / HTTP/1.1", "Host: h", "Content-Length: 100") + "abc", func(ctx context.Context, w http.ResponseWriter, r *http.Request) {
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, _ = io.Copy(io.Discard, r.Body)
			}()
			time.Sleep(100 * time.Millisecond)
			echo(0)(ctx, w, r)
			<-done
		}, "late"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := &http1.Server{IdleTimeout: 500 * time.Millisecond, HeadTimeout: 500 * time.Millisecond}
			c := serve(t, s, tt.h)
			c.send(tt.sent)
			time.Sleep(time.Second) // no deadline of the server's is left
			c.send("late")
			if err := s.Shutdown(context.Background()); err != nil {
				t.Error(err) // it is not the server's any more
			}
			_ = c.Conn.(interface{ CloseWrite() error }).CloseWrite()
			if got, _ := c.rest(); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
