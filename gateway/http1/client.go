package http1

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"syscall"
	"time"
)

var (
	errBlankLine     = errors.New("the response's head has a line of white space in it")
	errInformational = errors.New("too many informational responses")
	errStatus        = errors.New("the response is not HTTP/1, or its status is below 100")
	errEarlySwitch   = errors.New("the server switched protocols before it had all of the request")
	// ErrStale is wrapped by RoundTrip's error when a connection that had been
	// used before was ended by its server without one byte of a response: most
	// often that happened before the request. Nothing says that the request was
	// not acted on.
	ErrStale = errors.New("the connection had been closed")
)

// ClientOptions of a ClientConn.
type ClientOptions struct {
	// Raw is the socket below Conn, on which Alive looks. Nil takes a connection
	// for alive until it fails.
	Raw syscall.RawConn
	// Tap, if given, is what TLS reads from. Alive closes it in place of setting a
	// deadline, which costs more.
	Tap *Tap
	// MaxHead bounds a response's head and those of the informational ones before it, together,
	// in bytes. Default: 256 KiB.
	MaxHead int
	// HeadTimeout bounds the wait for a response's head once the request has
	// been sent. Default: none.
	HeadTimeout time.Duration
	// ContinueTimeout is how long a request that expects 100 (Continue) waits
	// for it. Default: 1 s.
	ContinueTimeout time.Duration
	// Done is called once for each request, when the response's body has been read or
	// closed. reusable reports that the connection may carry another request; one that may
	// not is closed.
	Done func(c *ClientConn, reusable bool)
}

// Tap is a connection below TLS that can be shut: TLS then reads only what it holds
// already, without waiting.
type Tap struct {
	net.Conn
	shut bool // by the one who reads
}

// NewTap returns an open Tap.
func NewTap(c net.Conn) *Tap { return &Tap{Conn: c} }

// Read implements io.Reader. While the tap is shut it fails as after a deadline,
// which TLS does not take for the end.
func (t *Tap) Read(p []byte) (int, error) {
	if t.shut {
		return 0, os.ErrDeadlineExceeded
	}
	return t.Conn.Read(p)
}

// ClientConn is a connection to a server, for one request after the other.
type ClientConn struct {
	// Remote is the server's address, for who knows it.
	Remote netip.Addr

	conn net.Conn
	o    ClientOptions
	in   headReader
	read bool // something of the current response has come
	used bool
	peek func(fd uintptr) bool
	live bool
}

// NewClientConn takes a connection over.
func NewClientConn(c net.Conn, o ClientOptions) *ClientConn {
	o.MaxHead = cmp.Or(o.MaxHead, 256<<10)
	o.ContinueTimeout = cmp.Or(o.ContinueTimeout, time.Second)
	cc := &ClientConn{conn: c, o: o}
	cc.in = headReader{Reader: bufio.NewReaderSize((*source)(cc), minRead), src: (*source)(cc)}
	cc.peek = cc.look
	return cc
}

// source reads for the parsers of heads and bodies.
type source ClientConn

func (s *source) Read(p []byte) (int, error) {
	n, err := s.conn.Read(p)
	s.read = s.read || n > 0
	return n, err
}

// Close closes the connection, whatever it carries.
func (c *ClientConn) Close() error { return c.conn.Close() }

// Alive reports whether an idle connection still looks usable: its peer has neither closed
// it nor sent anything, which the next request would take for its response. Anything that
// arrives later is not noticed.
func (c *ClientConn) Alive() bool {
	if _, layered := c.conn.(interface{ NetConn() net.Conn }); layered && !c.silent() {
		return false
	}
	if c.o.Raw == nil {
		return true
	}
	c.live = false
	return c.o.Raw.Read(c.peek) == nil && c.live
}

// silent tells whether TLS holds nothing that it has read already and that is
// on no socket any more.
func (c *ClientConn) silent() bool {
	if c.o.Tap != nil {
		c.o.Tap.shut = true
		defer func() { c.o.Tap.shut = false }()
	} else {
		_ = c.conn.SetReadDeadline(time.Unix(1, 0))
		defer func() { _ = c.conn.SetReadDeadline(time.Time{}) }()
	}
	_, err := c.in.Peek(1)
	return errors.Is(err, os.ErrDeadlineExceeded)
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
	if l := lifeOf(ctx); l != nil && l.join(x) {
		x.life = l
	} else if ctx.Done() != nil {
		x.stop = context.AfterFunc(ctx, x.cancel)
	}
	c.read = false
	c.in.budget, _ = ctx.Value(BudgetKey).(Budget)
	var err error
	if r.Body == nil || r.Body == http.NoBody {
		err = c.send(x, r)
	} else {
		x.upload = newUpload(x, r)
	}
	var resp *http.Response
	if err == nil {
		resp, err = c.receive(r, x.upload, informational)
		x.begun()
	}
	if err == nil && resp.StatusCode == http.StatusSwitchingProtocols && !x.upload.ended() {
		err = errEarlySwitch
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
		case used && !read && ended(err):
			return nil, errors.Join(ErrStale, err)
		}
		return nil, err
	}
	c.used = true
	if resp.StatusCode == http.StatusSwitchingProtocols {
		resp.Body = &upgraded{x}
		return resp, nil
	}
	// Servers differ in how they read lengths and persistence of HTTP/1.0.
	x.close = resp.Close || r.Close || !resp.ProtoAtLeast(1, 1)
	if resp.Body == http.NoBody {
		x.finish(true)
		return resp, nil
	}
	x.body, x.trailer, x.ctx = resp.Body, &resp.Trailer, ctx
	resp.Body = x
	return resp, nil
}

// ended tells whether err is how a connection looks that its peer has closed.
func ended(err error) bool {
	return errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// send writes a request that has no body.
func (c *ClientConn) send(x *reply, r *http.Request) error {
	out := outs.Get().(*bufio.Writer)
	out.Reset(c.conn)
	err := r.Write(out)
	if err == nil {
		err = out.Flush()
	}
	out.Reset(nil)
	outs.Put(out)
	if err == nil {
		x.within(c.o.HeadTimeout)
		// The server needs a while. Others that are ready go first: reading at once
		// would cost a system call that finds nothing.
		runtime.Gosched()
	}
	return err
}

// maxInformational bounds what a server may say before its response.
const maxInformational = 32

// answerEnd finds the end of a response's head, whose lines may end with LF alone.
func answerEnd(b []byte, seen int) (end int, err error) {
	for from := max(seen-2, 0); ; {
		i := bytes.IndexByte(b[from:], '\n')
		if i < 0 {
			return 0, nil
		}
		from += i + 1
		switch rest := b[from:]; {
		case len(rest) > 0 && rest[0] == '\n':
			return from + 1, nil
		case len(rest) > 1 && rest[0] == '\r' && rest[1] == '\n':
			return from + 2, nil
		}
	}
}

// head waits for a response's head, and bounds it before anything of it is parsed.
func (c *ClientConn) head() error {
	head, err := c.in.await(nil, answerEnd)
	if err != nil {
		return err
	}
	fields, trailers := -2, 0 // without the first and the last line
	inTrailer := false
	for line := range bytes.Lines(head) {
		fields++
		if len(line) > 2 && len(bytes.TrimSpace(line)) == 0 {
			return errBlankLine // which would end the head for the parser
		}
		if line[0] != ' ' && line[0] != '\t' { // else it goes on with the field before
			inTrailer = len(line) > len("trailer") && equal(line[:len("trailer")], "trailer")
		}
		if inTrailer {
			trailers += 1 + bytes.Count(line, comma)
		}
	}
	if fields > MaxFields || trailers > MaxTrailers {
		return ErrFields
	}
	if err := take(c.in.budget, Cost(len(head), fields, 0)); err != nil {
		return err
	}
	c.in.max -= len(head) // of those that are still to come
	if c.in.Size() > minRead {
		c.in.refill(minRead)
	}
	return nil
}

// receive reads the response's head.
func (c *ClientConn) receive(r *http.Request, u *upload, informational func(int, http.Header)) (*http.Response, error) {
	c.in.max = c.o.MaxHead
	for range maxInformational {
		if err := c.head(); err != nil {
			return nil, short(err)
		}
		resp, err := http.ReadResponse(c.in.Reader, r)
		if err != nil {
			return nil, short(err)
		}
		switch code := resp.StatusCode; {
		case code < 100 || resp.ProtoMajor != 1:
			return nil, errStatus
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
