// Package periodic calls a function again and again.
package periodic

import (
	"context"
	"time"
)

// Run calls do now and then once in each period, until ctx is done. It returns nil.
func Run(ctx context.Context, period time.Duration, do func(now time.Time)) error {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for now := time.Now(); ; {
		do(now)
		select {
		case <-ctx.Done():
			return nil
		case now = <-tick.C:
		}
	}
}
