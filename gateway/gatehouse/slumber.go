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

// slumberCall says what becomes of the sandbox at an address.
type slumberCall struct {
	Address netip.Addr
	To      string // sleep, wake or end
}

const (
	toSleep = "sleep"
	toWake  = "wake"
	toEnd   = "end"
)

// Sleep has the process hold the connections of a sandbox that still runs. It
// returns when they rest, or after a second: a process that fails, or is none,
// keeps no sandbox from sleeping.
func (w *Warden) Sleep(ctx context.Context, a netip.Addr) { w.slumber(ctx, a, toSleep) }

// Wake has it let go of them: the sandbox runs again.
func (w *Warden) Wake(a netip.Addr) { w.slumber(context.Background(), a, toWake) }

// End has it reset them: the sandbox will not wake.
func (w *Warden) End(a netip.Addr) { w.slumber(context.Background(), a, toEnd) }

func (w *Warden) slumber(ctx context.Context, a netip.Addr, to string) {
	peer := w.peer()
	if peer == nil {
		return // it holds nothing
	}
	ctx, cancel := context.WithTimeout(ctx, slumberWithin)
	defer cancel()
	if err := peer.Call(ctx, callSlumber, slumberCall{a, to}, &ipc.None{}); err != nil {
		w.o.Logger.Warn("the gateway does not see to a sandbox's connections", "address", a, "to", to, "error", err)
	}
}

func (in *inside) slumber(ctx context.Context, c slumberCall) (ipc.None, error) {
	switch c.To {
	case toSleep:
		in.gate.Sleep(ctx, c.Address)
	case toWake:
		in.gate.Wake(c.Address)
	case toEnd:
		in.gate.End(c.Address)
	default:
		return ipc.None{}, fmt.Errorf("a sandbox cannot be told to %q", c.To)
	}
	return ipc.None{}, nil
}
