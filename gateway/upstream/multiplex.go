package upstream

import (
	"context"
	"errors"

	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"time"

	"golang.org/x/net/http2"
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
	// streamWindow is how many bytes of a response an upstream may send ahead of
	// who reads it. That of the connection is no less than all its streams': one
	// that is not read leaves the others alone.
	streamWindow = 1 << 20
)

// multiplexer holds the connections to one destination that speak HTTP/2. The
// library decides which requests may be sent again when an upstream says that it
// did not process them.
type multiplexer struct {
	transport *http2.Transport

	mu      sync.Mutex
	conns   []*http2.ClientConn
	retired bool
}

// continueTimeout is how long a request that expects 100 (Continue) waits for it:
// an upstream may not know of that (RFC 9110, section 10.1.1).
const continueTimeout = time.Second

func newMultiplexer(o *Options, plain bool) *multiplexer {
	m := &multiplexer{}
	// It fails for a transport that is configured already; this one is there for
	// these settings only.
	t, _ := http2.ConfigureTransports(&http.Transport{
		DisableCompression:    true,
		ExpectContinueTimeout: continueTimeout,
		ResponseHeaderTimeout: o.HeaderTimeout,
		HTTP2:                 &http.HTTP2Config{MaxReceiveBufferPerStream: streamWindow},
	})
	t.ConnPool = m
	t.AllowHTTP = plain
	t.MaxHeaderListSize = maxResponseHeader
	t.IdleConnTimeout = o.IdleTimeout
	t.ReadIdleTimeout = pingAfter
	m.transport = t
	return m
}

// errNone says that a connection has to be opened.
var errNone = errors.New("no connection to this destination has room")

// GetClientConn implements http2.ClientConnPool: a place on some connection.
func (m *multiplexer) GetClientConn(*http.Request, string) (*http2.ClientConn, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.conns {
		if c.ReserveNewRequest() {
			return c, nil
		}
	}
	return nil, errNone
}

// MarkDead implements http2.ClientConnPool.
func (m *multiplexer) MarkDead(dead *http2.ClientConn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, c := range m.conns {
		if c == dead {
			m.conns = append(m.conns[:i], m.conns[i+1:]...)
			return
		}
	}
}

// add takes over a connection on which nothing has been sent.
func (m *multiplexer) add(c net.Conn) error {
	cc, err := m.transport.NewClientConn(c)
	if err != nil {
		_ = c.Close()
		return err
	}
	m.mu.Lock()
	if m.retired {
		m.mu.Unlock()
		_ = cc.Close()
		return errClosed
	}
	m.conns = append(m.conns, cc)
	m.mu.Unlock()
	return nil
}

// close closes what carries nothing; retire also what will carry no more, after
// its last response.
func (m *multiplexer) close(retire bool) {
	m.mu.Lock()
	m.retired = m.retired || retire
	var idle []*http2.ClientConn
	kept := m.conns[:0]
	for _, c := range m.conns {
		s := c.State()
		switch {
		case s.StreamsActive+s.StreamsReserved+s.StreamsPending == 0:
			idle = append(idle, c)
		case !retire:
			kept = append(kept, c)
		default:
			c.SetDoNotReuse()
		}
	}
	clear(m.conns[len(kept):])
	m.conns = kept
	m.mu.Unlock()
	for _, c := range idle {
		_ = c.Close()
	}
}

// informationalKey is the context's key for what wants to know of 1xx responses.
type informationalKey struct{}

// Informational is what a request's context answers for InformationalKey: a
// function that gets the 1xx responses that come before its response, except
// for 100 and 101. It is called before RoundTrip returns.
type Informational func(code int, h http.Header)

// InformationalKey is the key of an Informational.
var InformationalKey any = informationalKey{}

func informational(ctx context.Context) Informational {
	f, _ := ctx.Value(InformationalKey).(Informational)
	return f
}

// RoundTrip sends a request on a connection that has room, and returns errNone
// when there is none.
func (m *multiplexer) RoundTrip(r *http.Request) (*http.Response, error) {
	f := informational(r.Context())
	if f == nil {
		return m.roundTrip(r)
	}
	h := &herald{to: f}
	defer h.done.Wait()
	return m.roundTrip(r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{Got1xxResponse: h.got})))
}

func (m *multiplexer) roundTrip(r *http.Request) (*http.Response, error) {
	resp, err := m.transport.RoundTrip(r)
	if err == nil && (resp.StatusCode < 200 || resp.StatusCode > 999) {
		_ = resp.Body.Close()
		return nil, errStatus
	}
	return resp, err
}

var _ http2.ClientConnPool = (*multiplexer)(nil)

// turn lets one request at a time open a connection while it is not known that
// each needs one of its own. Who waited for one that failed fails with it: each
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
