package retention

import (
	"context"
	"time"
)

// Turn does what is to be done now.
func (k *Keeper) Turn(ctx context.Context) (bool, error) { return k.turn(ctx) }

// At sets the Keeper's clock.
func (o Options) At(now func() time.Time) Options {
	o.now = now
	return o
}
