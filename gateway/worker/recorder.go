package worker

import (
	"context"
	"fmt"
	"sync/atomic"

	"sallyport/audit"
	"sallyport/audit/auditlog"
)

// recorder is the audit log for the gateway. While the supervisor holds the data path, it
// records no decision to let something out, so that nothing leaves.
type recorder struct {
	*auditlog.Log
	held *atomic.Pointer[string]
}

func (r recorder) Append(ctx context.Context, events ...*audit.Event) error {
	if why := r.held.Load(); why != nil && *why != "" {
		for _, e := range events {
			if e.Unmapped.Sallyport.Kind == audit.KindDecision && e.Action == audit.ActionAllowed {
				return fmt.Errorf("%w: %s", auditlog.ErrHeld, *why)
			}
		}
	}
	return r.Log.Append(ctx, events...)
}
