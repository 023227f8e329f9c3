package h1

import (
	"bufio"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"
)

// graceAfterWrite is how long a response is waited for when the request could
// not be written to its end: a server may refuse a body, say why, and close.
const graceAfterWrite = time.Second

// settleTime is how long a response that has ended waits for its request to.
const settleTime = 50 * time.Millisecond

var errRefusedBody = errors.New("the server answered before it had asked for the body")

// upload sends a request that has a body while its response is read. All its
// methods can be called on nil, a request without one.
type upload struct {
	conn *ClientConn
	done chan struct{} // closed when nothing more is written
	err  error         // readable then
	ask  chan bool     // whether to send a body that waits for 100 (Continue)
	once sync.Once
}

func newUpload(c *ClientConn, r *http.Request) *upload {
	u := &upload{conn: c, done: make(chan struct{}), ask: make(chan bool, 1)}
	gate := &gate{upload: u, body: r.Body, wait: names(r.Header["Expect"], "100-continue")}
	sent := *r
	sent.Body = gate
	go u.send(&sent, gate)
	return u
}

func (u *upload) send(r *http.Request, g *gate) {
	defer close(u.done)
	out := outs.Get().(*bufio.Writer)
	out.Reset(u.conn.conn)
	g.out = out
	err := r.Write(sink{out})
	if err == nil {
		err = out.Flush()
	}
	out.Reset(nil)
	outs.Put(out)
	switch {
	case err == nil:
	case g.err == errRefusedBody:
		u.err = g.err // the response is on its way
	case g.err != nil:
		u.err = g.err
		_ = u.conn.conn.Close() // what is there of the body is no request
	default:
		u.err = err
		_ = u.conn.conn.SetReadDeadline(time.Now().Add(graceAfterWrite))
	}
}

// proceed says that the body is wanted, or that the response has come first.
func (u *upload) proceed(wanted bool) {
	if u != nil {
		u.once.Do(func() { u.ask <- wanted })
	}
}

// ended tells whether all of the request has been sent, or soon has.
func (u *upload) ended() bool {
	if u == nil {
		return true
	}
	select {
	case <-u.done:
		return u.err == nil
	default:
	}
	t := time.NewTimer(settleTime)
	defer t.Stop()
	select {
	case <-u.done:
		return u.err == nil
	case <-t.C:
		return false
	}
}

// wait is for after the connection was closed: writing ends then, but reading
// the body may not.
func (u *upload) wait() {
	if u == nil {
		return
	}
	u.proceed(false)
	t := time.NewTimer(settleTime)
	defer t.Stop()
	select {
	case <-u.done:
	case <-t.C:
	}
}

// failed is why the body could not be read or sent.
func (u *upload) failed() error {
	if u == nil {
		return nil
	}
	select {
	case <-u.done:
		return u.err
	default:
		return nil
	}
}

// sink is a bufio.Writer that a gate can flush between two reads: without its
// ReadFrom, which would not notice.
type sink struct{ out *bufio.Writer }

func (s sink) Write(p []byte) (int, error)       { return s.out.Write(p) }
func (s sink) WriteByte(b byte) error            { return s.out.WriteByte(b) }
func (s sink) WriteString(p string) (int, error) { return s.out.WriteString(p) }

// gate lets a body through when it is wanted, and sends what has been written
// before it waits for more.
type gate struct {
	upload *upload
	body   io.ReadCloser
	out    *bufio.Writer
	wait   bool
	err    error // of the body, but for io.EOF
}

func (g *gate) Read(p []byte) (int, error) {
	if b, ok := g.body.(interface{ Buffered() int }); !ok || g.wait || b.Buffered() == 0 {
		if err := g.out.Flush(); err != nil {
			return 0, err
		}
	}
	if g.wait {
		g.wait = false
		if !g.wanted() {
			g.err = errRefusedBody
			return 0, g.err
		}
	}
	n, err := g.body.Read(p)
	if err != nil && err != io.EOF {
		g.err = err
	}
	return n, err
}

// wanted waits for 100 (Continue). A server that does not know of it says
// nothing (RFC 9110, section 10.1.1).
func (g *gate) wanted() bool {
	t := time.NewTimer(g.upload.conn.o.ContinueTimeout)
	defer t.Stop()
	select {
	case wanted := <-g.upload.ask:
		return wanted
	case <-t.C:
		return true
	}
}

func (g *gate) Close() error { return g.body.Close() }
