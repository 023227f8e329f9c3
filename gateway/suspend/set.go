// Package suspend holds the connections of sandboxes that are suspended, in RAM or
// on disk: a sandbox resumes with its half of each connection and finds the other
// half as it was.
//
// While a sandbox is suspended nothing is sent to it: writes wait, so its upstreams
// have to wait too. Deadlines stand still and keep what was left of them. Close takes
// effect when the sandbox resumes. The kernel's own timeouts, keep-alive and
// TCP_USER_TIMEOUT, are switched off. Reads return what came before.
package suspend

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// restTime is for how long a connection may have bytes under way, in either
	// direction, before its sandbox is suspended without it.
	restTime = 100 * time.Millisecond
	restPoll = 2 * time.Millisecond
)

// Bounds of the connections that are held for suspended sandboxes. A suspended sandbox
// takes nothing else of the host, so only these bounds keep such sandboxes from taking
// the gateway's memory and files.
const (
	maxSuspendedOfOne = 128
	maxSuspended      = 4096 // of all
)

// Set is the connections of this host's sandboxes, by address. It is safe for
// concurrent use.
type Set struct {
	logger *slog.Logger

	mu     sync.Mutex
	groups map[netip.Addr]*group
}

// group is one sandbox's connections.
type group struct {
	suspended atomic.Bool

	// Guarded by Set.mu.
	resumed chan struct{} // closed when the sandbox resumes; nil while it runs
	conns   map[*Conn]struct{}
}

// NewSet returns a Set without connections.
func NewSet(logger *slog.Logger) *Set {
	return &Set{logger: logger, groups: make(map[netip.Addr]*group)}
}

// group returns a sandbox's. s.mu is held.
func (s *Set) group(a netip.Addr) *group {
	d := s.groups[a]
	if d == nil {
		d = &group{conns: make(map[*Conn]struct{})}
		s.groups[a] = d
	}
	return d
}

// sweep forgets an empty group of a sandbox that runs. s.mu is held.
func (s *Set) sweep(a netip.Addr) {
	if d := s.groups[a]; d != nil && len(d.conns) == 0 && !d.suspended.Load() {
		delete(s.groups, a)
	}
}

// Hold wraps a connection with the sandbox at a. It is reset where that is suspended
// and has no room for it.
func (s *Set) Hold(conn net.Conn, a netip.Addr) *Conn {
	s.mu.Lock()
	d := s.group(a)
	c := &Conn{Conn: conn, of: s, group: d, address: a}
	d.conns[c] = struct{}{}
	full := false
	if d.suspended.Load() {
		c.freeze()
		full = len(d.conns) > maxSuspendedOfOne
	}
	s.mu.Unlock()
	if full {
		c.reset()
	}
	return c
}

// remove forgets a closed connection.
func (s *Set) remove(c *Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(c.group.conns, c)
	s.sweep(c.address)
}

// list returns a group's connections.
func (s *Set) list(d *group) []*Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*Conn, 0, len(d.conns))
	for c := range d.conns {
		list = append(list, c)
	}
	return list
}

// Freeze holds the connections of the sandbox at a, which still runs, and returns when
// nothing is under way on them. It resets connections that are not at rest within
// 100 ms, and those beyond the bounds. It may be called again.
func (s *Set) Freeze(ctx context.Context, a netip.Addr) {
	s.mu.Lock()
	d := s.group(a)
	if !d.suspended.Swap(true) {
		d.resumed = make(chan struct{})
	}
	s.mu.Unlock()
	if surplus := s.surplus(d); len(surplus) > 0 {
		s.logger.Info("resetting connections of a sandbox that goes to sleep: more are not held", "sandbox", a, "connections", len(surplus))
		for _, c := range surplus {
			c.reset()
		}
	}
	busy := s.list(d)
	for _, c := range busy {
		c.freeze()
	}
	ctx, cancel := context.WithTimeout(ctx, restTime)
	defer cancel()
	for {
		left := busy[:0]
		for _, c := range busy {
			if !c.atRest() {
				left = append(left, c)
			}
		}
		if busy = left; len(left) == 0 {
			return
		}
		select {
		case <-ctx.Done():
			for _, c := range busy {
				if c.atRest() { // since the last look, which may be long ago on a busy machine
					continue
				}
				s.logger.Info("resetting a connection that does not come to rest before its sandbox sleeps", "sandbox", a, "peer", c.LocalAddr().String(),
					"unacknowledged", c.queued(unix.SIOCOUTQ), "unread", c.queued(unix.SIOCINQ), "writes", c.writes.Load())
				c.reset()
			}
			return
		case <-time.After(restPoll):
		}
	}
}

// Thaw lets go of the connections that Freeze holds. Connections that were closed
// meanwhile end now. So do those with bytes that the kernel has sent and would send
// again at a time of its own.
func (s *Set) Thaw(a netip.Addr) {
	s.resume(a, func(c *Conn) {
		if unsent := c.queued(unix.SIOCOUTQ); unsent > 0 {
			s.logger.Info("resetting a connection of a sandbox that woke: the kernel has sent what nobody took", "sandbox", a, "peer", c.LocalAddr().String(), "unacknowledged", unsent)
			c.reset()
			return
		}
		c.thaw()
	})
}

// Reset resets the connections of a sandbox that will not resume.
func (s *Set) Reset(a netip.Addr) { s.resume(a, (*Conn).reset) }

func (s *Set) resume(a netip.Addr, f func(*Conn)) {
	s.mu.Lock()
	d := s.groups[a]
	s.mu.Unlock()
	if d == nil {
		return
	}
	for _, c := range s.list(d) {
		f(c)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if d.suspended.Swap(false) {
		close(d.resumed)
		d.resumed = nil
	}
	for c := range d.conns {
		c.restart() // a connection that came in between was frozen
	}
	s.sweep(a)
}

// Close resets the connections of all suspended sandboxes: the process ends, and they
// would find nobody when they resume.
func (s *Set) Close() {
	s.mu.Lock()
	var all []netip.Addr
	for a, d := range s.groups {
		if d.suspended.Load() {
			all = append(all, a)
		}
	}
	s.mu.Unlock()
	for _, a := range all {
		s.Reset(a)
	}
}

// resumed returns a channel that is closed when the sandbox runs.
func (s *Set) resumed(d *group) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d.resumed == nil {
		return closed
	}
	return d.resumed
}

var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// surplus lists the connections of a group that is about to be held beyond the bounds.
// Map order picks which stay: nothing tells what they are worth to the sandbox.
func (s *Set) surplus(d *group) (list []*Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	left := maxSuspended
	for _, other := range s.groups {
		if other != d && other.suspended.Load() {
			left -= len(other.conns)
		}
	}
	left = min(max(left, 0), maxSuspendedOfOne)
	for c := range d.conns {
		if left--; left < 0 {
			list = append(list, c)
		}
	}
	return list
}
