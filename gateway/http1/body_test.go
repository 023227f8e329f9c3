package http1_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sallyport/gateway/http1"
)

// received is what a handler makes of a body.
type received struct {
	Body    string
	Trailer http.Header
	Broken  bool
}

func TestChunkedRequest(t *testing.T) {
	t.Parallel()
	const head = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n"
	broken := func(body string) received { return received{Body: body, Broken: true} }
	for _, tt := range []struct {
		name, sent string
		want       received
	}{
		{"empty", "\r\n0\r\n\r\n", received{}},
		{"one chunk", "\r\n3\r\nabc\r\n0\r\n\r\n", received{Body: "abc"}},
		{"several", "\r\n3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n", received{Body: "abcd"}},
		{"sizes in any case and with zeros", "\r\n00A\r\n0123456789\r\nb\r\n0123456789a\r\n000\r\n\r\n", received{Body: "01234567890123456789a"}},
		{"CRLF in the data", "\r\n7\r\n\r\n0\r\n\r\n\r\n0\r\n\r\n", received{Body: "\r\n0\r\n\r\n"}},
		{"extensions", "\r\n3;a\r\nabc\r\n1;b=\"c;d\" ;e=f\r\nd\r\n0;g\r\n\r\n", received{Body: "abcd"}},
		{"trailers that were announced", "Trailer: A, b\r\n\r\n1\r\na\r\n0\r\na: x\r\nB: y\r\nb: z\r\n\r\n",
			received{Body: "a", Trailer: http.Header{"A": {"x"}, "B": {"y", "z"}}}},
		{"trailers that were not", "\r\n1\r\na\r\n0\r\nA: x\r\n\r\n", received{Body: "a", Trailer: http.Header{"A": {"x"}}}},
		{"trailer announced in vain", "Trailer: A\r\n\r\n0\r\n\r\n", received{Trailer: http.Header{"A": nil}}},
		{"one-byte chunks", "\r\n" + strings.Repeat("1\r\na\r\n", 10_000) + "0\r\n\r\n", received{Body: strings.Repeat("a", 10_000)}},
		{"a large chunk", "\r\n20000\r\n" + strings.Repeat("a", 0x20000) + "\r\n0\r\n\r\n", received{Body: strings.Repeat("a", 0x20000)}},

		{"no size", "\r\n\r\nabc\r\n0\r\n\r\n", broken("")},
		{"only an extension", "\r\n;3\r\nabc\r\n0\r\n\r\n", broken("")},
		{"size that is no number", "\r\nx\r\nabc\r\n0\r\n\r\n", broken("")},
		{"size with 0x", "\r\n0x3\r\nabc\r\n0\r\n\r\n", broken("")},
		{"size with a sign", "\r\n+3\r\nabc\r\n0\r\n\r\n", broken("")},
		{"size below zero", "\r\n-3\r\nabc\r\n0\r\n\r\n", broken("")},
		{"size with a space before", "\r\n 3\r\nabc\r\n0\r\n\r\n", broken("")},
		{"size with a space behind", "\r\n3 \r\nabc\r\n0\r\n\r\n", broken("")},
		{"size that overflows", "\r\n10000000000000003\r\nabc\r\n0\r\n\r\n", broken("")},
		{"size of 61 bits", "\r\n1000000000000000\r\nabc\r\n0\r\n\r\n", broken("")},
		{"bare LF after the size", "\r\n3\nabc\r\n0\r\n\r\n", broken("")},
		{"bare CR in the size's line", "\r\n3;\ra\r\nabc\r\n0\r\n\r\n", broken("")},
		{"NUL in an extension", "\r\n3;\x00\r\nabc\r\n0\r\n\r\n", broken("")},
		{"bare LF after the data", "\r\n3\r\nabc\n0\r\n\r\n", broken("abc")},
		{"more data than the size", "\r\n3\r\nabcd\r\n0\r\n\r\n", broken("abc")},
		{"less data than the size", "\r\n5\r\nabc\r\n0\r\n\r\n", broken("abc\r\n")},
		{"bare LF after the last chunk", "\r\n3\r\nabc\r\n0\n\r\n", broken("abc")},
		{"bare LF at the end", "\r\n3\r\nabc\r\n0\r\n\n", broken("abc")},
		{"trailer that ends with a bare LF", "\r\n0\r\nA: b\n\nGET /b HTTP/1.1\r\nHost: h\r\n\r\n", broken("")},
		{"folded trailer", "\r\n0\r\nA: b\r\n c\r\n\r\n", broken("")},
		{"trailer with a space before the colon", "\r\n0\r\nA : b\r\n\r\n", broken("")},
		{"trailer without colon", "\r\n0\r\nA\r\n\r\n", broken("")},
		{"length as a trailer", "\r\n0\r\nContent-Length: 3\r\n\r\n", broken("")},
		{"coding as a trailer", "\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n", broken("")},
		{"host as a trailer", "\r\n0\r\nhost: a\r\n\r\n", broken("")},
		{"endless trailers", "\r\n0\r\n" + strings.Repeat("A: b\r\n", 10_000) + "\r\n", broken("")},
		{"long trailer", "\r\n0\r\nA: " + strings.Repeat("b", 10_000) + "\r\n\r\n", broken("")},
		{"long extension", "\r\n1;" + strings.Repeat("b", 2000) + "\r\na\r\n0\r\n\r\n", broken("")},
		{"extensions without end", "\r\n" + strings.Repeat("1;"+strings.Repeat("b", 500)+"\r\na\r\n", 100) + "0\r\n\r\n", broken(strings.Repeat("a", 33))},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := make(chan received, 2)
			c := serve(t, &http1.Server{}, func(_ context.Context, _ http.ResponseWriter, r *http.Request) {
				b, err := io.ReadAll(r.Body)
				got <- received{string(b), r.Trailer, err != nil}
			})
			c.send(head + tt.sent + get)
			if diff := cmp.Diff(tt.want, within(t, got, "the body")); diff != "" {
				t.Errorf("want - got +\n%s", diff)
			}
			_ = c.read("POST")
			if tt.want.Broken {
				c.closed()
				if len(got) > 0 {
					t.Errorf("what followed was served as another request: %+v", <-got)
				}
				return
			}
			if got := c.read("GET"); got.StatusCode != 200 {
				t.Errorf("the request behind it got %v", got)
			}
		})
	}
}

func TestShortBody(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, sent string }{
		{"of a length", lines("POST / HTTP/1.1", "Host: h", "Content-Length: 10") + "abc"},
		{"in a chunk", lines("POST / HTTP/1.1", "Host: h", "Transfer-Encoding: chunked") + "a\r\nabc"},
		{"between chunks", lines("POST / HTTP/1.1", "Host: h", "Transfer-Encoding: chunked") + "3\r\nabc\r\n"},
		{"before the end", lines("POST / HTTP/1.1", "Host: h", "Transfer-Encoding: chunked") + "3\r\nabc\r\n0\r\n"},
		{"in a trailer", lines("POST / HTTP/1.1", "Host: h", "Transfer-Encoding: chunked") + "3\r\nabc\r\n0\r\nA: b\r\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := make(chan error, 1)
			c := serve(t, &http1.Server{}, func(_ context.Context, _ http.ResponseWriter, r *http.Request) {
				b, err := io.ReadAll(r.Body)
				if string(b) != "abc" {
					t.Errorf("read %q", b)
				}
				got <- err
			})
			c.send(tt.sent)
			_ = c.Conn.(interface{ CloseWrite() error }).CloseWrite()
			if err := within(t, got, "the body's end"); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("got %v", err)
			}
			c.ended()
		})
	}
}

func TestContinue(t *testing.T) {
	t.Parallel()
	head := func(version string) string {
		return lines("POST / "+version, "Host: h", "Expect: 100-continue", "Content-Length: 3")
	}
	const interim = "HTTP/1.1 100 Continue\r\n\r\n"
	refuse := func(_ context.Context, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }
	t.Run("asked", func(t *testing.T) {
		c := serve(t, &http1.Server{}, hello)
		for range 2 {
			c.send(head("HTTP/1.1"))
			b := make([]byte, len(interim))
			if _, err := io.ReadFull(c.in, b); err != nil || string(b) != interim {
				t.Fatalf("got %q, %v", b, err)
			}
			c.send("abc")
			if got := c.receive("POST"); got != "200 (10) POST / abc" {
				t.Errorf("got %s", got)
			}
		}
	})
	t.Run("not asked, not sent", func(t *testing.T) {
		c := serve(t, &http1.Server{}, refuse)
		c.send(head("HTTP/1.1") + "GET") // which is body, or a request?
		if got := c.receive("POST"); got != "403 (0)  close" {
			t.Errorf("got %s", got)
		}
		c.closed()
	})
	t.Run("answered, then asked", func(t *testing.T) {
		c := serve(t, &http1.Server{}, func(_ context.Context, w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, "early ")
			_ = http.NewResponseController(w).Flush()
			_, _ = io.Copy(w, r.Body)
		})
		c.send(head("HTTP/1.1") + "abc" + get)
		if got := c.receive("POST"); got != "200 (chunked) early abc close" {
			t.Errorf("got %s", got) // nothing of a 100 in its body
		}
		c.closed()
	})
	t.Run("1.0 is not asked", func(t *testing.T) {
		c := serve(t, &http1.Server{}, hello)
		c.send(head("HTTP/1.0") + "abc")
		if got := c.receive("POST"); got != "200 (10) POST / abc close" {
			t.Errorf("got %s", got)
		}
	})
	t.Run("nothing to ask for", func(t *testing.T) {
		c := serve(t, &http1.Server{}, hello)
		c.send(lines("GET / HTTP/1.1", "Host: h", "Expect: 100-continue") + get)
		for _, want := range []string{"200 (6) GET / ", "200 (7) GET /a "} {
			if got := c.receive("GET"); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		}
	})
}

// TestUnreadBody has handlers that answer without reading.
func TestUnreadBody(t *testing.T) {
	h := func(ctx context.Context, w http.ResponseWriter, r *http.Request) {
		if r.Method == "POST" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		hello(ctx, w, r)
	}
	long := strings.Repeat("a", 100<<10)
	for _, tt := range []struct {
		name, sent string
		kept       bool
	}{
		{"small", lines("POST / HTTP/1.1", "Host: h", "Content-Length: 3") + "abc", true},
		{"small and chunked", lines("POST / HTTP/1.1", "Host: h", "Transfer-Encoding: chunked") + "3\r\nabc\r\n0\r\n\r\n", true},
		{"some", lines("POST / HTTP/1.1", "Host: h", "Content-Length: 102400") + long, true},
		{"a request in it", lines("POST / HTTP/1.1", "Host: h", fmt.Sprint("Content-Length: ", len(get))) + get, true},
		{"large", lines("POST / HTTP/1.1", "Host: h", "Content-Length: 409600") + strings.Repeat(long, 4), false},
		{"large and chunked", lines("POST / HTTP/1.1", "Host: h", "Transfer-Encoding: chunked") + "64000\r\n" + strings.Repeat(long, 4) + "\r\n0\r\n\r\n", false},
		{"malformed", lines("POST / HTTP/1.1", "Host: h", "Transfer-Encoding: chunked") + "x\r\n0\r\n\r\n", false},
		{"never sent", lines("POST / HTTP/1.1", "Host: h", "Content-Length: 100") + "abc", false}, // the next request is in it
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := serve(t, &http1.Server{}, h)
			go func() { _, _ = io.WriteString(c, tt.sent+get) }()
			if got := c.read("POST"); got.StatusCode != 403 {
				t.Fatalf("got %v", got)
			}
			if tt.kept {
				if got := c.receive("GET"); got != "200 (7) GET /a " {
					t.Errorf("got %s", got)
				}
				return
			}
			c.rest()
			c.Close()
			c.ended()
		})
	}
}

// TestBodyOutlivesHandler has somebody go on reading when the handler has
// returned, as an upload does whose response came early.
func TestBodyOutlivesHandler(t *testing.T) {
	t.Parallel()
	read := make(chan error, 1)
	h := func(ctx context.Context, w http.ResponseWriter, r *http.Request) {
		if r.Method == "GET" {
			hello(ctx, w, r)
			return
		}
		started := make(chan struct{})
		go func() {
			close(started)
			_, err := io.Copy(io.Discard, r.Body)
			for {
				n, again := r.Body.Read(make([]byte, 10))
				if errors.Is(again, http.ErrBodyReadAfterClose) {
					break
				}
				if n > 0 || !errors.Is(again, os.ErrDeadlineExceeded) {
					t.Errorf("reading on after the handler had returned: %d bytes, %v", n, again)
					break
				}
			}
			read <- err
		}()
		<-started
		time.Sleep(20 * time.Millisecond) // it waits for the client
		_, _ = io.WriteString(w, "early")
	}
	t.Run("body never comes", func(t *testing.T) {
		c := serve(t, &http1.Server{}, h)
		c.send(lines("POST / HTTP/1.1", "Host: h", "Content-Length: 10") + "abc")
		if got := c.receive("POST"); got != "200 (5) early" {
			t.Errorf("got %s", got)
		}
		if err := within(t, read, "the reader to be let go"); err == nil {
			t.Error("a body that was not read to its end looked whole")
		}
		c.closed()
	})
	t.Run("body comes late", func(t *testing.T) {
		c := serve(t, &http1.Server{}, h)
		c.send(lines("POST / HTTP/1.1", "Host: h", "Content-Length: 10") + "abc")
		if got := c.receive("POST"); got != "200 (5) early" {
			t.Errorf("got %s", got)
		}
		c.send("defghij" + get)
		if err := within(t, read, "the reader to be let go"); err == nil {
			t.Error("a body that was not read to its end looked whole")
		}
		if got := c.receive("GET"); got != "200 (7) GET /a " {
			t.Errorf("got %s", got)
		}
	})
	t.Run("while 100 is being sent", func(t *testing.T) {
		c := serve(t, &http1.Server{}, h)
		c.send(lines("POST / HTTP/1.1", "Host: h", "Expect: 100-continue", "Content-Length: 10"))
		a, err := http.ReadResponse(c.in, nil)
		if err != nil || a.StatusCode != http.StatusContinue {
			t.Fatalf("got %v, %v", a, err)
		}
		if got := c.receive("POST"); got != "200 (5) early" {
			t.Errorf("got %s", got)
		}
		if err := within(t, read, "the reader to be let go"); err == nil {
			t.Error("a body that was not read to its end looked whole")
		}
	})
}

// TestBuffered is what lets an upload put head and body into one write.
func TestBuffered(t *testing.T) {
	t.Parallel()
	got := make(chan []int, 1)
	h := func(_ context.Context, _ http.ResponseWriter, r *http.Request) {
		b := r.Body.(interface{ Buffered() int })
		all := []int{b.Buffered()}
		_, _ = io.ReadFull(r.Body, make([]byte, 2))
		all = append(all, b.Buffered())
		_, _ = io.Copy(io.Discard, r.Body)
		got <- append(all, b.Buffered())
	}
	for _, tt := range []struct {
		name, sent string
		want       []int
	}{
		{"length", lines("POST / HTTP/1.1", "Host: h", "Content-Length: 5") + "abcde", []int{5, 3, 0}},
		{"chunks", lines("POST / HTTP/1.1", "Host: h", "Transfer-Encoding: chunked") + "5\r\nabcde\r\n0\r\n\r\n", []int{0, 3, 0}},
		{"100-continue", lines("POST / HTTP/1.1", "Host: h", "Content-Length: 5", "Expect: 100-continue") + "abcde", []int{0, 3, 0}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := serve(t, &http1.Server{}, h)
			c.send(tt.sent)
			if diff := cmp.Diff(tt.want, within(t, got, "the handler")); diff != "" {
				t.Errorf("want - got +\n%s", diff)
			}
		})
	}
}

// TestBodyClosedByOthers has a reader whose body somebody else closes, early or
// when the connection is on to other requests.
func TestBodyClosedByOthers(t *testing.T) {
	t.Parallel()
	stop := make(chan struct{})
	h := func(ctx context.Context, w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/read" {
			hello(ctx, w, r)
			return
		}
		read := make(chan error, 1)
		go func() {
			_, err := io.Copy(io.Discard, r.Body)
			read <- err
		}()
		time.Sleep(time.Millisecond)
		for range 2 {
			go func(b io.Closer) {
				for {
					_ = b.Close()
					select {
					case <-stop:
						return
					default:
					}
				}
			}(r.Body)
		}
		if err := within(t, read, "the reader to be let go"); err == nil {
			t.Error("a body that was not read to its end looked whole")
		}
	}
	defer close(stop)
	c := serve(t, &http1.Server{}, h)
	for range 2 {
		c.send(lines("POST /read HTTP/1.1", "Host: h", "Content-Length: 10") + "abc")
		if got := c.receive("POST"); got != "200 (0) " {
			t.Fatalf("got %s", got)
		}
		c.send("defghij")
		for range 100 {
			c.send(lines("POST /a HTTP/1.1", "Host: h", "Content-Length: 3") + "abc")
			if got := c.receive("POST"); got != "200 (11) POST /a abc" {
				t.Fatalf("got %s", got)
			}
		}
	}
}
