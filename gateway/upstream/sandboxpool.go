package upstream

import (
	"crypto/x509"
	"errors"
	"net"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

var (
	errBusy   = errors.New("too many open connections")
	errClosed = errors.New("the sandbox is gone")
)

// sandboxPool holds the destinations and connections of one sandbox.
type sandboxPool struct {
	mu           sync.Mutex
	destinations *simplelru.LRU[key, *destination]
	conns        map[*conn]struct{}
	dialling     int // places taken by connections that are being opened
	closed       bool
}

func newSandboxPool() *sandboxPool {
	t := &sandboxPool{conns: map[*conn]struct{}{}}
	// The size is a positive constant, the only thing that can be wrong.
	t.destinations, _ = simplelru.NewLRU[key, *destination](maxDestinations, nil)
	return t
}

// lookup returns the destination, if it trusts the present content of its roots file.
func (t *sandboxPool) lookup(k key, roots *x509.CertPool) *destination {
	t.mu.Lock()
	defer t.mu.Unlock()
	if d, ok := t.destinations.Get(k); ok && d.roots == roots {
		return d
	}
	return nil
}

// store returns the destination to use: d, or the one that a concurrent caller stored.
func (t *sandboxPool) store(k key, d *destination) *destination {
	t.mu.Lock()
	old, ok := t.destinations.Get(k)
	if ok && old.roots == d.roots {
		t.mu.Unlock()
		return old
	}
	if !ok && t.destinations.Len() == maxDestinations {
		_, old, _ = t.destinations.RemoveOldest()
	}
	t.destinations.Add(k, d)
	t.mu.Unlock()
	if old != nil {
		old.transport.retire()
	}
	return d
}

// reserve takes a place for a connection, and closes idle ones if there is none.
func (t *sandboxPool) reserve() error {
	for idleClosed := false; ; idleClosed = true {
		t.mu.Lock()
		if t.closed {
			t.mu.Unlock()
			return errClosed
		}
		if len(t.conns)+t.dialling < maxConns {
			t.dialling++
			t.mu.Unlock()
			return nil
		}
		all := t.destinations.Values()
		t.mu.Unlock()
		if idleClosed {
			return errBusy
		}
		for _, d := range all {
			d.transport.closeIdle()
		}
	}
}

// opened gives the place to the connection that was opened, or back if there is none.
func (t *sandboxPool) opened(c *net.TCPConn) (*conn, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dialling--
	if c == nil {
		return nil, nil
	}
	if t.closed {
		return nil, errors.Join(errClosed, c.Close())
	}
	own := &conn{TCPConn: c, pool: t}
	t.conns[own] = struct{}{}
	return own, nil
}

// retire asks about each route without the lock, so that requests can go on.
func (t *sandboxPool) retire(gone func(Route) bool) {
	t.mu.Lock()
	all := t.destinations.Values()
	t.mu.Unlock()
	for _, d := range all {
		if !gone(d.route) {
			continue
		}
		t.mu.Lock()
		k := keyOf(d.route)
		if now, ok := t.destinations.Peek(k); ok && now == d {
			t.destinations.Remove(k)
		}
		t.mu.Unlock()
		d.transport.retire()
	}
}

func (t *sandboxPool) close() {
	t.mu.Lock()
	t.closed = true
	conns := make([]*conn, 0, len(t.conns))
	for c := range t.conns {
		conns = append(conns, c)
	}
	destinations := t.destinations.Values()
	t.destinations.Purge()
	t.mu.Unlock()
	for _, c := range conns {
		c.Close()
	}
	for _, d := range destinations {
		d.transport.retire()
	}
}

// conn leaves its pool when it is closed. It embeds the TCP connection so that tunnels can
// use splice(2).
type conn struct {
	*net.TCPConn
	pool *sandboxPool
}

func (c *conn) Close() error {
	c.pool.mu.Lock()
	delete(c.pool.conns, c)
	c.pool.mu.Unlock()
	return c.TCPConn.Close()
}
