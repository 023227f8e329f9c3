package sandbox

import (
	"net/netip"
	"time"
)

// Connection is a TCP connection that a sandbox has opened to the gateway's listener, as this
// host's TCP saw it. Questions to the resolver over TCP are none: it carries nothing on.
type Connection struct {
	Sandbox, SandboxID string // empty: detached since
	Source             netip.AddrPort
	Destination        netip.AddrPort // as the sandbox dialled it
	// Opened is when the host answered the SYN, and Begun when it acknowledged the first
	// byte, by CLOCK_MONOTONIC, which stands still while the machine sleeps. Begun is 0
	// before that; a single byte counts only when the connection's end, or another byte, has
	// come too.
	Opened, Begun time.Duration
	// Sent and Got are bytes that the sandbox sent and got, by acknowledgements and sequence
	// numbers: what was sent twice, or refused, does not count. The end of what it sent
	// counts as a byte.
	Sent, Got uint64
	Packets   uint64 // to the sandbox, since its first
	Closed    bool   // the host has ended it, or its direction of it
}
