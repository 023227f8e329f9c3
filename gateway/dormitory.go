package gateway

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
