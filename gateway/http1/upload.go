package http1

import (
	"bufio"
	"cmp"
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
	reply *reply
	done  chan struct{} // closed when nothing more is written
	err   error         // readable then
	ask   chan bool     // whether to send a body that waits for 100 (Continue)
	once  sync.Once
}

func newUpload(x *reply, r *http.Request) *upload {
	u := &upload{reply: x, done: make(chan struct{}), ask: make(chan bool, 1)}
	gate := &gate{upload: u, body: r.Body, wait: names(r.Header["Expect"], "100-continue")}
	sent := *r
	sent.Body = gate
	if sent.ContentLength <= 0 && len(sent.TransferEncoding) == 0 {
		// Else net/http would try, in a goroutine, whether there is a body.
		sent.TransferEncoding = []string{"chunked"}
	}
	go u.send(&sent, gate)
	return u
}

func (u *upload) send(r *http.Request, g *gate) {
	defer close(u.done)
	c := u.reply.conn
	out := outs.Get().(*bufio.Writer)
	out.Reset(c.conn)
	g.out = out
	err := r.Write(sink{g})
	if err == nil {
		err = g.sent(out.Flush())
	}
	out.Reset(nil)
	outs.Put(out)
	switch {
	case err == nil:
		u.reply.within(c.o.HeadTimeout)
	case g.err == errRefusedBody:
		u.err = g.err // the response is on its way
	case g.broken:
		u.err = err
		u.reply.within(graceAfterWrite)
	default:
		u.err = cmp.Or(g.err, err)
		cut(c.conn) // what is there of the body is no request
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
		if u.err == errRefusedBody {
			return nil // by us
		}
		return u.err
	default:
		return nil
	}
}

// gate lets a body through when it is wanted, and sends what has been written
// before it waits for more.
type gate struct {
	upload *upload
	body   io.ReadCloser
	out    *bufio.Writer
	wait   bool
	err    error // of the body, but for io.EOF
	broken bool  // the connection is
}

func (g *gate) Read(p []byte) (int, error) {
	if b, ok := g.body.(interface{ Buffered() int }); !ok || g.wait || b.Buffered() == 0 {
		if err := g.sent(g.out.Flush()); err != nil {
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

// sent remembers that writing failed, as opposed to reading the body.
func (g *gate) sent(err error) error {
	g.broken = g.broken || err != nil
	return err
}

// wanted waits for 100 (Continue). A server that does not know of it says
// nothing (RFC 9110, section 10.1.1).
func (g *gate) wanted() bool {
	t := time.NewTimer(g.upload.reply.conn.o.ContinueTimeout)
	defer t.Stop()
	select {
	case wanted := <-g.upload.ask:
		return wanted
	case <-t.C:
		return true
	}
}

func (g *gate) Close() error { return g.body.Close() }

// sink is a bufio.Writer that its gate can flush between two reads: without its
// ReadFrom, which would not notice.
type sink struct{ *gate }

func (s sink) Write(p []byte) (int, error) {
	n, err := s.out.Write(p)
	return n, s.sent(err)
}

func (s sink) WriteString(p string) (int, error) {
	n, err := s.out.WriteString(p)
	return n, s.sent(err)
}

func (s sink) WriteByte(b byte) error { return s.sent(s.out.WriteByte(b)) }
