package http1_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sallyport/gateway/http1"
	"sallyport/internal/test/must"
)

// upstream is the test's end of a ClientConn, and what becomes of that.
type upstream struct {
	net.Conn
	t      testing.TB
	in     *bufio.Reader
	socket net.Conn // the ClientConn's
	client *http1.ClientConn
	done   chan bool // reusable, for each request
}

// connect makes a ClientConn, over TLS if wanted.
func connect(t testing.TB, o http1.ClientOptions, overTLS bool) *upstream {
	t.Helper()
	u := &upstream{t: t, done: make(chan bool, 10)}
	var client net.Conn
	if overTLS {
		ours, theirs, _ := secure(t)
		// The end that secure calls the server's is a client here: TLS is the same both ways
		// once it stands.
		u.Conn, client = ours, theirs
		o.Tap, _ = theirs.NetConn().(*http1.Tap)
		o.Raw, _ = raw(theirs).(syscall.Conn).SyscallConn()
	} else {
		u.Conn, client = pair(t)
		o.Raw, _ = client.(syscall.Conn).SyscallConn()
	}
	o.Done = func(_ *http1.ClientConn, reusable bool) { u.done <- reusable }
	u.in, u.socket = bufio.NewReader(u.Conn), client
	u.client = http1.NewClientConn(client, o)
	t.Cleanup(func() { u.client.Close() })
	return u
}

// answers reads a request of n bytes of body at most and answers it.
func (u *upstream) answers(raw string) {
	u.t.Helper()
	r, err := http.ReadRequest(u.in)
	if err != nil {
		u.t.Errorf("reading the request: %v", err)
		return
	}
	_, _ = io.Copy(io.Discard, r.Body)
	u.say(raw)
}

func (u *upstream) say(raw string) {
	u.t.Helper()
	if _, err := io.WriteString(u.Conn, raw); err != nil {
		u.t.Errorf("answering: %v", err)
	}
}

// request makes one without a body.
func request(t testing.TB, ctx context.Context, method string, body io.Reader) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, "http://h/a", body)
	must.OK(t, err)
	return r
}

// exchange sends a request and reads the response. It returns the status, the body and what
// went wrong.
func (u *upstream) exchange(r *http.Request) string {
	resp, err := u.client.RoundTrip(r, nil)
	if err != nil {
		return "failed"
	}
	b, err := io.ReadAll(resp.Body)
	s := fmt.Sprintf("%d %s", resp.StatusCode, b)
	if err != nil {
		s += " broken"
	}
	if resp.Body.Close() != nil {
		s += " unclosed"
	}
	return s
}

func TestResponses(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\n"
	for _, tt := range []struct {
		name, method, answer string
		want                 string
		reusable             bool
	}{
		{"length", "GET", ok + "Content-Length: 3\r\n\r\nabc", "200 abc", true},
		{"length of 0", "GET", ok + "Content-Length: 0\r\n\r\n", "200 ", true},
		{"chunks", "GET", ok + "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", "200 abc", true},
		{"chunks with trailers", "GET", ok + "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nA: b\r\n\r\n", "200 abc", true},
		{"204", "GET", "HTTP/1.1 204 No Content\r\n\r\n", "204 ", true},
		{"304 with a length", "GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 3\r\n\r\n", "304 ", true},
		{"HEAD", "HEAD", ok + "Content-Length: 3\r\n\r\n", "200 ", true},
		{"HEAD in chunks", "HEAD", ok + "Transfer-Encoding: chunked\r\n\r\n", "200 ", true},
		{"after informational ones", "GET", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n" + ok + "Content-Length: 3\r\n\r\nabc", "200 abc", true},
		{"POST", "POST", ok + "Content-Length: 3\r\n\r\nabc", "200 abc", true},

		{"close", "GET", ok + "Connection: close\r\nContent-Length: 3\r\n\r\nabc", "200 abc", false},
		{"1.0", "GET", "HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nabc", "200 abc", false},
		{"1.0 that would go on", "GET", "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 3\r\n\r\nabc", "200 abc", false},
		{"to the end of the connection", "GET", ok + "\r\nabc", "200 abc", false},
		{"surplus", "GET", ok + "Content-Length: 3\r\n\r\nabcd", "200 abc", false},
		{"surplus that is a response", "GET", ok + "Content-Length: 0\r\n\r\n" + ok + "Content-Length: 3\r\n\r\nabc", "200 ", false},
		{"HEAD with a body", "HEAD", ok + "Content-Length: 3\r\n\r\nabc", "200 ", false},
		{"204 with a body", "GET", "HTTP/1.1 204 No Content\r\nContent-Length: 3\r\n\r\nabc", "204 ", false},
		{"304 with a body", "GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 3\r\n\r\nabc", "304 ", false},

		{"truncated", "GET", ok + "Content-Length: 5\r\n\r\nabc", "200 abc broken", false},
		{"truncated in a chunk", "GET", ok + "Transfer-Encoding: chunked\r\n\r\n5\r\nabc", "200 abc broken", false},
		{"truncated between chunks", "GET", ok + "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", "200 abc broken", false},
		{"truncated before the end", "GET", ok + "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n", "200 abc broken", false},
		{"chunk that is none", "GET", ok + "Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n", "200 abc broken", false},
		{"nothing", "GET", "", "failed", false},
		{"half a head", "GET", ok + "Content-Len", "failed", false},
		{"only informational ones", "GET", "HTTP/1.1 103 Early Hints\r\n\r\n", "failed", false},
		{"endless informational ones", "GET", strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 100) + ok + "Content-Length: 0\r\n\r\n", "failed", false},
		{"two lengths", "GET", ok + "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", "failed", false},
		{"length below zero", "GET", ok + "Content-Length: -3\r\n\r\nabc", "failed", false},
		{"unknown coding", "GET", ok + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", "failed", false},
		{"no HTTP", "GET", "SSH-2.0-OpenSSH_9.2\r\n\r\n", "failed", false},
		{"HTTP/2", "GET", "HTTP/2.0 200 OK\r\nContent-Length: 3\r\n\r\nabc", "failed", false},
		{"status below 100", "GET", "HTTP/1.1 099 x\r\n\r\n" + ok + "Content-Length: 3\r\n\r\nabc", "failed", false},
		{"status with a sign", "GET", "HTTP/1.1 +20 x\r\n\r\n", "failed", false},
		{"large head", "GET", ok + "A: " + strings.Repeat("a", 10_000) + "\r\n\r\n", "failed", false},
		{"large head of an informational one", "GET", "HTTP/1.1 103 x\r\nA: " + strings.Repeat("a", 10_000) + "\r\n\r\n" + ok + "\r\n", "failed", false},
		{"NUL in a value", "GET", ok + "A: \x00\r\nContent-Length: 0\r\n\r\n", "failed", false},
	} {
		for _, pieces := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/pieces=%v", tt.name, pieces), func(t *testing.T) {
				t.Parallel()
				u := connect(t, http1.ClientOptions{MaxHead: 8 << 10}, false)
				go func() {
					// The upstream ends what it cut short, and nothing else.
					defer func() {
						if !tt.reusable && !strings.Contains(tt.name, "surplus") {
							_ = u.Conn.(interface{ CloseWrite() error }).CloseWrite()
						}
					}()
					if !pieces {
						u.answers(tt.answer)
						return
					}
					u.answers("")
					for i := 0; i < len(tt.answer); i++ {
						if _, err := io.WriteString(u.Conn, tt.answer[i:i+1]); err != nil {
							return
						}
					}
				}()
				var body io.Reader
				if tt.method == "POST" {
					body = strings.NewReader("body")
				}
				if got := u.exchange(request(t, t.Context(), tt.method, body)); got != tt.want {
					t.Errorf("got %q, want %q", got, tt.want)
				}
				reusable := within(t, u.done, "the connection to be given up")
				// Surplus that arrives late is for Alive to find.
				for end := time.Now().Add(patience); reusable && !tt.reusable && time.Now().Before(end); time.Sleep(time.Millisecond) {
					reusable = u.client.Alive()
				}
				if reusable != tt.reusable {
					t.Errorf("reusable: %v", reusable)
				}
				if reusable && !u.client.Alive() {
					t.Error("not alive")
				}
			})
		}
	}
}

func TestReuse(t *testing.T) {
	t.Parallel()
	for _, overTLS := range []bool{false, true} {
		t.Run(fmt.Sprintf("TLS=%v", overTLS), func(t *testing.T) {
			u := connect(t, http1.ClientOptions{}, overTLS)
			for i := range 20 {
				if !u.client.Alive() {
					t.Fatal("not alive")
				}
				want := fmt.Sprintf("200 %d", i)
				var body io.Reader
				if i%2 > 0 {
					body = strings.NewReader("body")
				}
				go u.answers(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%d", len(want)-4, i))
				if got := u.exchange(request(t, t.Context(), "POST", body)); got != want {
					t.Fatalf("got %q, want %q", got, want)
				}
				if !within(t, u.done, "the connection") {
					t.Fatal("not reusable")
				}
			}
		})
	}
	t.Run("after a request that ends it", func(t *testing.T) {
		u := connect(t, http1.ClientOptions{}, false)
		go u.answers("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		r := request(t, t.Context(), "GET", nil)
		r.Close = true
		u.exchange(r)
		if within(t, u.done, "the connection") {
			t.Error("reusable, though its server was told to close it")
		}
	})
}

// TestAlive has what a peer can do to an idle connection.
func TestAlive(t *testing.T) {
	t.Parallel()
	const ok = "HTTP/1.1 200 OK\r\n"
	large := strings.Repeat("a", 9000) // read past every buffer of ours
	for _, tt := range []struct {
		name   string
		answer string
		then   func(u *upstream)
		want   bool
	}{
		{"quiet", ok + "Content-Length: 0\r\n\r\n", func(*upstream) {}, true},
		{"quiet after a large body", ok + "Content-Length: 9000\r\n\r\n" + large, func(*upstream) {}, true},
		{"closed", ok + "Content-Length: 0\r\n\r\n", func(u *upstream) { u.Close() }, false},
		{"chatty", ok + "Content-Length: 0\r\n\r\n", func(u *upstream) { u.say(ok) }, false},
		// In one segment, and one record of TLS: nothing of it is on the socket
		// once the body has been read.
		{"response behind a response", ok + "Content-Length: 9000\r\n\r\n" + large + ok + "Content-Length: 4\r\n\r\nevil", func(*upstream) {}, false},
		{"a byte behind a response", ok + "Content-Length: 9000\r\n\r\n" + large + "H", func(*upstream) {}, false},
	} {
		for _, overTLS := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/TLS=%v", tt.name, overTLS), func(t *testing.T) {
				u := connect(t, http1.ClientOptions{}, overTLS)
				go u.answers(tt.answer)
				resp, err := u.client.RoundTrip(request(t, t.Context(), "GET", nil), nil)
				must.OK(t, err)
				// In large pieces, so that the body's end does not fall into a
				// buffer that would show what is behind it.
				for p := make([]byte, 32<<10); err == nil; {
					_, err = resp.Body.Read(p)
				}
				reusable := within(t, u.done, "the connection")
				tt.then(u)
				time.Sleep(50 * time.Millisecond)
				if got := reusable && u.client.Alive(); got != tt.want {
					t.Errorf("alive: %v", got)
				}
				if !tt.want {
					return
				}
				go u.answers(ok + "Content-Length: 2\r\n\r\nok") // looking has broken nothing
				if got := u.exchange(request(t, t.Context(), "GET", nil)); got != "200 ok" {
					t.Errorf("got %q", got)
				}
			})
		}
	}
}

// TestStale tells a connection that its server had closed from other failures.
func TestStale(t *testing.T) {
	t.Parallel()
	reset := func(u *upstream) {
		_, _ = http.ReadRequest(u.in)
		_ = u.Conn.(*net.TCPConn).SetLinger(0)
		u.Close()
	}
	for _, tt := range []struct {
		name  string
		first bool // the failure meets the connection's first request
		then  func(u *upstream)
		want  bool
	}{
		{"closed", false, func(u *upstream) { _, _ = http.ReadRequest(u.in); u.Close() }, true},
		{"closed before", false, func(u *upstream) { u.Close() }, true},
		{"reset", false, reset, true},
		{"closed, new connection", true, func(u *upstream) { _, _ = http.ReadRequest(u.in); u.Close() }, false},
		{"closed in the head", false, func(u *upstream) { u.answers("HTTP/1.1 200 OK\r\n"); u.Close() }, false},
		{"no answer in time", false, func(*upstream) {}, false},
		{"canceled", false, nil, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var o http1.ClientOptions
			if tt.name == "no answer in time" {
				o.HeadTimeout = time.Second
			}
			u := connect(t, o, false)
			if !tt.first {
				u.say("HTTP/1.1 204 No Content\r\n\r\n") // which is there in time
				read := make(chan error, 1)
				go func() {
					_, err := http.ReadRequest(u.in)
					read <- err
				}()
				if got := u.exchange(request(t, t.Context(), "GET", nil)); got != "204 " {
					t.Fatalf("got %q", got)
				}
				within(t, u.done, "the connection")
				must.OK(t, within(t, read, "the request"))
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if tt.then == nil {
				time.AfterFunc(50*time.Millisecond, cancel)
			} else {
				go tt.then(u)
			}
			_, err := u.client.RoundTrip(request(t, ctx, "GET", nil), nil)
			if errors.Is(err, http1.ErrStale) != tt.want || err == nil {
				t.Errorf("got %v", err)
			}
			if within(t, u.done, "the connection") {
				t.Error("reusable")
			}
		})
	}
}

func TestInformationalResponses(t *testing.T) {
	t.Parallel()
	u := connect(t, http1.ClientOptions{}, false)
	go u.answers("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\nHTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 204 No Content\r\nA: b\r\n\r\n")
	var got []string
	resp, err := u.client.RoundTrip(request(t, t.Context(), "GET", nil), func(code int, h http.Header) {
		got = append(got, fmt.Sprint(code, h))
	})
	must.OK(t, err)
	got = append(got, fmt.Sprint(resp.StatusCode, resp.Header))
	if diff := cmp.Diff([]string{"103 map[Link:[a]]", "102 map[]", "204 map[A:[b]]"}, got); diff != "" {
		t.Errorf("want - got +\n%s", diff)
	}
}

// TestHeadTimeout bounds the head, of every request, and nothing behind it.
func TestHeadTimeout(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"GET", "POST"} {
		var body io.Reader
		if method == "POST" {
			body = strings.NewReader("body")
		}
		t.Run(method+" without an answer", func(t *testing.T) {
			u := connect(t, http1.ClientOptions{HeadTimeout: 500 * time.Millisecond}, false)
			start := time.Now()
			_, err := u.client.RoundTrip(request(t, t.Context(), method, body), nil)
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("got %v", err)
			}
			if d := time.Since(start); d < 500*time.Millisecond || d > patience/2 {
				t.Errorf("after %v", d)
			}
		})
		t.Run(method+" with a slow body", func(t *testing.T) {
			u := connect(t, http1.ClientOptions{HeadTimeout: 500 * time.Millisecond}, false)
			go func() {
				u.answers("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\na")
				time.Sleep(700 * time.Millisecond)
				u.say("bc")
			}()
			if got := u.exchange(request(t, t.Context(), method, body)); got != "200 abc" {
				t.Errorf("got %q", got)
			}
			within(t, u.done, "the connection")
			time.Sleep(700 * time.Millisecond) // no deadline is left on it
			go u.answers("HTTP/1.1 204 No Content\r\n\r\n")
			if got := u.exchange(request(t, t.Context(), "GET", nil)); got != "204 " {
				t.Errorf("got %q", got)
			}
		})
	}
	t.Run("canceled as it is lifted", func(t *testing.T) {
		// The time between the head and the end of the wait for it is short:
		// many of these hit it.
		for range 300 {
			u := connect(t, http1.ClientOptions{HeadTimeout: time.Minute}, false)
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				u.answers("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n")
				cancel()
			}()
			ended := make(chan string, 1)
			go func() { ended <- u.exchange(request(t, ctx, "GET", nil)) }()
			if got := within(t, ended, "the canceled exchange"); got != "failed" && got != "200  broken" {
				t.Fatalf("got %q", got)
			}
			if within(t, u.done, "the connection") {
				t.Fatal("reusable")
			}
			u.Close()
		}
	})
}

// TestGivenUp shows that a response that nobody wants ends the connection at
// once, however long it would go on.
func TestGivenUp(t *testing.T) {
	t.Parallel()
	for _, overTLS := range []bool{false, true} {
		t.Run(fmt.Sprintf("TLS=%v", overTLS), func(t *testing.T) {
			u := connect(t, http1.ClientOptions{}, overTLS)
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				u.answers("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
				for {
					if _, err := io.WriteString(u.Conn, "5\r\nabcde\r\n"); err != nil {
						return
					}
				}
			}()
			resp, err := u.client.RoundTrip(request(t, t.Context(), "GET", nil), nil)
			must.OK(t, err)
			if _, err := io.ReadFull(resp.Body, make([]byte, 10)); err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if within(t, u.done, "the connection") {
				t.Error("reusable")
			}
			within(t, ended, "the upstream to notice")
			if n, err := resp.Body.Read(make([]byte, 10)); err == nil {
				t.Errorf("read %d bytes of it afterwards", n)
			}
		})
	}
}
