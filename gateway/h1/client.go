package h1

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

var (
	errResponseTooLarge = errors.New("the response's head is too large")
	errInformational    = errors.New("too many informational responses")
	// ErrStale is wrapped by RoundTrip's error when a connection that had been
	// used before ended without one byte of a response: most often its server
	// had closed it meanwhile. Nothing says that the request was not acted on.
	ErrStale = errors.New("the connection had been closed")
)

// ClientOptions of a ClientConn.
type ClientOptions struct {
	// Raw is the socket below Conn, on which Alive looks. Nil takes a connection
	// for alive until it fails.
	Raw syscall.RawConn
	// MaxHead bounds a response's head, in bytes. Default: 1 MiB.
	MaxHead int64
	// HeadTimeout bounds the wait for a response's head once the request has
	// been sent. Default: none.
	HeadTimeout time.Duration
	// ContinueTimeout is how long a request that expects 100 (Continue) waits
	// for it. Default: 1 s.
	ContinueTimeout time.Duration
	// Done is called once for each request, when the response's body has been
	// read or closed: reusable says that the connection may carry another. One
	// that is not has been closed.
	Done func(c *ClientConn, reusable bool)
}

// ClientConn is a connection to a server, for one request after the other.
type ClientConn struct {
	conn net.Conn
	o    ClientOptions
	in   *bufio.Reader
	out  *bufio.Writer
	left int64 // of the head that is being read
	read bool  // something of the current response has come
	used bool
	peek func(fd uintptr) bool
	live bool
}

// NewClientConn takes a connection over.
func NewClientConn(c net.Conn, o ClientOptions) *ClientConn {
	o.MaxHead = or(o.MaxHead, 1<<20)
	o.ContinueTimeout = or(o.ContinueTimeout, time.Second)
	cc := &ClientConn{conn: c, o: o}
	cc.in = bufio.NewReaderSize((*source)(cc), minRead)
	cc.peek = cc.look
	return cc
}

// source reads for the head's parser, which has no limit of its own, and for
// the body's.
type source ClientConn

func (s *source) Read(p []byte) (int, error) {
	if s.left <= 0 {
		return 0, errResponseTooLarge
	}
	if int64(len(p)) > s.left {
		p = p[:s.left]
	}
	n, err := s.conn.Read(p)
	s.left -= int64(n)
	s.read = s.read || n > 0
	return n, err
}

// Close closes the connection, whatever it carries.
func (c *ClientConn) Close() error { return c.conn.Close() }

// Alive tells whether an idle connection still looks like one: its peer has
// neither ended it nor said anything unasked.
func (c *ClientConn) Alive() bool {
	if c.o.Raw == nil {
		return true
	}
	c.live = false
	return c.o.Raw.Read(c.peek) == nil && c.live
}

func (c *ClientConn) look(fd uintptr) bool {
	var b [1]byte
	_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	c.live = err == syscall.EAGAIN
	return true
}

// RoundTrip sends a request and returns its response, whose body the caller
// closes. informational, which may be nil, gets the 1xx responses before it,
// but for 101 and 100. A 101's body is an io.ReadWriteCloser, the connection.
//
// The request's context breaks the exchange off until the body has ended. The
// request's body may be read until RoundTrip's body has been closed, and beyond
// by a Read that is under way.
func (c *ClientConn) RoundTrip(r *http.Request, informational func(code int, h http.Header)) (*http.Response, error) {
	x := &reply{conn: c}
	ctx := r.Context()
	if ctx.Done() != nil {
		x.stop = context.AfterFunc(ctx, func() {
			x.broken.Store(true)
			_ = c.conn.SetDeadline(time.Unix(1, 0))
		})
	}
	c.left, c.read = c.o.MaxHead, false
	var err error
	if r.Body == nil || r.Body == http.NoBody {
		err = c.send(r)
	} else {
		x.upload = newUpload(c, r)
	}
	var resp *http.Response
	if err == nil {
		resp, err = c.receive(r, x.upload, informational)
	}
	if err != nil {
		used, read := c.used, c.read
		x.finish(false)
		x.upload.wait() // it reports what it met
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case x.upload.failed() != nil:
			return nil, x.upload.failed()
		case used && !read:
			return nil, errors.Join(ErrStale, err)
		}
		return nil, err
	}
	c.used = true
	if resp.StatusCode == http.StatusSwitchingProtocols {
		x.upgrade(resp)
		return resp, nil
	}
	x.close = resp.Close
	if resp.Body == http.NoBody {
		x.finish(true)
		return resp, nil
	}
	c.left = 1 << 62
	x.body = resp.Body
	resp.Body = x
	return resp, nil
}

// send writes a request that has no body.
func (c *ClientConn) send(r *http.Request) error {
	out := outs.Get().(*bufio.Writer)
	out.Reset(c.conn)
	err := r.Write(out)
	if err == nil {
		err = out.Flush()
	}
	out.Reset(nil)
	outs.Put(out)
	return err
}

// maxInformational bounds what a server may say before its response.
const maxInformational = 32

// receive reads the response's head.
func (c *ClientConn) receive(r *http.Request, u *upload, informational func(int, http.Header)) (*http.Response, error) {
	if c.o.HeadTimeout > 0 {
		defer c.conn.SetReadDeadline(time.Time{})
		if u == nil {
			_ = c.conn.SetReadDeadline(time.Now().Add(c.o.HeadTimeout))
		}
	}
	for range maxInformational {
		resp, err := http.ReadResponse(c.in, r)
		if err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
		switch code := resp.StatusCode; {
		case code == http.StatusContinue:
			u.proceed(true)
		case code < 200 && code != http.StatusSwitchingProtocols:
			if informational != nil {
				informational(code, resp.Header)
			}
		default:
			u.proceed(false)
			return resp, nil
		}
	}
	return nil, errInformational
}

// reply is the end of an exchange: a response's body.
type reply struct {
	conn   *ClientConn
	body   io.ReadCloser
	upload *upload
	stop   func() bool
	close  bool // the server will close the connection
	once   sync.Once
	broken atomic.Bool // by the request's context
}

func (x *reply) Read(p []byte) (int, error) {
	n, err := x.body.Read(p)
	if err != nil {
		x.finish(err == io.EOF)
	}
	return n, err
}

// Buffered is how many bytes, at least, can be read without waiting.
func (x *reply) Buffered() int { return x.conn.in.Buffered() }

// Close gives the connection up unless the body has been read to its end. The
// parser's own Close would read on without bound.
func (x *reply) Close() error {
	x.finish(false)
	return nil
}

func (x *reply) finish(complete bool) {
	x.once.Do(func() {
		stopped := x.stop == nil || x.stop()
		c := x.conn
		reusable := complete && stopped && !x.broken.Load() && !x.close && c.in.Buffered() == 0 && x.upload.ended()
		if !reusable {
			_ = c.conn.Close()
		}
		if c.o.Done != nil {
			c.o.Done(c, reusable)
		}
	})
}

// upgrade makes the connection the response's body.
func (x *reply) upgrade(resp *http.Response) {
	x.conn.left = 1 << 62
	resp.Body = &upgraded{x}
}

type upgraded struct{ *reply }

func (u *upgraded) Read(p []byte) (int, error)  { return u.conn.in.Read(p) }
func (u *upgraded) Write(p []byte) (int, error) { return u.conn.conn.Write(p) }
func (u *upgraded) Close() error                { return u.reply.Close() }

// CloseWrite ends one direction, as TCP and TLS can.
func (u *upgraded) CloseWrite() error {
	if half, ok := u.conn.conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return u.Close()
}
