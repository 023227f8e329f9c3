package suspend

import (
	"log/slog"
	"net"
	"net/netip"
	"testing"
)

// Connections held for sandboxes that sleep have bounds, for one of them and for all; a
// sandbox that is awake is not touched, and a connection to one that sleeps has no place
// besides.
func TestHeldConnections(t *testing.T) {
	s := NewSet(slog.New(slog.DiscardHandler))
	at := func(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 9, byte(n >> 8), byte(n)}) }
	come := func(n, many int) {
		for range many {
			near, far := net.Pipe()
			t.Cleanup(func() { near.Close(); far.Close() })
			s.Hold(near, at(n))
		}
	}
	has := func(n int) int {
		s.mu.Lock()
		defer s.mu.Unlock()
		if d := s.groups[at(n)]; d != nil {
			return len(d.conns)
		}
		return 0
	}
	come(1, 1000)
	come(2, 1000)
	s.Freeze(t.Context(), at(1))
	if one, two := has(1), has(2); one != maxSuspendedOfOne || two != 1000 {
		t.Errorf("%d and %d are held, want %d and 1000", one, two, maxSuspendedOfOne)
	}
	come(1, 3)
	if n := has(1); n != maxSuspendedOfOne {
		t.Errorf("it sleeps, and has %d", n)
	}
	all := has(1)
	for n := 3; n < 50; n++ {
		come(n, 100)
		s.Freeze(t.Context(), at(n))
		all += has(n)
	}
	if all != maxSuspended || has(49) != 0 {
		t.Errorf("%d are held of all, %d of the last, want %d and 0", all, has(49), maxSuspended)
	}
	s.Thaw(at(1))
	if n := has(1); n != maxSuspendedOfOne {
		t.Errorf("after its wake it has %d", n)
	}
	s.Freeze(t.Context(), at(49))
	come(50, 100)
	s.Freeze(t.Context(), at(50))
	if n := has(50); n != 100 {
		t.Errorf("there is room again, and %d are held", n)
	}
}
