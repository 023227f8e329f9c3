package gateway

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"

	"sallyport/gateway/tcp"
)

// Inside connects to programs that listen for nobody but their own sandbox: on
// 127.0.0.1 or ::1 as that has them. What comes by such a connection is the sandbox's
// word, as by one to its address.
type Inside interface {
	// Connect connects to a port that is exposed of a sandbox that runs. Its errors
	// are ErrNoListener, ErrInsideBusy, ErrInsideEarlier, or say that its agent
	// could not be asked.
	Connect(ctx context.Context, sandboxID string, port uint16) (net.Conn, error)
}

// Errors of Inside to branch on.
var (
	ErrNoListener    = errors.New("nothing listens on that port of the sandbox")
	ErrInsideBusy    = errors.New("too many connections at once to what listens on the sandbox's loopback address only")
	ErrInsideEarlier = errors.New("nothing listens on that port of the sandbox's own address, and its agent is of an earlier version, which cannot look at the loopback address")
	errInside        = errors.New("nothing listens on that port of the sandbox's own address, and its agent, which can look at the loopback address, does not answer")
)

// reachFaults say why a port could not be reached.
var reachFaults = []error{ErrNoListener, ErrInsideBusy, ErrInsideEarlier, errInside}

// Bounds of waits for a connection from inside: each is a call to the daemon, and takes
// as long as a sandbox's agent likes.
const (
	maxInside      = 128
	maxInsideOfOne = 32 // sandbox
)

// reach runs the sandbox and connects to the port, at the sandbox's own address or,
// where nobody listens at that, from inside.
func (v *inboundRequest) reach(ctx context.Context) (net.Conn, error) {
	who, err := v.gateway.wake(ctx, v.exposure)
	if errors.Is(err, errWakes) {
		return nil, errWakes
	}
	if err != nil || who.ID != v.exposure.SandboxID || !who.Address.IsValid() {
		v.gateway.logger.Warn("a sandbox could not be started for a request", "sandbox", v.exposure.Sandbox, "error", err)
		return nil, errAsleep
	}
	dialling, cancel := context.WithTimeout(ctx, reachWithin)
	defer cancel()
	c, err := v.gateway.inbound.dial(dialling, v.exposure.SandboxID, netip.AddrPortFrom(who.Address, v.exposure.Port))
	switch {
	case err == nil:
		tcp.SetStallTimeout(c, v.gateway.stall)
		return c, nil
	case v.gateway.inbound.inside == nil || !errors.Is(err, syscall.ECONNREFUSED):
		return nil, ErrNoListener
	}
	return v.inside(ctx)
}

// inside connects to the port from inside.
func (v *inboundRequest) inside(ctx context.Context) (net.Conn, error) {
	in, e := v.gateway.inbound, v.exposure
	if !in.insides.Enter(e.SandboxID, e.Owner) {
		return nil, ErrInsideBusy
	}
	defer in.insides.Leave(e.SandboxID, e.Owner)
	ctx, cancel := context.WithTimeout(ctx, 2*reachWithin) // the agent's own bound, and the way there
	defer cancel()
	c, err := in.inside.Connect(ctx, e.SandboxID, e.Port)
	if err == nil {
		return &tcp.StallConn{Conn: c, Stall: v.gateway.stall}, nil
	}
	for _, known := range reachFaults {
		if errors.Is(err, known) {
			return nil, known
		}
	}
	v.gateway.logger.Warn("a port of a sandbox could not be reached from inside", "sandbox", e.Sandbox, "port", e.Port, "error", err)
	return nil, errInside
}
