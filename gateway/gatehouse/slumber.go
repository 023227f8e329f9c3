package gatehouse

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"sallyport/internal/ipc"
)

// slumberWithin bounds what the process may take to hold a sandbox's connections:
// a sandbox sleeps and wakes without it.
const slumberWithin = time.Second

// SuspendRequest says what becomes of the sandbox at an address.
type SuspendRequest struct {
	Address netip.Addr
	To      string // sleep, wake or end
}

const (
	SuspendFreeze = "sleep"
	SuspendThaw   = "wake"
	SuspendReset  = "end"
)

// Sleep has the process hold the connections of a sandbox that still runs. It
// returns when they rest, or after a second: a process that fails, or is none,
// keeps no sandbox from sleeping.
func (w *Supervisor) Sleep(ctx context.Context, a netip.Addr) { w.slumber(ctx, a, SuspendFreeze) }

// Wake has it let go of them: the sandbox runs again.
func (w *Supervisor) Wake(a netip.Addr) { w.slumber(context.Background(), a, SuspendThaw) }

// End has it reset them: the sandbox will not wake.
func (w *Supervisor) End(a netip.Addr) { w.slumber(context.Background(), a, SuspendReset) }

func (w *Supervisor) slumber(ctx context.Context, a netip.Addr, to string) {
	peer := w.peer()
	if peer == nil {
		return // it holds nothing
	}
	ctx, cancel := context.WithTimeout(ctx, slumberWithin)
	defer cancel()
	if err := peer.Call(ctx, MethodSuspend, SuspendRequest{a, to}, &ipc.None{}); err != nil {
		w.o.Logger.Warn("the gateway does not see to a sandbox's connections", "address", a, "to", to, "error", err)
	}
}

func (in *Worker) slumber(ctx context.Context, c SuspendRequest) (ipc.None, error) {
	switch c.To {
	case SuspendFreeze:
		in.gateway.Sleep(ctx, c.Address)
	case SuspendThaw:
		in.gateway.Wake(c.Address)
	case SuspendReset:
		in.gateway.End(c.Address)
	default:
		return ipc.None{}, fmt.Errorf("a sandbox cannot be told to %q", c.To)
	}
	return ipc.None{}, nil
}
