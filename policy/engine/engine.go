// Package engine decides: it compiles a document and a team's Rego into a [Policy], and
// evaluates decision.rego over the rules that match an input.
//
// It guarantees that a decision is made by one policy from beginning to end, that an
// evaluation that fails, takes too long or has a malformed answer denies, and that a
// credential goes only where an egressAuth rule binds it, over TLS. A decision takes as long
// with ten thousand rules as with ten. decision.rego has the order of precedence; floor.go has
// what no policy can allow.
package engine

import (
	"context"
	"sync/atomic"
	"time"

	"sallyport/internal/periodic"
	"sallyport/policy"
)

// Engine decides by the policy that was swapped in last. A decision is made by
// one policy from beginning to end. The zero Engine denies everything.
type Engine struct {
	current     atomic.Pointer[Policy]
	earlierHits atomic.Uint64 // CacheHits of the policies before

	onSwap atomic.Pointer[func()]
}

// NewEngine returns an Engine that decides by p.
func NewEngine(p *Policy) *Engine {
	e := &Engine{}
	e.current.Store(p)
	return e
}

// Swap makes p decide from now on and returns what did before.
func (e *Engine) Swap(p *Policy) *Policy {
	old := e.current.Swap(p)
	if old != nil {
		e.earlierHits.Add(old.CacheHits())
	}
	if f := e.onSwap.Load(); f != nil {
		(*f)()
	}
	return old
}

// OnSwap has f called at the end of each Swap, when the new policy decides already: f can have
// what goes on under the old policy decided again. There is one f at a time.
func (e *Engine) OnSwap(f func()) { e.onSwap.Store(&f) }

// CacheHits is [Policy.CacheHits] of all policies that have decided.
func (e *Engine) CacheHits() uint64 {
	n := e.earlierHits.Load()
	if p := e.current.Load(); p != nil {
		n += p.CacheHits()
	}
	return n
}

// Revision is that of the policy that decides now, empty where there is none.
func (e *Engine) Revision() string {
	if p := e.current.Load(); p != nil {
		return p.Revision()
	}
	return ""
}

// Policy returns the policy that decides now, or nil.
func (e *Engine) Policy() *Policy { return e.current.Load() }

// Decide forwards to the current policy.
func (e *Engine) Decide(ctx context.Context, in policy.Input) policy.Decision {
	p := e.current.Load()
	if p == nil {
		return policy.Decision{Action: policy.Deny, RuleType: policy.TypeFloor, Reason: "no policy is loaded, so everything is denied", Err: ErrUndecided}
	}
	return p.Decide(ctx, in)
}

// Need forwards to the current policy: see [Policy.Need].
func (e *Engine) Need(in policy.Input) policy.Need {
	p := e.current.Load()
	if p == nil {
		return policy.Need{}
	}
	return p.Need(in)
}

// Bound forwards to the current policy: see [Policy.Bound].
func (e *Engine) Bound(credential, host string, port uint16) bool {
	p := e.current.Load()
	return p != nil && p.Bound(credential, host, port)
}

// AllowsShort forwards to the current policy: see [Policy.AllowsShort].
func (e *Engine) AllowsShort(credential, field string) bool {
	p := e.current.Load()
	return p != nil && p.AllowsShort(credential, field)
}

// PerSandbox forwards to the current policy: see [Policy.PerSandbox].
func (e *Engine) PerSandbox(credential string) bool {
	p := e.current.Load()
	return p != nil && p.PerSandbox(credential)
}

// expiryInterval is how soon the end of observe mode is noticed. A timer for the end would
// miss a clock that is set.
const expiryInterval = 250 * time.Millisecond

// WatchExpiry calls the function of OnSwap also when observe mode ends for something, as if
// the policy had changed, until ctx is done. Other rules that read the clock bind only what
// begins later.
func (e *Engine) WatchExpiry(ctx context.Context) {
	var of *Policy
	left := 0
	_ = periodic.Run(ctx, expiryInterval, func(time.Time) {
		p := e.current.Load()
		if p == nil {
			return
		}
		now := len(p.Observing(p.now()))
		if f := e.onSwap.Load(); p == of && now < left && f != nil {
			(*f)()
		}
		of, left = p, now
	})
}

func (p *Policy) now() time.Time {
	if p.clock != nil {
		return p.clock()
	}
	return time.Now()
}
