package upstream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"sallyport/gateway/h1"
)

// transport carries requests over connections to one destination, and keeps
// those for the next request that can carry another. The one used last goes
// first, so that those that are too many grow old.
type transport struct {
	dial  func(context.Context) (*conn, error)
	tls   *tls.Config // nil for plain HTTP
	pool  *Options
	mu    sync.Mutex
	idle  []idle // the one used last at the end
	sweep *time.Timer
	// retired says that no connection is to be kept any more.
	retired bool
}

type idle struct {
	conn  *h1.ClientConn
	since time.Time
}

// RoundTrip sends a request on a connection of its own until the response's
// body has been closed. One that goes wrong on a kept connection, in a way that
// says that the server had closed it, is sent once more, on a new one.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	err := r.Context().Err()
	if err == nil {
		if c := t.take(); c != nil {
			resp, err := c.RoundTrip(r, nil)
			if err == nil || !errors.Is(err, h1.ErrStale) || !repeatable(r) {
				return resp, err
			}
		}
	}
	var c *h1.ClientConn
	if err == nil {
		c, err = t.open(r.Context())
	}
	if err != nil {
		if r.Body != nil {
			_ = r.Body.Close()
		}
		return nil, err
	}
	return c.RoundTrip(r, nil)
}

// repeatable tells whether a request may be sent again when nothing says whether
// it was received. RFC 9110, section 9.2.2, would also have PUT and DELETE; not
// all servers take a second one for the first.
func repeatable(r *http.Request) bool {
	if r.Body != nil && r.Body != http.NoBody {
		return false
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return true
	}
	return false
}

// open dials and shakes hands.
func (t *transport) open(ctx context.Context) (*h1.ClientConn, error) {
	raw, err := t.dial(ctx)
	if err != nil {
		return nil, err
	}
	o := h1.ClientOptions{MaxHead: maxResponseHeader, HeadTimeout: t.pool.HeaderTimeout, Done: t.done}
	o.Raw, _ = raw.SyscallConn() // fails on a closed connection, which fails by itself
	var c net.Conn = raw
	if t.tls != nil {
		secure := tls.Client(raw, t.tls)
		limited, cancel := context.WithTimeout(ctx, t.pool.HandshakeTimeout)
		defer cancel()
		if err := secure.HandshakeContext(limited); err != nil {
			_ = raw.Close()
			// The connection was closed under the handshake, which reports that.
			if limited.Err() != nil && !errors.Is(err, limited.Err()) {
				err = fmt.Errorf("%w: %w", limited.Err(), err)
			}
			return nil, err
		}
		c = secure
	}
	return h1.NewClientConn(c, o), nil
}

// take returns a connection that is alive, or nil.
func (t *transport) take() *h1.ClientConn {
	for {
		t.mu.Lock()
		n := len(t.idle)
		if n == 0 {
			t.mu.Unlock()
			return nil
		}
		c := t.idle[n-1].conn
		t.idle[n-1] = idle{}
		t.idle = t.idle[:n-1]
		t.mu.Unlock()
		if c.Alive() {
			return c
		}
		_ = c.Close()
	}
}

// done takes a connection back.
func (t *transport) done(c *h1.ClientConn, reusable bool) {
	if !reusable {
		return
	}
	t.mu.Lock()
	if t.retired || len(t.idle) >= maxIdle {
		t.mu.Unlock()
		_ = c.Close()
		return
	}
	defer t.mu.Unlock()
	t.idle = append(t.idle, idle{c, time.Now()})
	if t.sweep == nil {
		t.sweep = time.AfterFunc(t.pool.IdleTimeout, t.expire)
	}
}

// expire closes what has been idle for too long.
func (t *transport) expire() {
	var old []*h1.ClientConn
	defer func() { closeAll(old) }()
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.idle) > 0 && time.Since(t.idle[0].since) >= t.pool.IdleTimeout {
		old = append(old, t.idle[0].conn)
		t.idle[0] = idle{}
		t.idle = t.idle[1:]
	}
	t.sweep = nil
	if len(t.idle) > 0 {
		t.sweep = time.AfterFunc(t.pool.IdleTimeout-time.Since(t.idle[0].since), t.expire)
	}
}

// closeIdle closes what is idle now; retire also what would become so.
func (t *transport) closeIdle() { t.end(false) }
func (t *transport) retire()    { t.end(true) }

func (t *transport) end(forGood bool) {
	var all []*h1.ClientConn
	defer func() { closeAll(all) }()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.retired = t.retired || forGood
	for _, i := range t.idle {
		all = append(all, i.conn)
	}
	t.idle = nil
	if t.sweep != nil {
		t.sweep.Stop()
		t.sweep = nil
	}
}

func closeAll(conns []*h1.ClientConn) {
	for _, c := range conns {
		_ = c.Close()
	}
}
