package sandbox

import (
	"context"
	"net/netip"
)

// Flow is a TCP connection of a sandbox's, by its two ends.
type Flow struct {
	Sandbox netip.AddrPort `json:"sandbox"`
	Peer    netip.AddrPort `json:"peer"` // that it dialled, or that dialled it
}

// Gate holds the connections of sandboxes that sleep. None of its methods can keep
// a sandbox from sleeping or waking, so none fails, and each returns soon.
type Gate interface {
	// Sleep holds what goes to the sandbox, and returns what connections it has.
	// It is called while the sandbox still runs: what does not come to rest at
	// once is reset, which the sandbox is to see.
	Sleep(context.Context, netip.Addr) []Flow
	// Wake lets go. It is called when the sandbox runs again: a connection that
	// nobody here has any more is ended in the sandbox.
	Wake(netip.Addr, []Flow)
	// Flows lists the connections that a sandbox has now.
	Flows(netip.Addr) []Flow
	// End closes the connections of a sandbox that will not wake.
	End(netip.Addr)
}

// noGate is of a manager that has none.
type noGate struct{}

func (noGate) Sleep(context.Context, netip.Addr) []Flow { return nil }
func (noGate) Wake(netip.Addr, []Flow)                  {}
func (noGate) Flows(netip.Addr) []Flow                  { return nil }
func (noGate) End(netip.Addr)                           {}
