package supervisor

import (
	"context"
	"net/netip"
	"time"

	"sallyport/gateway/workerapi"
	"sallyport/internal/ipc"
)

// suspendWithin bounds how long the worker may take to freeze a sandbox's connections: a
// sandbox sleeps and wakes without it.
const suspendWithin = time.Second

// Sleep has the worker freeze the connections of a sandbox that still runs. It returns
// when they are frozen, or after a second: a worker that fails, or none, keeps no sandbox
// from sleeping.
func (s *Supervisor) Sleep(ctx context.Context, a netip.Addr) {
	s.suspend(ctx, a, workerapi.SuspendFreeze)
}

// Wake has the worker thaw the connections of a sandbox, which runs again.
func (s *Supervisor) Wake(a netip.Addr) { s.suspend(context.Background(), a, workerapi.SuspendThaw) }

// End has the worker reset the connections of a sandbox, which will not wake.
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
