package gateway

import "slices"

// Bounds on connections to the explicit proxy whose client is not known yet, by the rule
// of package connlimit. Each has the time of one head to say who it is, and less of it
// where there are too many.
const (
	maxStrangers        = 1024
	maxStrangersFromOne = 256 // address
)

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
