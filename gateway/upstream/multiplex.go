package upstream

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/http2"

	"sallyport/gateway/http1"
)

// protocol is what a destination was found to speak.
type protocol uint8

const (
	unknownProtocol protocol = iota
	http11
	http20
)

// Bounds of a connection that speaks HTTP/2.
const (
	// pingAfter is for how long an upstream may be silent before it is asked
	// whether it is there. Servers of gRPC end a connection that asks more often
	// than every five minutes; TCP's own keep-alive finds a lost peer sooner
	// unless something is on its way to it.
	pingAfter = 6 * time.Minute
	// writeTimeout is for how long an upstream may take nothing off a connection.
	// One that only cannot take more of a body says so, and takes the rest.
	writeTimeout = time.Minute
	// streamWindow is how many bytes of a response an upstream may send ahead of
	// who reads it. That of the connection is no less than all its streams': one
	// that is not read leaves the others alone.
	streamWindow = 1 << 20
	// narrowWindow is that of a response for which its sandbox has no wide window left: so
	// bounded is what responses that nobody reads take of the gateway's memory.
	narrowWindow     = 64 << 10
	wideWindows      = 384 // of all sandboxes
	wideWindowsOfOne = 160 // sandbox: more than a connection of a client has requests at once
	// continueTimeout is how long a request that expects 100 (Continue) waits for
	// it: an upstream may not know of that (RFC 9110, section 10.1.1).
	continueTimeout = time.Second
)

// multiplexer holds the connections to one destination that speak HTTP/2. The
// library decides which requests may be sent again when an upstream says that it
// did not process them.
type multiplexer struct {
	transport *http2.Transport

	idle time.Duration // an unused connection is closed after it

	mu      sync.Mutex
	conns   []*shared
	retired bool
}

// shared is a connection, and how many requests are under way on it. The library can be
// asked about that only while nobody writes to the connection.
type shared struct {
	*http2.ClientConn
	remote netip.Addr
	trips  int
	since  time.Time   // when the last one ended, if there is none
	sweep  *time.Timer // nil when it is not going to look
}

func newMultiplexer(o *Options, plain bool, window int) *multiplexer {
	m := &multiplexer{idle: o.IdleTimeout}
	// It fails for a transport that is configured already; this one is there for
	// these settings only.
	t, _ := http2.ConfigureTransports(&http.Transport{
		DisableCompression:    true,
		ExpectContinueTimeout: continueTimeout,
		ResponseHeaderTimeout: o.HeaderTimeout,
		HTTP2:                 &http.HTTP2Config{MaxReceiveBufferPerStream: window},
	})
	t.ConnPool = m
	t.AllowHTTP = plain
	t.MaxHeaderListSize = maxResponseHeader
	t.IdleConnTimeout = o.IdleTimeout
	t.ReadIdleTimeout = pingAfter
	t.WriteByteTimeout = writeTimeout
	m.transport = t
	return m
}

// errNone says that a connection has to be opened.
var errNone = errors.New("no connection to this destination has room")

// errStatus is a response that HTTP/1.1 could not have.
var errStatus = errors.New("a response whose status is not of three digits")

// RoundTrip sends a request on a connection that has room, or on the one whose
// place is kept for it. It returns errNone when there is no room, and has not
// touched the body then.
//
// ended is called when the response's body has ended, unless there is an error.
func (m *multiplexer) RoundTrip(r *http.Request, kept *shared, ended func()) (*http.Response, error) {
	if kept == nil && m.none() {
		return nil, errNone
	}
	t := &h2Request{Context: r.Context(), multiplexer: m, kept: kept}
	resp, err := m.transport.RoundTrip(t.request(r))
	t.hints.done.Wait()
	if err == nil {
		if resp.StatusCode < 200 || resp.StatusCode > 999 {
			err = errStatus
		} else if err = http1.Charge(t.Context, resp.Header, http1.MaxFields); err == nil {
			err = http1.Charge(t.Context, resp.Trailer, http1.MaxTrailers)
		}
		if err != nil {
			_ = resp.Body.Close()
		}
	}
	if err != nil {
		if t.end(); !errors.Is(err, errNone) {
			_ = unsent(r, nil)
		}
		return nil, err
	}
	t.ReadCloser, t.trailer = resp.Body, &resp.Trailer
	if resp.StatusCode == http.StatusNoContent || resp.StatusCode == http.StatusNotModified {
		t.ReadCloser = bodiless{resp.Body}
	}
	t.ended = ended
	resp.Body = t
	return resp, nil
}

// none tells whether there is no connection at all, as with an upstream that
// speaks HTTP/1.1 only.
func (m *multiplexer) none() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.conns) == 0
}

// GetClientConn implements http2.ClientConnPool: a place on some connection.
func (m *multiplexer) GetClientConn(r *http.Request, _ string) (*http2.ClientConn, error) {
	t, ok := r.Context().Value(h2RequestKey{}).(*h2Request)
	if !ok {
		return nil, errNone
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.leave(t)
	if t.conn, t.kept = t.kept, nil; t.conn != nil {
		reached(t.Context, t.conn.remote)
		return t.conn.ClientConn, nil
	}
	for _, c := range m.conns {
		if c.ReserveNewRequest() {
			c.trips++
			t.conn = c
			reached(t.Context, c.remote)
			return c.ClientConn, nil
		}
	}
	return nil, errNone
}

// leave gives a trip's place back. m.mu is held.
func (m *multiplexer) leave(t *h2Request) {
	c := t.conn
	if c == nil {
		return
	}
	t.conn = nil
	if c.trips--; c.trips > 0 {
		return
	}
	c.since = time.Now()
	if c.sweep == nil {
		c.sweep = time.AfterFunc(m.idle, func() { m.sweep(c) })
	}
}

// sweep closes a connection that has long carried nothing. The library does so
// too, but its timer rings once: when a request has a place then and is given up
// before it begins, the connection would stay for good.
func (m *multiplexer) sweep(c *shared) {
	m.mu.Lock()
	if c.sweep == nil { // it was found dead when the timer had rung already
		m.mu.Unlock()
		return
	}
	if c.trips > 0 {
		c.sweep = nil // the last one to leave has it look again
		m.mu.Unlock()
		return
	}
	if left := m.idle - time.Since(c.since); left > 0 {
		c.sweep.Reset(left)
		m.mu.Unlock()
		return
	}
	m.conns = slices.DeleteFunc(m.conns, func(other *shared) bool { return other == c })
	m.mu.Unlock()
	_ = c.Close()
}

// MarkDead implements http2.ClientConnPool.
func (m *multiplexer) MarkDead(dead *http2.ClientConn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.conns = slices.DeleteFunc(m.conns, func(c *shared) bool {
		if c.ClientConn == dead && c.sweep != nil {
			c.sweep.Stop()
			c.sweep = nil
		}
		return c.ClientConn == dead
	})
}

// add takes over a connection on which nothing has been sent, and keeps a place
// on it for the request that has opened it: it would have to open another if
// those that waited took all.
func (m *multiplexer) add(c net.Conn, remote netip.Addr) (*shared, error) {
	cc, err := m.transport.NewClientConn(&greeting{Conn: c})
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	m.mu.Lock()
	if m.retired {
		m.mu.Unlock()
		_ = cc.Close()
		return nil, errClosed
	}
	defer m.mu.Unlock()
	cc.ReserveNewRequest() // it is new, or dead: who uses it finds out
	added := &shared{ClientConn: cc, remote: remote, trips: 1}
	m.conns = append(m.conns, added)
	return added, nil
}

// close closes what carries nothing; retire also what will carry no more, after
// its last response.
func (m *multiplexer) close(retire bool) {
	m.mu.Lock()
	m.retired = m.retired || retire
	var idle []*shared
	m.conns = slices.DeleteFunc(m.conns, func(c *shared) bool {
		switch {
		case c.trips == 0:
			idle = append(idle, c)
		case retire:
			c.SetDoNotReuse()
		default:
			return false
		}
		return true
	})
	for _, c := range idle {
		if c.sweep != nil {
			c.sweep.Stop()
		}
	}
	m.mu.Unlock()
	for _, c := range idle {
		_ = c.Close()
	}
}

var _ http2.ClientConnPool = (*multiplexer)(nil)

// turn lets one request at a time open a connection while it is not known that
// each needs one of its own. A request that waited for one that failed fails with it: each
// would wait for the same timeout, one after the other.
type turn struct {
	mu      sync.Mutex
	current *attempt // nil when nobody opens
}

type attempt struct {
	done chan struct{}
	err  error // readable when done is closed
}

// take returns a function to end the turn with. It returns nil after waiting
// for another's, with the error that this one met.
func (t *turn) take(ctx context.Context) (end func(error), err error) {
	t.mu.Lock()
	if other := t.current; other != nil {
		t.mu.Unlock()
		select {
		case <-other.done:
			if errors.Is(other.err, context.Canceled) {
				return nil, nil // whoever opened it went away
			}
			return nil, other.err
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	mine := &attempt{done: make(chan struct{})}
	t.current = mine
	t.mu.Unlock()
	return func(err error) {
		t.mu.Lock()
		t.current = nil
		t.mu.Unlock()
		mine.err = err
		close(mine.done)
	}, nil
}
