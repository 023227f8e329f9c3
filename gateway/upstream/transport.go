package upstream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/net/http2"

	"sallyport/gateway/http1"
	"sallyport/internal/quota"
)

// transport carries requests over connections to one destination, by HTTP/2
// where the upstream prefers that, and keeps the connections. Of those of
// HTTP/1.1 the one used last goes first, so that those that are too many grow
// old.
type transport struct {
	dial func(context.Context) (stream, error)
	near bool        // what is dialled is no proxy
	tls  *tls.Config // nil for plain HTTP
	pool *Options
	turn turn

	sandbox string
	windows *quota.Places
	multi   *multiplexer // of responses that have a wide window
	narrow  *multiplexer // of others

	mu    sync.Mutex
	proto protocol // of the connection opened last
	idle  []idle   // of HTTP/1.1, the one used last at the end
	sweep *time.Timer
	// retired says that no connection is to be kept any more.
	retired bool
}

type idle struct {
	conn  *http1.ClientConn
	since time.Time
}

// maxOpened bounds how many connections of HTTP/2 a request opens until one lets
// it in: an upstream may end each at once, or allow no requests.
const maxOpened = 4

var errCrowded = errors.New("no connection lets the request in")

// RoundTrip sends a request. A WebSocket's handshake needs a connection of
// HTTP/1.1 to itself; plain HTTP/2 is for those who begin it themselves.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	plain := t.tls == nil
	alone := len(r.Header["Upgrade"]) > 0 || plain && r.ProtoMajor != 2
	together := plain && !alone
	fresh := together // wants no connection that was kept
	again := maxOvertaken
	multi, used := t.narrow, false
	var ended func()
	if !alone && t.windows.Enter(t.sandbox, t.sandbox) {
		multi, ended = t.multi, func() { t.windows.Leave(t.sandbox, t.sandbox) }
		defer func() {
			if !used {
				ended()
			}
		}()
	}
	for opened := 0; opened < maxOpened; {
		if !alone {
			resp, err := multi.RoundTrip(r, nil, ended)
			switch {
			case errors.Is(err, errNone):
			case again > 0 && overtaken(err) && repeatable(r):
				again--
				continue
			default:
				used = err == nil
				return resp, err
			}
		}
		if !fresh {
			if c := t.take(); c != nil {
				resp, err := sendBy(c, r)
				if err == nil || !errors.Is(err, http1.ErrStale) || !repeatable(r) {
					return resp, err
				}
				fresh = true
			}
		}
		c, kept, err := t.more(r.Context(), multi, alone, together)
		switch {
		case err != nil:
			return nil, unsent(r, err)
		case c != nil:
			return sendBy(c, r)
		case kept != nil:
			opened++
			resp, err := multi.RoundTrip(r, kept, ended)
			if !errors.Is(err, errNone) {
				used = err == nil
				return resp, err
			}
		}
		// Another's turn has ended.
	}
	return nil, unsent(r, errCrowded)
}

// sendBy sends a request by a connection of HTTP/1.1.
func sendBy(c *http1.ClientConn, r *http.Request) (*http.Response, error) {
	reached(r.Context(), c.Remote)
	return c.RoundTrip(r, informational(r.Context()))
}

// maxOvertaken bounds how often a request is sent again after overtaken.
const maxOvertaken = 3

// overtaken tells whether an upstream took a request for one too many: its last
// response can arrive before it has counted that stream as over, and servers
// call the stream that comes next an error of protocol then.
func overtaken(err error) bool {
	var stream http2.StreamError
	return errors.As(err, &stream) && stream.Code == http2.ErrCodeProtocol
}

// unsent closes the body of a request that did not leave.
func unsent(r *http.Request, err error) error {
	if r.Body != nil {
		_ = r.Body.Close()
	}
	return err
}

// more opens a connection, one at a time while the upstream may speak HTTP/2:
// the others find a place on it. It returns nothing when another has opened one.
func (t *transport) more(ctx context.Context, multi *multiplexer, alone, together bool) (c *http1.ClientConn, kept *shared, err error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	t.mu.Lock()
	proto := t.proto
	t.mu.Unlock()
	if !alone && proto != http11 {
		end, failed := t.turn.take(ctx)
		if end == nil {
			return nil, nil, failed
		}
		defer func() { end(err) }()
	}
	return t.open(ctx, multi, alone, together)
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

// open dials and shakes hands. A connection of HTTP/2 is kept for all, and a
// place on it for who has opened it.
func (t *transport) open(ctx context.Context, multi *multiplexer, alone, together bool) (*http1.ClientConn, *shared, error) {
	raw, err := t.dial(ctx)
	if err != nil {
		return nil, nil, err
	}
	if t.tls == nil {
		if together {
			kept, err := multi.add(raw, t.remote(raw))
			return nil, kept, err
		}
		return t.single(raw, raw, nil), nil, nil
	}
	config := t.tls
	if alone {
		config = config.Clone()
		config.NextProtos = []string{"http/1.1"}
	}
	below := http1.NewTap(raw)
	secure := tls.Client(below, config)
	limited, cancel := context.WithTimeout(ctx, t.pool.HandshakeTimeout)
	defer cancel()
	if err := secure.HandshakeContext(limited); err != nil {
		_ = raw.Close()
		// The connection was closed under the handshake, which reports that.
		if limited.Err() != nil && !errors.Is(err, limited.Err()) {
			err = fmt.Errorf("%w: %w", limited.Err(), err)
		}
		return nil, nil, err
	}
	if secure.ConnectionState().NegotiatedProtocol == http2.NextProtoTLS {
		t.found(http20)
		kept, err := multi.add(secure, t.remote(raw))
		return nil, kept, err
	}
	if !alone {
		t.found(http11)
	}
	return t.single(secure, raw, below), nil, nil
}

func (t *transport) found(p protocol) {
	t.mu.Lock()
	t.proto = p
	t.mu.Unlock()
}

// single makes a connection of HTTP/1.1; raw is the socket below it, and tap
// what TLS reads from it by.
func (t *transport) single(c net.Conn, raw stream, tap *http1.Tap) *http1.ClientConn {
	o := http1.ClientOptions{Tap: tap, MaxHead: maxResponseHeader, HeadTimeout: t.pool.HeaderTimeout, Done: t.done}
	o.Raw, _ = raw.SyscallConn() // fails on a closed connection, which fails by itself
	cc := http1.NewClientConn(c, o)
	cc.Remote = t.remote(raw)
	return cc
}

// remote is the destination's address, the zero Addr where only a proxy knows it.
func (t *transport) remote(raw net.Conn) netip.Addr {
	if !t.near {
		return netip.Addr{}
	}
	return RemoteOf(raw)
}

// take returns a connection that is alive, or nil.
func (t *transport) take() *http1.ClientConn {
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
func (t *transport) done(c *http1.ClientConn, reusable bool) {
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
	var old []*http1.ClientConn
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
	t.multi.close(forGood)
	t.narrow.close(forGood)
	var all []*http1.ClientConn
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

func closeAll(conns []*http1.ClientConn) {
	for _, c := range conns {
		_ = c.Close()
	}
}
