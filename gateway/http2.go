package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"

	"sallyport/gateway/bodies"
	"sallyport/gateway/form"
	"sallyport/gateway/http1"
	"sallyport/gateway/tcp"
	"sallyport/internal/quota"
	"sallyport/policy"
)

// Bounds of a connection that speaks HTTP/2.
const (
	maxStreams = 128 // requests at once
	// Flow control windows in bytes. A body that is not read must leave room for others
	// on the connection.
	streamWindow     = 256 << 10
	connectionWindow = 1 << 20
	// The windows of a connection when the sandbox has used up its wide ones.
	narrowStreamWindow     = 16 << 10
	narrowConnectionWindow = 64 << 10
	wideWindows            = 256       // of all sandboxes
	wideWindowsOfOne       = 32        // sandbox
	maxFrameSize           = 16 << 10  // bytes: a connection keeps a buffer for the largest frame that has come
	maxSettle              = 256 << 10 // bytes of an unread body that are read before the stream is reset
	settleTime             = 500 * time.Millisecond
)

// Requests of HTTP/2 that a sandbox may reset soon after it sent them. A client that breaks
// off a page, or calls whose deadline is over, stays far below. (CVE-2023-44487: each costs the
// sender two frames, and the gateway a decision and a record.)
const (
	resetsAtOnce    = 500
	resetsPerSecond = 50
	soonReset       = time.Second
	maxResetters    = 1024 // sandboxes whose resets are counted apart
	manyResets      = "more requests were reset than a sandbox may: its HTTP/2 connections are told to go"
)

// http2Servers serves connections that speak HTTP/2 (RFC 9113), by ALPN or by
// prior knowledge. The library bounds what a client can queue: resets,
// CONTINUATION frames, settings and pings. It lets no connection be told to go
// but by the shutdown of its server, so that each has one of its own.
type http2Servers struct {
	idle, handshake time.Duration
	log             *log.Logger
	wide            *quota.Places // of connections whose clients may send much ahead

	mu   sync.Mutex
	open map[*http.Server]struct{}
}

func newHTTP2Servers(idle, handshake time.Duration, logger *slog.Logger) *http2Servers {
	return &http2Servers{
		idle: idle, handshake: handshake, log: slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
		wide: quota.New(wideWindows, wideWindowsOfOne), open: make(map[*http.Server]struct{}),
	}
}

// begin returns the servers of one connection; end forgets them.
func (m *http2Servers) begin(wide bool) (*http2.Server, *http.Server, error) {
	conf := &http2.Server{
		MaxConcurrentStreams:         maxStreams,
		MaxUploadBufferPerStream:     streamWindow,
		MaxUploadBufferPerConnection: connectionWindow,
		MaxReadFrameSize:             maxFrameSize,
		IdleTimeout:                  m.idle,
	}
	if !wide {
		conf.MaxUploadBufferPerStream, conf.MaxUploadBufferPerConnection = narrowStreamWindow, narrowConnectionWindow
	}
	base := &http.Server{MaxHeaderBytes: maxHeader, ReadHeaderTimeout: m.handshake, ErrorLog: m.log}
	if err := http2.ConfigureServer(base, conf); err != nil {
		return nil, nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.open[base] = struct{}{}
	return conf, base, nil
}

func (m *http2Servers) end(base *http.Server) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.open, base)
}

// goAway sends GOAWAY on a connection, which ends with the requests that it has.
func goAway(base *http.Server) { _ = base.Shutdown(context.Background()) } // it does not wait: the connection is not its own

// goAwayEvery is how often shutdown looks for connections that have begun since.
const goAwayEvery = 100 * time.Millisecond

// shutdown sends GOAWAY on all connections, and on those that were let in before and
// begin later, until over is closed.
func (m *http2Servers) shutdown(over <-chan struct{}) {
	tick := time.NewTicker(goAwayEvery)
	defer tick.Stop()
	for {
		m.goAwayAll()
		select {
		case <-over:
			return
		case <-tick.C:
		}
	}
}

func (m *http2Servers) goAwayAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for base := range m.open {
		goAway(base)
	}
}

// speaksHTTP2 tells what a connection that is being read has agreed on, or
// begins with. A plain one has been waited for until that is sure.
func speaksHTTP2(c net.Conn) bool {
	switch c := c.(type) {
	case *tls.Conn:
		return c.ConnectionState().NegotiatedProtocol == http2.NextProtoTLS
	case *connection:
		return c.SpeaksHTTP2()
	}
	return false
}

// serveHTTP2 returns when the connection has ended and its requests have too.
func (g *Gateway) serveHTTP2(ctx context.Context, c net.Conn, s *session) {
	id := s.identity.ID
	wide := g.h2.wide.Enter(id, id)
	if wide {
		defer g.h2.wide.Leave(id, id)
	}
	conf, base, err := g.h2.begin(wide)
	if err != nil {
		g.Logger.Error("HTTP/2 cannot be served", "error", err)
		_ = c.Close()
		return
	}
	defer g.h2.end(base)
	s.life.goAway.Store(new(func() { goAway(base) }))
	var open streams
	var told atomic.Bool // to go, for requests that it has reset
	heard := watchConn(c)
	defer func() {
		if open.wait() == 0 && !heard.gone() && !g.ending() {
			g.silent(s, noRequest)
		}
	}()
	conf.ServeConn(heard.conn(), &http2.ServeConnOpts{
		Context:    ctx,
		BaseConfig: base,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !open.begin() {
				panic(http.ErrAbortHandler) // the connection has ended meanwhile
			}
			defer open.work.Done()
			// However many streams the sandbox has opened and left, few of its requests wait here.
			ok, last := g.enterStream(id)
			if last {
				w.Header().Set("Connection", "close") // goodbye: the connection may have come when all others were told
			}
			if !ok {
				g.refuseStream(w, r, s, &form.Error{Status: http.StatusTooManyRequests, Rule: "requests", Reason: "the sandbox has too many requests open"})
				return
			}
			defer g.leaveStream(id)
			a := arrival{heads: bodies.Heads{Of: g.bodies, ID: id}}
			defer a.heads.Release()
			if m := countHead(&a.heads, r); m != nil {
				g.refuseStream(w, r, s, m)
				return
			}
			// Nothing is made for a request before its turn: hundreds at once would wait for memory
			// to be collected, and another sandbox's request with them.
			a.turn = g.turns.Take(id)
			defer a.turn.End()
			begun := time.Now()
			defer func() { // not for requests that ended with their connection
				if r.Context().Err() != nil && time.Since(begun) < soonReset && ctx.Err() == nil && !heard.gone() && !g.resets.Allow(id) && told.CompareAndSwap(false, true) {
					goAway(base)
					g.unfinished(s.peer, s.target, "resets", manyResets)
				}
			}()
			// The library holds a body against the length that it could read, or against
			// 0, and resets the stream as soon as there is more of it: an answer would
			// come or not as it happens. So a request with a wrong length and a
			// body is reset each time, as RFC 9113, section 8.1.1, has it; one without a body is
			// answered.
			a.wrong = !form.Measured(r) && form.HasBody(r.Body)
			if r.Context().Err() != nil && !a.wrong {
				panic(http.ErrAbortHandler) // reset while it waited: nothing was decided and nothing has left
			}
			g.serveStream(w, r, s, &a)
		}),
	})
}

// streams are the requests of one connection.
type streams struct {
	mu    sync.Mutex // no work begins while it is waited for
	over  bool
	begun int
	work  sync.WaitGroup
}

func (s *streams) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over {
		s.begun++
		s.work.Add(1)
	}
	return !s.over
}

// wait returns how many there were.
func (s *streams) wait() int {
	s.mu.Lock()
	s.over = true
	s.mu.Unlock()
	s.work.Wait()
	return s.begun
}

// watchedConn is a connection that remembers whether its client ended it, which
// the library does not tell.
type watchedConn struct {
	net.Conn
	over atomic.Bool // we have ended it
	left atomic.Bool
}

func watchConn(c net.Conn) *watchedConn { return &watchedConn{Conn: c} }

func (l *watchedConn) Read(p []byte) (int, error) {
	n, err := l.Conn.Read(p)
	if err != nil && !errors.Is(err, net.ErrClosed) && tcp.ClientLeft(err) && !l.over.Load() {
		l.left.Store(true)
	}
	return n, err
}

// Close ends the connection. TLS says goodbye before it closes, and a client that
// answers at once is not one that left.
func (l *watchedConn) Close() error {
	l.over.Store(true)
	return l.Conn.Close()
}

func (l *watchedConn) gone() bool { return l.left.Load() }

// conn keeps what the library asks a connection of TLS for.
func (l *watchedConn) conn() net.Conn {
	if t, ok := l.Conn.(*tls.Conn); ok {
		return watchedTLS{l, t}
	}
	return l
}

type watchedTLS struct {
	*watchedConn
	tls *tls.Conn
}

func (s watchedTLS) ConnectionState() tls.ConnectionState { return s.tls.ConnectionState() }

// serveStream answers one request. One that is wrong about the length of its body is reset,
// and recorded.
func (g *Gateway) serveStream(w http.ResponseWriter, r *http.Request, s *session, a *arrival) {
	switch {
	case r.ContentLength == 0:
		r.Body = http.NoBody // or a transport would have to find out
	case waits(r.Body):
		r.Header["Expect"] = []string{"100-continue"}
	}
	ctx, cancel := context.WithCancel(r.Context()) // the library keeps its own
	defer cancel()
	if a.wrong {
		g.serve(ctx, cancel, discardWriter{}, r, s, a)
		panic(http.ErrAbortHandler)
	}
	g.serve(ctx, cancel, w, r, s, a)
	if len(r.Trailer) > 0 && r.Body != http.NoBody {
		settle(w, r.Body)
	}
}

// countHead counts the head of a request, as the reader of HTTP/1.1 does.
func countHead(heads *bodies.Heads, r *http.Request) *form.Error {
	fields, size := http1.Measure(r.Header)
	if fields > http1.MaxFields || len(r.Trailer) > http1.MaxTrailers {
		return &form.Error{Status: http.StatusRequestHeaderFieldsTooLarge, Rule: "request-form", Reason: http1.ErrFields.Error()}
	}
	if cost := http1.Cost(size+len(r.RequestURI), fields, http1.Keys(r.RequestURI)); cost > 0 && heads.Take(cost) != nil {
		return &form.Error{Status: http.StatusTooManyRequests, Rule: "request-form", Reason: http1.ErrBudget.Error()}
	}
	return nil
}

// refuseStream refuses a request that waits for no turn.
func (g *Gateway) refuseStream(w http.ResponseWriter, r *http.Request, s *session, m *form.Error) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	q := g.request(ctx, cancel, s, nil)
	q.form.seen = &policy.Request{Method: r.Method, Scheme: q.scheme(), Path: "/", Size: r.ContentLength}
	q.refuse(r, m).Write(w, r)
}

// discardWriter takes the answer to a stream that is reset.
type discardWriter struct{}

func (discardWriter) Header() http.Header         { return http.Header{} }
func (discardWriter) Write(p []byte) (int, error) { return len(p), nil }
func (discardWriter) WriteHeader(int)             {}

// settle waits for the end of a request that was answered early and has
// trailers: the library takes those for a new stream when the old one is over,
// and ends the connection for it.
func settle(w http.ResponseWriter, body io.Reader) {
	control := http.NewResponseController(w)
	if control.Flush() == nil && control.SetReadDeadline(time.Now().Add(settleTime)) == nil {
		_, _ = io.CopyN(io.Discard, body, maxSettle)
	}
}
