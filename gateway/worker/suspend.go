package worker

import (
	"context"
	"fmt"

	"sallyport/gateway/workerapi"
	"sallyport/internal/ipc"
)

func (w *Worker) suspend(ctx context.Context, c workerapi.SuspendRequest) (ipc.None, error) {
	switch c.To {
	case workerapi.SuspendFreeze:
		w.gateway.Sleep(ctx, c.Address)
	case workerapi.SuspendThaw:
		w.gateway.Wake(c.Address)
	case workerapi.SuspendReset:
		w.gateway.End(c.Address)
	default:
		return ipc.None{}, fmt.Errorf("a sandbox cannot be told to %q", c.To)
	}
	return ipc.None{}, nil
}
