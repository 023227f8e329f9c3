package http1

import (
	"context"
	"sync"
)

// life is the context of a connection's requests. One exchange with an upstream
// can wait for its end as with context.AfterFunc, which costs two allocations and
// a map's entry for each request; a connection has one exchange at a time.
type life struct {
	context.Context

	mu      sync.Mutex
	over    bool
	waiting *reply
}

type lifeKey struct{}

// newLife returns a life that ends with its parent, or when cancel is called.
func newLife(parent context.Context) (*life, context.CancelFunc) {
	ctx, cancel := context.WithCancel(parent)
	l := &life{Context: ctx}
	context.AfterFunc(ctx, l.end)
	return l, cancel
}

// lifeOf returns the life that ctx ends with, and not sooner, or nil.
func lifeOf(ctx context.Context) *life {
	l, ok := ctx.Value(lifeKey{}).(*life)
	if !ok || l.Done() != ctx.Done() {
		return nil
	}
	return l
}

// Value implements context.Context.
func (l *life) Value(key any) any {
	if key == (lifeKey{}) {
		return l
	}
	return l.Context.Value(key)
}

// join has x broken off at the end, unless that has come or another waits.
func (l *life) join(x *reply) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over || l.waiting != nil {
		return false
	}
	l.waiting = x
	return true
}

// leave takes that back, or tells that it is too late.
func (l *life) leave(x *reply) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting != x {
		return false
	}
	l.waiting = nil
	return true
}

func (l *life) end() {
	l.mu.Lock()
	x := l.waiting
	l.over, l.waiting = true, nil
	l.mu.Unlock()
	if x != nil {
		x.cancel()
	}
}
