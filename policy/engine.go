package policy

import (
	"context"
	"sync/atomic"
)

// Engine decides by the policy that was swapped in last. A decision is made by
// one policy from beginning to end. The zero Engine denies everything.
type Engine struct {
	current atomic.Pointer[Policy]
	earlier atomic.Uint64 // Recalled of those before

	follows atomic.Pointer[func()]
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
		e.earlier.Add(old.Recalled())
	}
	if f := e.follows.Load(); f != nil {
		(*f)()
	}
	return old
}

// Follow has f called at the end of each Swap, when the new policy decides: what
// goes on by the one before can be judged again. There is one f at a time.
func (e *Engine) Follow(f func()) { e.follows.Store(&f) }

// Recalled is [Policy.Recalled] of all that have decided.
func (e *Engine) Recalled() uint64 {
	n := e.earlier.Load()
	if p := e.current.Load(); p != nil {
		n += p.Recalled()
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
func (e *Engine) Decide(ctx context.Context, in Input) Decision {
	p := e.current.Load()
	if p == nil {
		return Decision{Action: Deny, RuleType: typeFloor, Reason: "no policy is loaded, so everything is denied", Err: ErrUndecided}
	}
	return p.Decide(ctx, in)
}

// Need forwards to the current policy: see [Policy.Need].
func (e *Engine) Need(in Input) Need {
	p := e.current.Load()
	if p == nil {
		return Need{}
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
