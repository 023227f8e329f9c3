// Package periodic calls a function again and again, and waits in between.
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

// Sleep waits for a time, and reports false if ctx was done before.
func Sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
