package http1_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"sallyport/gateway/http1"
	"sallyport/internal/test/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what has to happen.
const patience = time.Minute

// pair returns both ends of a TCP connection on loopback. The test's end is
// closed with the test.
func pair(t testing.TB) (ours, theirs net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	defer l.Close()
	ours, err = net.Dial("tcp", l.Addr().String())
	must.OK(t, err)
	t.Cleanup(func() { ours.Close() })
	_ = ours.SetDeadline(time.Now().Add(2 * patience))
	if theirs, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	return ours, theirs
}

// client is a test's end of a connection that a Server serves.
type client struct {
	net.Conn
	t    testing.TB
	in   *bufio.Reader
	done chan struct{} // closed when ServeConn has returned
}

// serve starts serving one connection. It ends with the test.
func serve(t testing.TB, s *http1.Server, h http1.Handler) *client {
	t.Helper()
	ours, theirs := pair(t)
	c := &client{Conn: ours, t: t, in: bufio.NewReader(ours), done: make(chan struct{})}
	go func() {
		defer close(c.done)
		s.ServeConn(context.Background(), theirs, h)
	}()
	t.Cleanup(func() {
		ours.Close()
		c.ended()
	})
	return c
}

// ended waits until ServeConn has returned.
func (c *client) ended() {
	c.t.Helper()
	select {
	case <-c.done:
	case <-time.After(patience):
		c.t.Error("ServeConn has not returned")
	}
}

func (c *client) send(raw string) {
	c.t.Helper()
	if _, err := io.WriteString(c, raw); err != nil {
		c.t.Fatal(err)
	}
}

// receive reads a response to a method with its body, in one line: status,
// framing and body.
func (c *client) receive(method string) string {
	c.t.Helper()
	return c.read(method).String()
}

// answer is a response that has been read.
type answer struct {
	*http.Response
	body string
	err  error // of the body
}

func (a answer) String() string {
	length := "chunked"
	switch {
	case a.ContentLength >= 0:
		length = fmt.Sprint(a.ContentLength)
	case len(a.TransferEncoding) == 0:
		length = "to the end"
	}
	s := fmt.Sprintf("%d (%s) %s", a.StatusCode, length, a.body)
	if a.Close {
		s += " close"
	}
	if a.err != nil {
		s += " broken"
	}
	return s
}

func (c *client) read(method string) answer {
	c.t.Helper()
	resp, err := http.ReadResponse(c.in, &http.Request{Method: method})
	if err != nil {
		c.t.Fatalf("reading a response: %v", err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return answer{resp, string(b), err}
}

// rest reads to the end of the connection; reset tells whether that was no
// regular one.
func (c *client) rest() (text string, reset bool) {
	c.t.Helper()
	b, err := io.ReadAll(c.in)
	if err, ok := err.(net.Error); ok && err.Timeout() {
		c.t.Fatal("the connection was not closed")
	}
	return string(b), err != nil
}

// closed fails unless the server ends the connection without another byte.
func (c *client) closed() {
	c.t.Helper()
	if got, _ := c.rest(); got != "" {
		c.t.Errorf("got %q before the end of the connection", got)
	}
}

// hello answers with the method, the target and the body.
func hello(_ context.Context, w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	fmt.Fprintf(w, "%s %s %s", r.Method, r.RequestURI, b)
}

// within fails the test unless what is sent on c comes in time.
func within[T any](t testing.TB, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("waited in vain for %s", what)
		panic("unreachable")
	}
}

const get = "GET /a HTTP/1.1\r\nHost: h\r\n\r\n"

func lines(l ...string) string { return strings.Join(l, "\r\n") + "\r\n\r\n" }

func bufReader(s string) *bufio.Reader { return bufio.NewReader(strings.NewReader(s)) }

var target = &url.URL{Scheme: "http", Host: "h", Path: "/a"}
