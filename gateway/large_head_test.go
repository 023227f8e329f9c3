package gateway_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"sallyport/internal/test/must"
)

// says starts an upstream of HTTP/1.1 that answers each request with the same bytes, and
// leaves the connection open.
func (w *netEnv) says(name string, secure bool, answer func(r *http.Request) string) *origin {
	w.t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(w.t, err)
	if secure {
		ln = tls.NewListener(ln, &tls.Config{Certificates: []tls.Certificate{w.public.leaf(name)}})
	}
	o := &origin{name: name, port: addrPort(ln.Addr()).Port()}
	w.name(name)
	var work sync.WaitGroup
	stop, cancel := context.WithCancel(context.Background())
	work.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			o.conns.Add(1)
			work.Go(func() {
				defer c.Close()
				defer context.AfterFunc(stop, func() { c.Close() })()
				for in := bufio.NewReader(c); ; {
					r, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					_, _ = io.Copy(io.Discard, r.Body)
					if _, err := io.WriteString(c, answer(r)); err != nil {
						return
					}
				}
			})
		}
	})
	w.t.Cleanup(func() { ln.Close(); cancel(); work.Wait() })
	return o
}

// many are n fields, each of about size bytes.
func many(n, size int) []field {
	list := make([]field, n)
	for i := range list {
		list[i] = field{fmt.Sprintf("x-%d", i), strings.Repeat("v", max(size-8, 1))}
	}
	return list
}

// largeHeads are answers by their heads, and whether they are taken.
var largeHeads = []struct {
	name    string
	early   []field // of a 103 before
	head    []field
	trailer []field // announced, and sent
	status  int
	broken  bool // the body ends in an error
}{
	{name: "as many fields as may be", head: many(990, 10), status: 200},
	{name: "too many fields", head: many(1010, 1), status: 502},
	{name: "as many bytes as may be", head: many(100, 2000), status: 200},
	{name: "too many bytes", head: many(100, 2700), status: 502},
	{name: "too many fields in a 103", early: many(1010, 1), status: 502},
	{name: "too many bytes in a 103", early: many(100, 2700), status: 502},
	{name: "too many trailers", trailer: many(101, 1), status: 502},
	{name: "trailers", trailer: many(90, 1), status: 200},
}

func lines(fields []field) string {
	var b strings.Builder
	for _, f := range fields {
		fmt.Fprintf(&b, "%s: %s\r\n", f.name, f.value)
	}
	return b.String()
}

func announcement(fields []field) string {
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.name
	}
	return strings.Join(names, ", ")
}

// rawAnswer is an answer as HTTP/1.1 has it.
func rawAnswer(early, head, trailer []field) string {
	var b strings.Builder
	if early != nil {
		fmt.Fprintf(&b, "HTTP/1.1 103 Early Hints\r\n%s\r\n", lines(early))
	}
	b.WriteString("HTTP/1.1 200 OK\r\n" + lines(head))
	if trailer == nil {
		b.WriteString("Content-Length: 2\r\n\r\nhi")
	} else {
		fmt.Fprintf(&b, "Trailer: %s\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n%s\r\n", announcement(trailer), lines(trailer))
	}
	return b.String()
}

func TestHeadsOfAnswersAreBounded(t *testing.T) {
	t.Parallel()
	for _, tt := range largeHeads {
		t.Run(tt.name, func(t *testing.T) {
			w := newNetEnv(t)
			one := w.says("one.example.test", true, func(*http.Request) string { return rawAnswer(tt.early, tt.head, tt.trailer) })
			two := w.scripted("two.example.test", func(c *frames, id uint32) {
				write := func(end bool, fields ...field) {
					block := c.headers(fields...)
					first := min(len(block), 16<<10)
					_ = c.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block[:first], EndStream: end, EndHeaders: first == len(block)})
					for rest := block[first:]; len(rest) > 0; {
						n := min(len(rest), 16<<10)
						_ = c.WriteContinuation(id, n == len(rest), rest[:n])
						rest = rest[n:]
					}
				}
				if tt.early != nil {
					write(false, append([]field{{":status", "103"}}, tt.early...)...)
				}
				head := append([]field{{":status", "200"}}, tt.head...)
				if tt.trailer != nil {
					head = append(head, field{"trailer", announcement(tt.trailer)})
				}
				write(false, head...)
				_ = c.WriteData(id, tt.trailer == nil, []byte("hi"))
				if tt.trailer != nil {
					write(true, tt.trailer...)
				}
			})
			for _, o := range []*origin{one, two} {
				for _, version := range []string{"h1", "h2"} {
					resp, body := get(t, w.agent(version, true, w.steer, false), o.url("https", "/"))
					if resp.StatusCode != tt.status || tt.status == 502 && !strings.Contains(body, "the answer's head has more than") && o == one {
						t.Errorf("%s to %s: %d %.200s, want %d", version, o.name, resp.StatusCode, body, tt.status)
					}
				}
			}
		})
	}
}

// The same code bounds the answers of a sandbox.
func TestHeadsOfInboundAnswersAreBounded(t *testing.T) {
	t.Parallel()
	for _, tt := range largeHeads {
		t.Run(tt.name, func(t *testing.T) {
			n, token := newInbound(t)
			n.speaks(t, rawAnswer(tt.early, tt.head, tt.trailer))
			r, body := n.ask(t, "GET / HTTP/1.1\r\nHost: "+n.host("demo")+"\r\nAuthorization: Bearer "+token+"\r\n\r\n")
			if r.StatusCode == 103 {
				t.Skip("the client of this test takes that for the answer")
			}
			if r.StatusCode != tt.status {
				t.Errorf("%d %.200s, want %d", r.StatusCode, body, tt.status)
			}
		})
	}
}

// One sandbox fills each buffer of the gateway as far as it can, and holds it. It has
// its share and no more, and another sandbox works on.
func TestOneSandboxHasItsShareOfMemory(t *testing.T) {
	const each = 400 // connections or requests
	block := strings.Repeat("x", 16<<10)
	for _, tt := range []struct {
		name string
		most int64 // bytes
		fill func(t *testing.T, w *netEnv) (done func())
	}{
		{"large heads of answers", 100 << 20, func(t *testing.T, w *netEnv) func() {
			head := "HTTP/1.1 200 OK\r\n" + lines(many(990, 250)) + "Content-Length: 5\r\n\r\n"
			o := w.says("large.example.test", false, func(*http.Request) string { return head })
			return w.holding(t, each, func() (net.Conn, error) {
				c, err := w.steer(t.Context(), "tcp", o.address())
				if err == nil {
					_, err = fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", o.address())
				}
				return c, err
			})
		}},
		{"large heads of requests", 100 << 20, func(t *testing.T, w *netEnv) func() {
			o := w.says("silent.example.test", false, func(*http.Request) string { return "" })
			head := fmt.Sprintf("GET /?%s HTTP/1.1\r\nHost: %s\r\n%s\r\n", strings.Repeat("k&", 10_000), o.address(), lines(many(990, 100)))
			return w.holding(t, each, func() (net.Conn, error) {
				c, err := w.steer(t.Context(), "tcp", o.address())
				if err == nil {
					_, err = io.WriteString(c, head)
				}
				return c, err
			})
		}},
		{"half of a request's head", 100 << 20, func(t *testing.T, w *netEnv) func() {
			o := w.says("silent.example.test", false, func(*http.Request) string { return "" })
			head := fmt.Sprintf("GET / HTTP/1.1\r\nHost: %s\r\n%s", o.address(), lines(many(120, 1000)))
			return w.holding(t, each, func() (net.Conn, error) {
				c, err := w.steer(t.Context(), "tcp", o.address())
				if err == nil {
					_, err = io.WriteString(c, head)
				}
				return c, err
			})
		}},
		{"frames of HTTP/2, and bodies that an upstream does not take", 120 << 20, func(t *testing.T, w *netEnv) func() {
			o := w.origin("deaf.example.test", "h2", false)
			o.handle("/", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
			return w.holding(t, each, func() (net.Conn, error) {
				c, err := w.steer(t.Context(), "tcp", o.address())
				if err != nil {
					return nil, err
				}
				f, err := newFrames(c)
				if err != nil {
					return nil, err
				}
				_ = f.WriteRawFrame(0xbb, 0, 0, make([]byte, 1<<20-1)) // of an unknown type
				for left := 1 << 20; left > 0 && err == nil; left -= 256 << 10 {
					var id uint32
					id, err = f.open(false, field{":method", "POST"}, field{":scheme", "http"}, field{":path", "/"}, field{":authority", o.address()})
					for range 16 {
						if err == nil {
							err = f.WriteData(id, false, []byte(block))
						}
					}
				}
				return c, nil
			})
		}},
		{"answers of HTTP/2 that nobody reads", 240 << 20, func(t *testing.T, w *netEnv) func() {
			o := w.origin("endless.example.test", "h2", false)
			stream := &endless{left: 1 << 40} // of all
			o.handle("/", func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, stream) })
			defer func() {
				for last, still := int64(-1), 0; still < 5; time.Sleep(50 * time.Millisecond) {
					if now := stream.read.Load(); now == last {
						still++
					} else {
						last, still = now, 0
					}
				}
			}()
			return w.holding(t, each/100, func() (net.Conn, error) {
				c, err := w.steer(t.Context(), "tcp", o.address())
				if err != nil {
					return nil, err
				}
				f, err := newFrames(c)
				if err != nil {
					return nil, err
				}
				for range 100 {
					_, err = f.open(true, field{":method", "GET"}, field{":scheme", "http"}, field{":path", "/"}, field{":authority", o.address()})
				}
				return c, err
			})
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newNetEnv(t)
			w.quiet = true
			o := w.origin("api.example.test", "h1", false)
			o.handle("/", func(w http.ResponseWriter, r *http.Request) {
				for _, f := range many(300, 100) {
					w.Header().Set(f.name, f.value)
				}
			})
			other := w.agent("h1", false, w.connect, false)
			get(t, other, o.url("http", "/"))
			var done func()
			grew := heap(func() {
				done = tt.fill(t, w)
				for range 3 {
					if resp, body := get(t, other, o.url("http", "/")); resp.StatusCode != 200 {
						t.Errorf("another sandbox's request: %d %s", resp.StatusCode, body)
					}
				}
			})
			done()
			t.Logf("the heap grew by %d MiB", grew>>20)
			if grew > tt.most {
				t.Errorf("the heap grew by %d MiB, at most %d are one sandbox's", grew>>20, tt.most>>20)
			}
		})
	}
}

// holding opens n connections, whatever becomes of them, waits until the gateway has done with them what it
// does, and returns what closes them.
func (w *netEnv) holding(t *testing.T, n int, open func() (net.Conn, error)) (done func()) {
	t.Helper()
	var list []net.Conn
	var work sync.WaitGroup
	var mu sync.Mutex
	var failed atomic.Int32
	for part := range 8 {
		work.Go(func() {
			for i := part; i < n; i += 8 {
				c, err := open()
				if err != nil {
					failed.Add(1)
				}
				if c != nil {
					mu.Lock()
					list = append(list, c)
					mu.Unlock()
				}
			}
		})
	}
	work.Wait()
	// Until nothing has happened for a while.
	for last, still := -1, 0; still < 5; time.Sleep(50 * time.Millisecond) {
		w.mu.Lock()
		now := len(w.events)
		w.mu.Unlock()
		if now == last {
			still++
		} else {
			last, still = now, 0
		}
	}
	t.Logf("%d of %d could not be opened", failed.Load(), n)
	return func() {
		for _, c := range list {
			c.Close()
		}
	}
}
