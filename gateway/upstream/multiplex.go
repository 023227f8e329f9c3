package upstream

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
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

// pingAfter is for how long an upstream may be silent on a connection that is
// used before it is asked whether it is there.
const pingAfter = keepAlivePeriod

// multiplexer holds the connections to one destination that speak HTTP/2. The
// library decides which requests may be sent again when an upstream says that it
// did not process them.
type multiplexer struct {
	transport *http2.Transport
	patience  time.Duration // with a response's header; 0 is without end

	mu      sync.Mutex
	conns   []*http2.ClientConn
	retired bool
}

func newMultiplexer(o *Options, plain bool) *multiplexer {
	m := &multiplexer{patience: o.HeaderTimeout}
	m.transport = &http2.Transport{
		ConnPool:           m,
		AllowHTTP:          plain,
		DisableCompression: true,
		MaxHeaderListSize:  maxResponseHeader,
		IdleConnTimeout:    o.IdleTimeout,
		ReadIdleTimeout:    pingAfter,
	}
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
	if m.patience == 0 {
		return m.transport.RoundTrip(traced(r))
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	late := time.AfterFunc(m.patience, func() { cancel(context.DeadlineExceeded) })
	resp, err := m.transport.RoundTrip(traced(r.WithContext(ctx)))
	if !late.Stop() && err == nil {
		_ = resp.Body.Close()
		err = context.DeadlineExceeded
	}
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		cancel(nil)
		return nil, err
	}
	resp.Body = &cancelling{resp.Body, cancel}
	return resp, nil
}

// cancelling ends a request's context with its response.
type cancelling struct {
	io.ReadCloser
	cancel context.CancelCauseFunc
}

func (c *cancelling) Close() error {
	defer c.cancel(nil)
	return c.ReadCloser.Close()
}

// traced passes 1xx responses on from a library that tells them to a trace.
func traced(r *http.Request) *http.Request {
	f := informational(r.Context())
	if f == nil {
		return r
	}
	var mu sync.Mutex
	return r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
		Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
			mu.Lock()
			defer mu.Unlock()
			if code != http.StatusContinue {
				f(code, http.Header(h))
			}
			return nil
		},
	}))
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
