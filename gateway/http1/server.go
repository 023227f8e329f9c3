package http1

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Handler answers one request. ctx ends when the client goes away, which is
// noticed while it waits for an answer, and when the connection ends; the
// request's own context is the background. A panic with http.ErrAbortHandler
// breaks the connection off.
type Handler func(ctx context.Context, w http.ResponseWriter, r *http.Request)

// Server serves connections that were accepted, and whose TLS was ended,
// elsewhere. Its fields do not change once it serves.
type Server struct {
	// HeadTimeout bounds a request's head, from its first byte to its last, and
	// the wait for the first byte of a connection's first. Default: 15 s.
	HeadTimeout time.Duration
	// IdleTimeout ends a connection that has waited that long for another request,
	// or up to an eighth longer. Default: 5 min.
	IdleTimeout time.Duration
	// MaxHead bounds a request's head, in bytes. Default: 128 KiB.
	MaxHead int
	// Refuse answers a request whose head was refused; r is empty. The connection ends
	// after it. Default: the reason, as plain text.
	Refuse func(ctx context.Context, w http.ResponseWriter, r *http.Request, err *RefusedError)
	// Silent is called for a connection that ends because no byte came within the time for
	// a first head. The client gets no answer: it may connect before it knows its request,
	// and would take a 408 for the answer to that. Default: nothing is called.
	Silent func(ctx context.Context)
	// Budget counts a connection's large heads, each until its request has been answered.
	// Default: they are not counted.
	Budget func(ctx context.Context) Budget
	Logger *slog.Logger // default: none

	closing atomic.Bool
	mu      sync.Mutex
	conns   map[*conn]struct{}
	empty   chan struct{} // closed when the last connection has gone; nil until somebody waits
}

// ServeConn serves c until it ends, and closes it unless a handler has hijacked
// it. It returns when the last handler has.
func (s *Server) ServeConn(ctx context.Context, nc net.Conn, handler Handler) {
	ctx, cancel := newLife(ctx)
	defer cancel()
	c := &conn{server: s, Conn: nc, ctx: ctx, cancel: cancel, handler: handler, remote: nc.RemoteAddr().String()}
	c.in = headReader{Reader: bufio.NewReaderSize(nc, minRead), src: nc, max: cmp.Or(s.MaxHead, 128<<10)}
	if s.Budget != nil {
		c.in.budget = s.Budget(ctx)
		defer c.in.budget.Release()
	}
	if !s.enter(c) {
		_ = nc.Close()
		return
	}
	defer s.leave(c)
	defer func() {
		p := recover()
		if p != nil && p != http.ErrAbortHandler {
			s.logger().Error("panic in a handler", "panic", fmt.Sprint(p))
		}
		if c.hijacked {
			return
		}
		if p != nil {
			cut(nc)
		}
		_ = nc.Close() // which ends whoever may read still
		if c.body != nil {
			c.body.end()
		}
		c.unwatch()
		c.watcher.stop()
		c.release()
	}()
	for c.next() {
	}
}

func (s *Server) logger() *slog.Logger {
	if s.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return s.Logger
}

func (s *Server) enter(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing.Load() {
		return false
	}
	if s.conns == nil {
		s.conns = make(map[*conn]struct{})
	}
	s.conns[c] = struct{}{}
	return true
}

// leave also lets go of a connection that was hijacked: it is the handler's.
func (s *Server) leave(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	if len(s.conns) == 0 && s.empty != nil {
		close(s.empty)
		s.empty = nil
	}
}

// Shutdown closes idle connections at once and the others after their request, and waits
// for them until ctx is done, whose error it returns then.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	s.closing.Store(true)
	for c := range s.conns {
		if c.state.CompareAndSwap(idle, over) {
			_ = c.Conn.SetReadDeadline(time.Unix(1, 0)) // it closes itself
		}
	}
	if len(s.conns) == 0 {
		s.mu.Unlock()
		return nil
	}
	if s.empty == nil {
		s.empty = make(chan struct{})
	}
	empty := s.empty
	s.mu.Unlock()
	select {
	case <-empty:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close closes every connection.
func (s *Server) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closing.Store(true)
	for c := range s.conns {
		cut(c.Conn)
		c.cancel()
	}
}

// next serves one request, and tells whether another may come.
func (c *conn) next() bool {
	wait := cmp.Or(c.server.IdleTimeout, 5*time.Minute)
	if c.served {
		c.rest(wait)
	} else {
		_ = c.SetReadDeadline(time.Now().Add(min(wait, c.headTimeout())))
	}
	r, err := c.read()
	if err != nil {
		if !c.served && errors.Is(err, os.ErrDeadlineExceeded) && c.server.Silent != nil && !c.server.closing.Load() {
			c.server.Silent(c.ctx)
		}
		c.refuse(err)
		return false
	}
	c.served = true
	w := &c.response
	*w = response{conn: c, request: r, body: w.body, declared: unknown, header: make(http.Header, 8)}
	c.body = nil
	if r.Body != http.NoBody {
		_ = c.SetReadDeadline(time.Time{})
		w.awaited = len(r.Header["Expect"]) > 0 && r.ProtoAtLeast(1, 1)
		c.body = &body{src: r.Body, conn: c, greet: w.awaited}
		if len(r.TransferEncoding) > 0 {
			c.body.src = &chunks{in: c.in.Reader, request: r}
		}
		r.Body = c.body
	} else {
		c.watch()
	}
	c.handler(c.ctx, w, r)
	if c.hijacked {
		return false
	}
	read := c.body == nil || c.body.end() // from here on nobody else reads
	c.unwatch()
	w.last = w.last || !read && r.ContentLength > maxDrain
	if err := w.end(); err != nil {
		return false
	}
	if w.last || c.server.closing.Load() || !read && !c.drain() {
		c.linger()
		return false
	}
	c.release()
	c.in.shrink()
	if c.in.budget != nil {
		c.in.budget.Release()
	}
	return c.ctx.Err() == nil
}

// read waits for a request and parses it.
func (c *conn) read() (*http.Request, error) {
	if c.in.Buffered() == 0 {
		c.state.CompareAndSwap(busy, idle)
		if c.server.closing.Load() {
			return nil, io.EOF
		}
		if _, err := c.in.Peek(1); err != nil {
			return nil, err
		}
		if !c.state.CompareAndSwap(idle, busy) {
			return nil, net.ErrClosed
		}
	}
	head, err := c.in.await(func() { _ = c.SetReadDeadline(time.Now().Add(c.headTimeout())) }, requestEnd)
	var cost int64
	if err == nil {
		cost, err = check(head)
	}
	if err == nil {
		err = take(c.in.budget, cost)
	}
	switch {
	case err == nil:
	case errors.Is(err, os.ErrDeadlineExceeded) && c.in.Buffered() > 0:
		return nil, refused(http.StatusRequestTimeout, errSlow)
	case errors.Is(err, ErrFields):
		return nil, refused(http.StatusRequestHeaderFieldsTooLarge, errTooLarge)
	case errors.Is(err, ErrBudget):
		return nil, refused(http.StatusTooManyRequests, ErrBudget)
	default:
		return nil, err
	}
	size, before := len(head), c.in.Buffered()
	if _, target, _ := bytes.Cut(head, space); target[0] != '/' {
		head = bytes.Clone(head) // for its Host, beside that of the target
	}
	r, err := http.ReadRequest(c.in.Reader)
	if err != nil || before-c.in.Buffered() != size { // no two readings, not even here
		return nil, refused(http.StatusBadRequest, errMalformed)
	}
	switch absolute := r.URL.Scheme != "" && r.Method != http.MethodConnect; {
	case r.URL.Opaque != "", r.Method == http.MethodConnect && r.RequestURI != r.URL.Host, absolute && r.URL.Hostname() == "":
		return nil, refused(http.StatusBadRequest, errTarget)
	case absolute && otherHost(head, r.URL):
		return nil, refused(http.StatusMisdirectedRequest, errOtherHost)
	}
	delete(r.Header, "Host")
	r.RemoteAddr = c.remote
	return r, nil
}

func (c *conn) headTimeout() time.Duration { return cmp.Or(c.server.HeadTimeout, 15*time.Second) }

// refuse says why a head was refused, where one was.
func (c *conn) refuse(err error) {
	var bad *RefusedError
	if !errors.As(err, &bad) {
		return
	}
	r := &http.Request{Method: http.MethodGet, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Close: true, Header: http.Header{}, URL: &url.URL{Path: "/"}}
	w := &c.response
	*w = response{conn: c, request: r, declared: unknown, header: http.Header{}}
	_ = c.SetWriteDeadline(time.Now().Add(refuseTime))
	if c.server.Refuse != nil {
		c.server.Refuse(c.ctx, w, r, bad)
	} else {
		w.header.Set("Content-Type", "text/plain; charset=utf-8")
		w.WriteHeader(bad.Status)
		_, _ = io.WriteString(w, bad.Error()+"\n")
	}
	if w.end() == nil {
		c.linger()
	} else {
		cut(c.Conn) // the goodbye of TLS after a record that was not sent is illegible
	}
}
