package policy

import (
	"context"
	"time"
)

// lapseEvery is how soon it is noticed that observe mode has ended. It is looked
// at rather than waited for: a clock can be set.
const lapseEvery = 250 * time.Millisecond

// Watch calls what follows also when something is no longer in observe mode, as
// if the policy had changed, until ctx is done: what goes on because of it ends.
// Other rules that look at the clock are for what begins.
func (e *Engine) Watch(ctx context.Context) {
	var of *Policy
	left := 0
	t := time.NewTicker(lapseEvery)
	defer t.Stop()
	for {
		if p := e.current.Load(); p != nil {
			now := len(p.Observing(p.now()))
			if f := e.follows.Load(); p == of && now < left && f != nil {
				(*f)()
			}
			of, left = p, now
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

func (p *Policy) now() time.Time {
	if p.clock != nil {
		return p.clock()
	}
	return time.Now()
}
