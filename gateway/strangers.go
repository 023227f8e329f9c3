package gateway

import (
	"net/netip"
	"slices"
	"sync"
)

// Bounds on connections to the explicit proxy whose client is not known yet.
// Each has the time of one head to say who it is.
const (
	maxStrangers        = 1024
	maxStrangersFromOne = 256 // address
)

// strangers counts those connections. The zero strangers has none.
type strangers struct {
	mu    sync.Mutex
	count int
	from  map[netip.Addr]int
}

// caller is a connection to the explicit proxy.
type caller struct {
	gateway *Gateway
	known   func() // gives a stranger's place back
	seats   []string
	line    line
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

// enter makes a place, or says that there is none. leave gives it back, once,
// however often it is called.
func (s *strangers) enter(from netip.Addr) (leave func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.count >= maxStrangers || s.from[from] >= maxStrangersFromOne {
		return nil, false
	}
	if s.from == nil {
		s.from = make(map[netip.Addr]int)
	}
	s.count++
	s.from[from]++
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.count--
		if s.from[from]--; s.from[from] == 0 {
			delete(s.from, from)
		}
	}), true
}
