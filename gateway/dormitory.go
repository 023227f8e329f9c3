package gateway

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// A sandbox that sleeps, in RAM or on disk, has its connections held for it: it
// wakes with its half of each, and finds the other as it was.
//
// While it sleeps nothing is sent to it: writes wait, and so an upstream has to.
// Deadlines stand still, and have what was left of them at the wake. To close is
// put off until then. The kernel's own patience is switched off: keep-alive, and
// TCP_USER_TIMEOUT. What is read is what came before.

const (
	// restTime is for how long a connection may have bytes under way, in either
	// direction, before a sandbox sleeps without it.
	restTime = 100 * time.Millisecond
	restPoll = 2 * time.Millisecond
)

// slumbers are the connections of this host's sandboxes, by address.
type slumbers struct {
	mu    sync.Mutex
	rooms map[netip.Addr]*dormitory
}

// dormitory is one sandbox's.
type dormitory struct {
	asleep atomic.Bool

	// Guarded by slumbers.mu.
	woken chan struct{} // closed by the wake; nil while awake
	conns map[*slumber]struct{}
}

func newSlumbers() *slumbers {
	return &slumbers{rooms: make(map[netip.Addr]*dormitory)}
}

// room returns a sandbox's. s.mu is held.
func (s *slumbers) room(a netip.Addr) *dormitory {
	d := s.rooms[a]
	if d == nil {
		d = &dormitory{conns: make(map[*slumber]struct{})}
		s.rooms[a] = d
	}
	return d
}

// sweep forgets a room that nobody is in. s.mu is held.
func (s *slumbers) sweep(a netip.Addr) {
	if d := s.rooms[a]; d != nil && len(d.conns) == 0 && !d.asleep.Load() {
		delete(s.rooms, a)
	}
}

// hold is c, held while the sandbox at a sleeps.
func (s *slumbers) hold(c net.Conn, a netip.Addr) *slumber {
	s.mu.Lock()
	d := s.room(a)
	n := &slumber{Conn: c, of: s, room: d, address: a}
	d.conns[n] = struct{}{}
	full := false
	if d.asleep.Load() {
		n.lull()
		full = len(d.conns) > maxAsleepOfOne
	}
	s.mu.Unlock()
	if full {
		n.reset()
	}
	return n
}

// leave forgets a connection that is closed.
func (s *slumbers) leave(n *slumber) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(n.room.conns, n)
	s.sweep(n.address)
}

// in lists a room's connections.
func (s *slumbers) in(d *dormitory) []*slumber {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*slumber, 0, len(d.conns))
	for n := range d.conns {
		list = append(list, n)
	}
	return list
}

// Sleep holds what goes to the sandbox at a, which still runs, and returns when
// nothing is under way on its connections: what has not come to rest in 100 ms is
// reset, and so is what is beyond the bounds of what is held. It may be called again.
func (g *Gateway) Sleep(ctx context.Context, a netip.Addr) {
	s := g.slumbers
	s.mu.Lock()
	d := s.room(a)
	if !d.asleep.Swap(true) {
		d.woken = make(chan struct{})
	}
	s.mu.Unlock()
	if surplus := s.surplus(d); len(surplus) > 0 {
		g.logger.Info("resetting connections of a sandbox that goes to sleep: more are not held", "sandbox", a, "connections", len(surplus))
		for _, n := range surplus {
			n.reset()
		}
	}
	restless := s.in(d)
	for _, n := range restless {
		n.lull()
	}
	ctx, cancel := context.WithTimeout(ctx, restTime)
	defer cancel()
	for {
		left := restless[:0]
		for _, n := range restless {
			if !n.rests() {
				left = append(left, n)
			}
		}
		if restless = left; len(left) == 0 {
			return
		}
		select {
		case <-ctx.Done():
			for _, n := range restless {
				g.logger.Info("resetting a connection that does not come to rest before its sandbox sleeps", "sandbox", a, "peer", n.LocalAddr().String(),
					"unacknowledged", n.queued(unix.SIOCOUTQ), "unread", n.queued(unix.SIOCINQ), "writes", n.writes.Load())
				n.reset()
			}
			return
		case <-time.After(restPoll):
		}
	}
}

// Wake lets go of what Sleep holds. What was closed meanwhile ends now, and so does
// what the kernel has sent and would send again at a time of its own.
func (g *Gateway) Wake(a netip.Addr) {
	g.slumbers.wake(a, func(n *slumber) {
		if unsent := n.queued(unix.SIOCOUTQ); unsent > 0 {
			g.logger.Info("resetting a connection of a sandbox that woke: the kernel has sent what nobody took", "sandbox", a, "peer", n.LocalAddr().String(), "unacknowledged", unsent)
			n.reset()
			return
		}
		n.rouse()
	})
}

// End resets the connections of a sandbox that will not wake.
func (g *Gateway) End(a netip.Addr) { g.slumbers.wake(a, (*slumber).reset) }

func (s *slumbers) wake(a netip.Addr, f func(*slumber)) {
	s.mu.Lock()
	d := s.rooms[a]
	s.mu.Unlock()
	if d == nil {
		return
	}
	for _, n := range s.in(d) {
		f(n)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if d.asleep.Swap(false) {
		close(d.woken)
		d.woken = nil
	}
	// Whoever came in between has been put to sleep, and sleeps no more.
	for n := range d.conns {
		n.rearm()
	}
	s.sweep(a)
}

// end is End for all that sleep: the process ends, and nobody is there at the wake.
func (s *slumbers) end() {
	s.mu.Lock()
	var all []netip.Addr
	for a, d := range s.rooms {
		if d.asleep.Load() {
			all = append(all, a)
		}
	}
	s.mu.Unlock()
	for _, a := range all {
		s.wake(a, (*slumber).reset)
	}
}

// gate is closed when the room is awake.
func (s *slumbers) gate(d *dormitory) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d.woken == nil {
		return ajar
	}
	return d.woken
}

var ajar = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// Bounds of the connections that are held for sandboxes that sleep. One that sleeps
// takes nothing else of the host, so that nothing but these bounds keeps sleeping
// sandboxes from taking the gateway's memory and files.
const (
	maxAsleepOfOne = 128
	maxAsleep      = 4096 // of all
)

// surplus is which of a room's connections, all of which are about to be held, are
// beyond the bounds. Those that came first in a map stay: nothing tells what they
// are worth to the sandbox.
func (s *slumbers) surplus(d *dormitory) (list []*slumber) {
	s.mu.Lock()
	defer s.mu.Unlock()
	left := maxAsleep
	for _, other := range s.rooms {
		if other != d && other.asleep.Load() {
			left -= len(other.conns)
		}
	}
	left = min(max(left, 0), maxAsleepOfOne)
	for n := range d.conns {
		if left--; left < 0 {
			list = append(list, n)
		}
	}
	return list
}
