package inbound

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"time"

	"sallyport/gateway/access"
	"sallyport/gateway/tcp"
	"sallyport/policy"
)

// Loopback connects to programs that listen for nobody but their own sandbox: on
// 127.0.0.1 or ::1 as that has them. Data by such a connection is the sandbox's
// word, as by one to its address.
type Loopback interface {
	// Connect connects to a port that is exposed of a sandbox that runs. Its errors
	// are ErrNoListener, ErrLoopbackBusy, ErrLoopbackEarlier, or say that its agent
	// could not be asked.
	Connect(ctx context.Context, sandboxID string, port uint16) (net.Conn, error)
}

// Errors of Loopback to branch on.
var (
	ErrNoListener      = errors.New("nothing listens on that port of the sandbox")
	ErrLoopbackBusy    = errors.New("too many connections at once to what listens on the sandbox's loopback address only")
	ErrLoopbackEarlier = errors.New("nothing listens on that port of the sandbox's own address, and its agent is of an earlier version, which cannot look at the loopback address")
	errLoopback        = errors.New("nothing listens on that port of the sandbox's own address, and its agent, which can look at the loopback address, does not answer")
)

// reachFaults say why a port could not be reached.
var reachFaults = []error{ErrNoListener, ErrLoopbackBusy, ErrLoopbackEarlier, errLoopback}

// reach runs the sandbox and connects to the port, at the sandbox's own address or,
// where nobody listens at that, from inside.
func (q *request) reach(ctx context.Context) (net.Conn, error) {
	s := q.server
	who, address, err := s.wake(ctx, q.port)
	if errors.Is(err, errWakes) {
		return nil, errWakes
	}
	if err != nil || who.ID != q.port.SandboxID || !address.IsValid() {
		s.Logger.Warn("a sandbox could not be started for a request", "sandbox", q.port.Sandbox, "error", err)
		return nil, errAsleep
	}
	dialling, cancel := context.WithTimeout(ctx, reachWithin)
	defer cancel()
	c, err := s.Dial(dialling, q.port.SandboxID, netip.AddrPortFrom(address, q.port.Port))
	switch {
	case err == nil:
		tcp.SetStallTimeout(c, s.StallTimeout)
		return c, nil
	case s.Loopback == nil || !errors.Is(err, syscall.ECONNREFUSED):
		return nil, ErrNoListener
	}
	return q.loopback(ctx)
}

// loopback connects to the port from inside.
func (q *request) loopback(ctx context.Context) (net.Conn, error) {
	s, p := q.server, q.port
	if !s.loops.Enter(p.SandboxID, p.Owner) {
		return nil, ErrLoopbackBusy
	}
	defer s.loops.Leave(p.SandboxID, p.Owner)
	ctx, cancel := context.WithTimeout(ctx, 2*reachWithin) // the agent's own bound, and the way there
	defer cancel()
	c, err := s.Loopback.Connect(ctx, p.SandboxID, p.Port)
	if err == nil {
		return &tcp.StallConn{Conn: c, Stall: s.StallTimeout}, nil
	}
	for _, known := range reachFaults {
		if errors.Is(err, known) {
			return nil, known
		}
	}
	s.Logger.Warn("a port of a sandbox could not be reached from inside", "sandbox", p.Sandbox, "port", p.Port, "error", err)
	return nil, errLoopback
}

// woken is a sandbox that runs.
type woken struct {
	policy.Sandbox
	address netip.Addr
}

// wake runs a sandbox, once for all requests to it meanwhile. A sandbox that takes its
// time does not hold up others', nor do many of one owner.
func (s *Server) wake(ctx context.Context, p access.Port) (policy.Sandbox, netip.Addr, error) {
	id := p.SandboxID
	waking := s.waking.DoChan(id, func() (any, error) {
		ctx, over := context.WithTimeout(s.Life, wakeWithin)
		defer over()
		// It waits for others of its owner: an owner without a share left holds up nobody else.
		for !s.wakes.Enter(id, p.Owner) {
			select {
			case <-ctx.Done():
				return woken{}, errWakes
			case <-time.After(wakeLook):
			}
		}
		defer s.wakes.Leave(id, p.Owner)
		sandbox, address, err := s.Waker.Wake(ctx, id)
		return woken{sandbox, address}, err
	})
	select {
	case got := <-waking:
		w := got.Val.(woken)
		return w.Sandbox, w.address, got.Err
	case <-ctx.Done():
		return policy.Sandbox{}, netip.Addr{}, errAsleep
	}
}
