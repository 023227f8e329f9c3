package gateway

import (
	"container/list"
	"net"
	"net/netip"
	"slices"
	"sync"
)

// Bounds on connections to the explicit proxy whose client is not known yet.
// Each has the time of one head to say who it is, and less of it where there are
// too many: what has been silent for longest makes room for who comes.
const (
	maxStrangers        = 1024
	maxStrangersFromOne = 256 // address
)

// strangers has those connections. The zero strangers has none.
//
// A flood of them cannot keep a client out, neither one behind the same address
// (NAT has many behind one) nor one elsewhere: who says at once who it is needs
// its place for a round trip or three, and the flood would have to come that
// fast as a whole. It pays with its own connections first: those of the address
// that has most.
type strangers struct {
	mu    sync.Mutex
	count int
	from  map[netip.Addr]*list.List // of *stranger, the oldest first
}

// stranger is one of them.
type stranger struct {
	conn net.Conn
	from netip.Addr
	at   *list.Element // nil once it is known or gone
}

// enter makes a place for a connection. What had to make room for it is
// returned, for the caller to close. leave gives the place back, once, however
// often it is called.
func (s *strangers) enter(c net.Conn, from netip.Addr) (leave func(), evicted *stranger) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.from == nil {
		s.from = make(map[netip.Addr]*list.List)
	}
	if l := s.from[from]; l != nil && l.Len() >= maxStrangersFromOne {
		evicted = s.evict(l)
	} else if s.count >= maxStrangers {
		evicted = s.evict(s.crowd())
	}
	l := s.from[from]
	if l == nil {
		l = list.New()
		s.from[from] = l
	}
	x := &stranger{conn: c, from: from}
	x.at = l.PushBack(x)
	s.count++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.remove(x)
	}, evicted
}

// evict takes the oldest off a list that is not empty. s.mu is held.
func (s *strangers) evict(l *list.List) *stranger {
	x := l.Front().Value.(*stranger)
	s.remove(x)
	return x
}

// crowd is the list of the address that has most. s.mu is held.
func (s *strangers) crowd() (most *list.List) {
	for _, l := range s.from {
		if most == nil || l.Len() > most.Len() {
			most = l
		}
	}
	return most
}

// remove does nothing for one that is known or gone. s.mu is held.
func (s *strangers) remove(x *stranger) {
	if x.at == nil {
		return
	}
	l := s.from[x.from]
	l.Remove(x.at)
	x.at = nil
	s.count--
	if l.Len() == 0 {
		delete(s.from, x.from)
	}
}

// caller is a connection to the explicit proxy.
type caller struct {
	gateway *Gateway
	known   func() // gives a stranger's place back
	seats   []string
	flow    *flow // of the last request whose client was known, else of nobody
	line    line
}

// who is the connection as far as it is known, without where to.
func (c *caller) who() *flow {
	f := newFlow(c.flow.source)
	f.identity = c.flow.identity
	return f
}

// sit counts the connection among those of a client, once. It tells whether
// there was room.
func (c *caller) sit(id string) bool {
	c.known()
	if slices.Contains(c.seats, id) {
		return true
	}
	g := c.gateway
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.count[id] >= g.limit {
		return false
	}
	g.count[id]++
	c.seats = append(c.seats, id)
	return true
}

// end gives all places back.
func (c *caller) end() {
	c.known()
	c.line.cancel()
	g := c.gateway
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, id := range c.seats {
		if g.count[id]--; g.count[id] == 0 {
			delete(g.count, id)
		}
	}
}
