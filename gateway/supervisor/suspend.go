package supervisor

import (
	"context"
	"net/netip"
	"time"

	"sallyport/gateway/workerapi"
	"sallyport/internal/ipc"
)

// suspendWithin bounds what the process may take to hold a sandbox's connections:
// a sandbox sleeps and wakes without it.
const suspendWithin = time.Second

// Sleep has the process hold the connections of a sandbox that still runs. It
// returns when they rest, or after a second: a process that fails, or is none,
// keeps no sandbox from sleeping.
func (s *Supervisor) Sleep(ctx context.Context, a netip.Addr) {
	s.suspend(ctx, a, workerapi.SuspendFreeze)
}

// Wake has it let go of them: the sandbox runs again.
func (s *Supervisor) Wake(a netip.Addr) { s.suspend(context.Background(), a, workerapi.SuspendThaw) }

// End has it reset them: the sandbox will not wake.
func (s *Supervisor) End(a netip.Addr) { s.suspend(context.Background(), a, workerapi.SuspendReset) }

func (s *Supervisor) suspend(ctx context.Context, a netip.Addr, to string) {
	peer := s.peer()
	if peer == nil {
		return // it holds nothing
	}
	ctx, cancel := context.WithTimeout(ctx, suspendWithin)
	defer cancel()
	if err := peer.Call(ctx, workerapi.MethodSuspend, workerapi.SuspendRequest{Address: a, To: to}, &ipc.None{}); err != nil {
		s.o.Logger.Warn("the gateway does not see to a sandbox's connections", "address", a, "to", to, "error", err)
	}
}
