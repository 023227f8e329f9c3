package http1

import (
	"context"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// reply is the end of an exchange: a response's body.
type reply struct {
	conn   *ClientConn
	body   io.ReadCloser
	upload *upload

	trailer *http.Header // of the response
	ctx     context.Context
	life    *life       // that the exchange has joined, or
	stop    func() bool // of context.AfterFunc, nil for a context without end
	close   bool        // the connection carries no other request
	once    sync.Once
	closed  atomic.Bool
	over    atomic.Bool // the connection is no longer this exchange's

	mu       sync.Mutex // of the connection's deadlines
	broken   bool       // by the request's context
	answered bool       // the response's head has come: no more deadline
	limited  bool       // there is one
}

// cancel breaks the exchange off, for good.
func (x *reply) cancel() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.broken = true
	_ = x.conn.conn.SetDeadline(time.Unix(1, 0))
}

// within bounds the wait for a response's head from now on; 0 does not.
func (x *reply) within(d time.Duration) {
	if d == 0 {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.broken && !x.answered {
		x.limited = true
		_ = x.conn.conn.SetReadDeadline(time.Now().Add(d))
	}
}

// begun lifts the bound.
func (x *reply) begun() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.answered = true
	if x.limited && !x.broken {
		_ = x.conn.conn.SetReadDeadline(time.Time{})
	}
}

func (x *reply) Read(p []byte) (int, error) {
	if x.closed.Load() {
		return 0, http.ErrBodyReadAfterClose
	}
	n, err := x.body.Read(p)
	if err == io.EOF && len(*x.trailer) > 0 {
		if bad := Charge(x.ctx, *x.trailer, MaxTrailers); bad != nil {
			err = bad
		}
	}
	if err != nil {
		x.finish(err == io.EOF)
	}
	return n, err
}

// Buffered is how many bytes, at least, of a body with a length can be read
// without waiting. The reader of the body asks it.
func (x *reply) Buffered() int {
	if x.over.Load() {
		return 0 // the buffer may be another exchange's by now
	}
	return x.conn.in.Buffered()
}

// Close gives the connection up unless the body has been read to its end. The
// parser's own Close would read on without bound.
func (x *reply) Close() error {
	x.closed.Store(true)
	x.finish(false)
	return nil
}

// unbound tells whether the request's context has not broken the exchange off, and
// no longer will.
func (x *reply) unbound() bool {
	switch {
	case x.life != nil:
		return x.life.leave(x)
	case x.stop != nil:
		return x.stop()
	}
	return true
}

func (x *reply) finish(complete bool) {
	x.once.Do(func() {
		x.over.Store(true)
		stopped := x.unbound()
		c := x.conn
		reusable := complete && stopped && !x.close && c.in.Buffered() == 0 && x.upload.ended()
		switch {
		case reusable:
		case complete && stopped:
			_ = c.conn.Close()
		default:
			cut(c.conn)
		}
		if c.o.Done != nil {
			c.o.Done(c, reusable)
		}
	})
}

// upgraded is a connection that a 101 has turned over.
type upgraded struct{ *reply }

func (u *upgraded) Read(p []byte) (int, error)  { return u.conn.in.Read(p) }
func (u *upgraded) Write(p []byte) (int, error) { return u.conn.conn.Write(p) }

// CloseWrite ends one direction, as TCP and TLS can.
func (u *upgraded) CloseWrite() error {
	if half, ok := u.conn.conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return u.Close()
}
