// Package connlimit bounds the connections to a listener that have not yet shown
// whose they are. Every listener of Sallyport follows the same rule.
//
// A new connection is never refused. Where there are too many, the one that has
// waited longest goes: of the same source if that source is at its own bound, else of
// the source that has most. Idle connections therefore keep nobody out. A client
// needs its place only until it has shown whose it is, which takes a few round trips,
// and a flood pays with its own connections first.
package connlimit

import (
	"container/list"
	"net"
	"net/netip"
	"sync"
	"time"
)

// quiet is how long no connection had to go before a flood is a new one.
const quiet = time.Minute

// Limit counts connections by source. It is safe for concurrent use.
type Limit struct {
	all, each int
	begins    func(source string)

	mu    sync.Mutex
	count int
	from  map[string]*list.List // of *place, the longest wait first
	last  time.Time             // that one had to go
}

type place struct {
	source string
	evict  func()
	at     *list.Element // nil once it has been given back
}

// New returns a Limit of all connections and of each source's. begins, which may be
// nil, is called with a source when the first connection in a minute has to go for it.
func New(all, each int, begins func(source string)) *Limit {
	return &Limit{all: all, each: each, begins: begins, from: map[string]*list.List{}}
}

// Enter makes a place for a connection. evict is called, once at most, when it has to
// go; it must not call the Limit. leave gives the place back, and may be called again.
func (l *Limit) Enter(source string, evict func()) (leave func()) {
	l.mu.Lock()
	gone := l.oldest(source)
	began := false
	if gone != nil {
		l.remove(gone)
		now := time.Now()
		began = now.Sub(l.last) > quiet
		l.last = now
	}
	own := l.from[source]
	if own == nil {
		own = list.New()
		l.from[source] = own
	}
	p := &place{source: source, evict: evict}
	p.at = own.PushBack(p)
	l.count++
	l.mu.Unlock()
	if began && l.begins != nil {
		l.begins(source)
	}
	if gone != nil {
		gone.evict()
	}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.remove(p)
	}
}

// oldest is the connection that makes room for one of a source, or nil. l.mu is held.
func (l *Limit) oldest(source string) *place {
	most := l.from[source]
	if most == nil || most.Len() < l.each {
		if l.count < l.all {
			return nil
		}
		most = nil
		for _, of := range l.from {
			if most == nil || of.Len() > most.Len() {
				most = of
			}
		}
	}
	return most.Front().Value.(*place)
}

// remove does nothing for a place that was given back. l.mu is held.
func (l *Limit) remove(p *place) {
	if p.at == nil {
		return
	}
	of := l.from[p.source]
	of.Remove(p.at)
	p.at = nil
	l.count--
	if of.Len() == 0 {
		delete(l.from, p.source)
	}
}

// Listener is ln with every connection in l until it is closed.
func (l *Limit) Listener(ln net.Listener) net.Listener { return listener{ln, l} }

type listener struct {
	net.Listener
	limit *Limit
}

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &conn{c, l.limit.Enter(Source(c.RemoteAddr()), func() { _ = c.Close() })}, nil
}

type conn struct {
	net.Conn
	leave func()
}

func (c *conn) Close() error {
	c.leave()
	return c.Conn.Close()
}

// Network returns the network whose connections are counted together: an IPv4 address, or
// the 64 bits of an IPv6 address, which one host commonly has to itself. Of an address that
// is none of TCP it returns the zero Prefix.
func Network(a net.Addr) netip.Prefix {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	ip, bits := t.AddrPort().Addr().Unmap().WithZone(""), 32
	if ip.Is6() {
		bits = 64
	}
	p, _ := ip.Prefix(bits)
	return p
}

// Source names the Network of an address: "203.0.113.9" or "2001:db8::/64", or "" for none.
func Source(a net.Addr) string {
	switch p := Network(a); {
	case !p.IsValid():
		return ""
	case p.IsSingleIP():
		return p.Addr().String()
	default:
		return p.String()
	}
}
