package http1_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"sallyport/gateway/http1"
	"sallyport/internal/test/must"
)

// post makes a request with a body that net/http cannot see into; a length
// below 0 sends it in chunks.
func post(t testing.TB, ctx context.Context, body io.Reader, length int64) *http.Request {
	t.Helper()
	r := request(t, ctx, "POST", struct{ io.Reader }{body})
	r.ContentLength = length
	return r
}

// rest reads what the upstream got, to the end of the connection.
func (u *upstream) rest() string {
	u.t.Helper()
	b, err := io.ReadAll(u.in)
	if err, ok := err.(interface{ Timeout() bool }); ok && err.Timeout() {
		u.t.Error("the connection was not closed")
	}
	return string(b)
}

func TestUpload(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("0123456789", 100_000)
	for _, tt := range []struct {
		name   string
		body   string
		length int64
	}{
		{"length", "abc", 3},
		{"chunks", "abc", -1},
		{"unknown length", "abc", 0},
		{"large", large, int64(len(large))},
		{"large, in chunks", large, -1},
	} {
		for _, method := range []string{"POST", "GET"} {
			t.Run(method+" "+tt.name, func(t *testing.T) {
				u := connect(t, http1.ClientOptions{}, false)
				for range 2 {
					got := make(chan string, 1)
					go func() {
						r, err := http.ReadRequest(u.in)
						if err != nil {
							got <- err.Error()
							return
						}
						b, err := io.ReadAll(r.Body)
						if err != nil {
							b = []byte(err.Error())
						}
						u.say("HTTP/1.1 204 No Content\r\n\r\n")
						got <- string(b)
					}()
					r := post(t, t.Context(), strings.NewReader(tt.body), tt.length)
					r.Method = method
					if s := u.exchange(r); s != "204 " {
						t.Fatalf("got %q", s)
					}
					if b := within(t, got, "the request"); b != tt.body {
						t.Errorf("the upstream got %.100q", b)
					}
					if !within(t, u.done, "the connection") {
						t.Fatal("not reusable")
					}
				}
			})
		}
	}
}

// TestUploadStreams has the server answer each piece before the next is there.
func TestUploadStreams(t *testing.T) {
	t.Parallel()
	u := connect(t, http1.ClientOptions{}, false)
	go func() {
		r, err := http.ReadRequest(u.in)
		if err != nil {
			t.Error(err)
			return
		}
		u.say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
		b := make([]byte, 1)
		for {
			if _, err := r.Body.Read(b); err != nil {
				break
			}
			u.say("1\r\n" + string(b) + "\r\n")
		}
		u.say("0\r\n\r\n")
	}()
	source, sink := io.Pipe()
	resp, err := u.client.RoundTrip(post(t, t.Context(), source, -1), nil)
	must.OK(t, err)
	defer resp.Body.Close()
	for _, c := range "abc" {
		_, _ = io.WriteString(sink, string(c))
		b := make([]byte, 1)
		if _, err := io.ReadFull(resp.Body, b); err != nil || b[0] != byte(c) {
			t.Fatalf("got %q, %v", b, err)
		}
	}
	sink.Close()
	if b, err := io.ReadAll(resp.Body); err != nil || len(b) > 0 {
		t.Errorf("got %q, %v", b, err)
	}
	if !within(t, u.done, "the connection") {
		t.Error("not reusable")
	}
}

// TestBrokenUpload has sources that fail: what the upstream gets of them must
// not look whole.
func TestBrokenUpload(t *testing.T) {
	t.Parallel()
	gone := errors.New("gone")
	for _, tt := range []struct {
		name   string
		sent   string
		length int64
		err    error // that it ends with, nil for a regular end
	}{
		{"length", "", 10, gone},
		{"length, later", "abc", 10, gone},
		{"chunks", "", -1, gone},
		{"chunks, later", "abc", -1, gone},
		{"at the last byte", "abcdefghi", 10, gone},
		{"shorter than it said", "abc", 10, nil},
	} {
		atOnce(t, tt.name, func(t *testing.T) time.Duration {
			var body io.Reader = strings.NewReader(tt.sent)
			if tt.err != nil {
				body = io.MultiReader(body, iotest.ErrReader(tt.err))
			}
			u := connect(t, http1.ClientOptions{}, false)
			got := make(chan string, 1)
			go func() { got <- u.rest() }()
			start := time.Now()
			_, err := u.client.RoundTrip(post(t, t.Context(), body, tt.length), nil)
			if err == nil || tt.err != nil && !errors.Is(err, tt.err) {
				t.Errorf("got %v", err)
			}
			took := time.Since(start)
			if within(t, u.done, "the connection") {
				t.Error("reusable")
			}
			raw := within(t, got, "the request")
			r, err := http.ReadRequest(bufReader(raw))
			if err != nil {
				return took // not even a head
			}
			if b, err := io.ReadAll(r.Body); err == nil {
				t.Errorf("%q looks like a whole request with %q", raw, b)
			}
			return took
		})
	}
}

// atOnce runs a test that returns how long something took that waits for nothing: where more is
// waited for it takes a second, each time. A busy machine may be slow a few times.
func atOnce(t *testing.T, name string, test func(t *testing.T) time.Duration) {
	t.Run(name, func(t *testing.T) {
		var took time.Duration
		for range 10 {
			if took = test(t); took < 900*time.Millisecond {
				return
			}
		}
		t.Errorf("it took %v", took)
	})
}

// TestEarlyResponse has servers that answer before they have all of a request.
func TestEarlyResponse(t *testing.T) {
	t.Parallel()
	t.Run("upload goes on", func(t *testing.T) {
		u := connect(t, http1.ClientOptions{}, false)
		source, sink := io.Pipe()
		body := make(chan string, 1)
		go func() {
			r, err := http.ReadRequest(u.in)
			if err != nil {
				t.Error(err)
				return
			}
			u.say("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nearly")
			b, _ := io.ReadAll(r.Body)
			body <- string(b)
		}()
		resp, err := u.client.RoundTrip(post(t, t.Context(), source, 3), nil)
		must.OK(t, err)
		_, _ = io.WriteString(sink, "abc")
		sink.Close()
		if got := within(t, body, "the body"); got != "abc" {
			t.Errorf("the upstream got %q", got)
		}
		if b, err := io.ReadAll(resp.Body); string(b) != "early" || err != nil {
			t.Errorf("got %q, %v", b, err)
		}
		if !within(t, u.done, "the connection") {
			t.Error("not reusable, though both directions ended")
		}
	})
	t.Run("upload does not end", func(t *testing.T) {
		u := connect(t, http1.ClientOptions{}, false)
		source, sink := io.Pipe()
		defer sink.Close()
		go func() {
			if _, err := http.ReadRequest(u.in); err == nil {
				u.say("HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno")
			}
		}()
		if got := u.exchange(post(t, t.Context(), source, 3)); got != "401 no" {
			t.Errorf("got %q", got)
		}
		if within(t, u.done, "the connection") {
			t.Error("reusable in the middle of a request")
		}
		u.rest() // closed
	})
	t.Run("refused and closed", func(t *testing.T) {
		u := connect(t, http1.ClientOptions{}, false)
		go func() {
			if _, err := http.ReadRequest(u.in); err != nil {
				t.Error(err)
			}
			u.say("HTTP/1.1 413 Content Too Large\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno")
			_, _ = io.CopyN(io.Discard, u.in, 1<<20)
			u.Close()
		}()
		if got := u.exchange(post(t, t.Context(), io.LimitReader(zeros{}, 1<<30), 1<<30)); !strings.HasPrefix(got, "413 ") {
			t.Errorf("got %q", got)
		}
		if within(t, u.done, "the connection") {
			t.Error("reusable")
		}
	})
	t.Run("writing fails, the answer goes on", func(t *testing.T) {
		// The answer may last longer than one would be waited for.
		u := connect(t, http1.ClientOptions{}, false)
		source, sink := io.Pipe()
		defer sink.Close()
		go func() {
			if _, err := http.ReadRequest(u.in); err != nil {
				t.Error(err)
			}
			u.say("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\na")
			time.Sleep(1500 * time.Millisecond)
			u.say("bc")
		}()
		resp, err := u.client.RoundTrip(post(t, t.Context(), source, 1<<20), nil)
		must.OK(t, err)
		defer resp.Body.Close()
		_ = u.socket.(interface{ CloseWrite() error }).CloseWrite()
		_, _ = io.WriteString(sink, "abc")
		if b, err := io.ReadAll(resp.Body); string(b) != "abc" || err != nil {
			t.Errorf("got %q, %v", b, err)
		}
	})
}

// TestExpect has servers that are asked before they are sent a body.
func TestExpect(t *testing.T) {
	t.Parallel()
	expect := func(t *testing.T, body io.Reader) *http.Request {
		r := post(t, t.Context(), body, 3)
		r.Header.Set("Expect", "100-continue")
		return r
	}
	t.Run("wanted", func(t *testing.T) {
		u := connect(t, http1.ClientOptions{ContinueTimeout: time.Minute}, false)
		go func() {
			r, err := http.ReadRequest(u.in)
			if err != nil {
				t.Error(err)
				return
			}
			if n := u.in.Buffered(); n > 0 {
				t.Errorf("%d bytes were not asked for", n)
			}
			u.say("HTTP/1.1 100 Continue\r\n\r\n")
			b, _ := io.ReadAll(r.Body)
			u.say(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(b), b))
		}()
		if got := u.exchange(expect(t, strings.NewReader("abc"))); got != "200 abc" {
			t.Errorf("got %q", got)
		}
		if !within(t, u.done, "the connection") {
			t.Error("not reusable")
		}
	})
	for _, status := range []int{417, 401, 200} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			u := connect(t, http1.ClientOptions{ContinueTimeout: time.Minute}, false)
			got := make(chan string, 1)
			go func() {
				if _, err := http.ReadRequest(u.in); err != nil {
					t.Error(err)
				}
				u.say(fmt.Sprintf("HTTP/1.1 %d x\r\nContent-Length: 2\r\n\r\nno", status))
				got <- u.rest()
			}()
			body := &counting{Reader: strings.NewReader("abc")}
			if got := u.exchange(expect(t, body)); got != fmt.Sprintf("%d no", status) {
				t.Errorf("got %q", got)
			}
			if within(t, u.done, "the connection") {
				t.Error("reusable, though the server may wait for a body")
			}
			if s := within(t, got, "the end"); s != "" || body.n > 0 {
				t.Errorf("%q was sent, %d bytes read, unasked", s, body.n)
			}
		})
	}
	t.Run("no word", func(t *testing.T) {
		u := connect(t, http1.ClientOptions{ContinueTimeout: 50 * time.Millisecond}, false)
		go u.answers("HTTP/1.1 204 No Content\r\n\r\n")
		if got := u.exchange(expect(t, strings.NewReader("abc"))); got != "204 " {
			t.Errorf("got %q", got)
		}
		if !within(t, u.done, "the connection") {
			t.Error("not reusable")
		}
	})
	t.Run("closed", func(t *testing.T) {
		u := connect(t, http1.ClientOptions{ContinueTimeout: time.Minute}, false)
		go func() { _, _ = http.ReadRequest(u.in); u.Close() }()
		_, err := u.client.RoundTrip(expect(t, strings.NewReader("abc")), nil)
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("got %v", err)
		}
	})
}

type counting struct {
	io.Reader
	n int
}

func (c *counting) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n += n
	return n, err
}

// TestCanceled ends the context at each stage of an exchange.
func TestCanceled(t *testing.T) {
	for _, tt := range []struct {
		name   string
		body   int64
		answer string
		stuck  bool // the upstream reads nothing
	}{
		{"waiting for the head", 0, "", false},
		{"in the head", 0, "HTTP/1.1 200 OK\r\nA: b", false},
		{"in the body", 0, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc", false},
		{"in a chunked body", 0, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", false},
		{"after an upload", 3, "", false},
		{"uploading", 1 << 30, "", true},
		{"uploading, with an early answer", 1 << 30, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc", true},
	} {
		for _, overTLS := range []bool{false, true} {
			atOnce(t, fmt.Sprintf("%s/TLS=%v", tt.name, overTLS), func(t *testing.T) time.Duration {
				u := connect(t, http1.ClientOptions{}, overTLS)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go func() {
					if !tt.stuck {
						u.answers(tt.answer)
					} else if tt.answer != "" {
						u.say(tt.answer)
					}
				}()
				canceled := make(chan time.Time, 1)
				time.AfterFunc(200*time.Millisecond, func() {
					canceled <- time.Now()
					cancel()
				})
				r := request(t, ctx, "GET", nil)
				if tt.body > 0 {
					r = post(t, ctx, io.LimitReader(zeros{}, tt.body), tt.body)
				}
				resp, err := u.client.RoundTrip(r, nil)
				if err == nil {
					_, err = io.ReadAll(resp.Body)
					resp.Body.Close()
				} else if !errors.Is(err, context.Canceled) {
					t.Errorf("got %v", err)
				}
				if err == nil {
					t.Error("nothing went wrong")
				}
				took := time.Duration(0)
				select {
				case at := <-canceled:
					took = time.Since(at)
				default:
					t.Error("it ended before it was canceled")
				}
				if within(t, u.done, "the connection") {
					t.Error("reusable")
				}
				u.rest() // closed
				return took
			})
		}
	}
}

// late is a connection on which the context ends with a response's last byte,
// and has the deadlines set before that is returned.
type late struct {
	net.Conn
	cancel context.CancelFunc
	set    chan struct{}
}

func (l *late) Read(p []byte) (int, error) {
	n, err := l.Conn.Read(p)
	if bytes.HasSuffix(p[:n], []byte("ok")) {
		l.cancel()
		<-l.set
	}
	return n, err
}

func (l *late) SetDeadline(t time.Time) error {
	defer close(l.set)
	return l.Conn.SetDeadline(t)
}

func TestCanceledAtTheEnd(t *testing.T) {
	t.Parallel()
	ours, theirs := pair(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan bool, 1)
	c := http1.NewClientConn(&late{theirs, cancel, make(chan struct{})}, http1.ClientOptions{Done: func(_ *http1.ClientConn, reusable bool) { done <- reusable }})
	u := &upstream{Conn: ours, t: t, in: bufio.NewReader(ours), client: c}
	go u.answers("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
	if got := u.exchange(request(t, ctx, "GET", nil)); got != "200 ok" {
		t.Errorf("got %q", got)
	}
	if within(t, done, "the connection") {
		t.Error("reusable, with a deadline in the past")
	}
}

func TestUpgrade(t *testing.T) {
	t.Parallel()
	const switched = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"
	t.Run("both ways", func(t *testing.T) {
		u := connect(t, http1.ClientOptions{HeadTimeout: time.Second, MaxHead: 4 << 10}, false)
		go u.answers(switched + "early ")
		resp, err := u.client.RoundTrip(request(t, t.Context(), "GET", nil), nil)
		must.OK(t, err)
		time.Sleep(1200 * time.Millisecond) // the head's limits are not the stream's
		body := resp.Body.(io.ReadWriteCloser)
		ended := make(chan string, 1)
		go func() {
			u.say(strings.Repeat("a", 100_000))
			ended <- u.rest()
		}()
		if _, err := io.WriteString(body, "hello"); err != nil {
			t.Error(err)
		}
		b := make([]byte, 6+100_000)
		if _, err := io.ReadFull(body, b); err != nil || !bytes.HasPrefix(b, []byte("early aaa")) {
			t.Errorf("got %.20q, %v", b, err)
		}
		_ = body.(interface{ CloseWrite() error }).CloseWrite()
		if got := within(t, ended, "the other end"); got != "hello" {
			t.Errorf("got %q", got)
		}
		body.Close()
		if within(t, u.done, "the connection") {
			t.Error("reusable")
		}
	})
	t.Run("canceled", func(t *testing.T) {
		u := connect(t, http1.ClientOptions{}, false)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go u.answers(switched)
		resp, err := u.client.RoundTrip(request(t, ctx, "GET", nil), nil)
		must.OK(t, err)
		defer resp.Body.Close()
		time.AfterFunc(50*time.Millisecond, cancel)
		if _, err := resp.Body.Read(make([]byte, 1)); err == nil {
			t.Error("it goes on")
		}
	})
	t.Run("before the request has ended", func(t *testing.T) {
		u := connect(t, http1.ClientOptions{}, false)
		source, sink := io.Pipe()
		defer sink.Close()
		go u.say(switched)
		if _, err := u.client.RoundTrip(post(t, t.Context(), source, 10), nil); err == nil {
			t.Error("request and stream would mix")
		}
		if within(t, u.done, "the connection") {
			t.Error("reusable")
		}
	})
}
