package daemon

import (
	"context"
	"sync"
)

// readings tell when a secret could be read again.
type readings struct {
	again chan struct{} // has room for one

	mu     sync.Mutex
	failed map[string]bool // by the credential's name
}

func newReadings() *readings {
	return &readings{again: make(chan struct{}, 1), failed: map[string]bool{}}
}

// note takes a read. It does not wait for what follows.
func (r *readings) note(name string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed[name] && err == nil {
		select {
		case r.again <- struct{}{}:
		default:
		}
	}
	r.failed[name] = err != nil
}

// followSecrets compares memories with secrets that they were not compared with: when the
// daemon begins, and when one can be read again.
func (d *daemon) followSecrets(ctx context.Context) error {
	for {
		d.memories.RecheckMissed(d.memoryOwners())
		select {
		case <-ctx.Done():
			return nil
		case <-d.readings.again:
		}
	}
}
