package gateway

import (
	"runtime"
	"sync"
)

// turnsOfOne is how many requests of a sandbox are decided about and written down at once,
// and how many of its TLS handshakes are under way, for each processor. The others wait
// asleep: a sandbox that asks for thousands at once, or resets as many, does not fill the
// scheduler's queue in front of another's.
const turnsOfOne = 16

// turns divides work among sandboxes. It is safe for concurrent use.
type turns struct {
	most int

	mu sync.Mutex
	of map[string]*queue // by sandbox ID
}

// queue is the work of one sandbox.
type queue struct {
	slots chan struct{}
	users int // that have a slot or wait for one; guarded by turns.mu
}

func newTurns() *turns {
	return &turns{most: turnsOfOne * runtime.GOMAXPROCS(0), of: map[string]*queue{}}
}

// take waits for a turn, also for a request that has been reset meanwhile: requests that
// a sandbox resets would otherwise all be worked on at once.
func (t *turns) take(id string) {
	t.mu.Lock()
	q := t.of[id]
	if q == nil {
		q = &queue{slots: make(chan struct{}, t.most)}
		t.of[id] = q
	}
	q.users++
	t.mu.Unlock()
	q.slots <- struct{}{}
}

// give ends a turn.
func (t *turns) give(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	q := t.of[id]
	<-q.slots // which the caller has: this does not wait
	if q.users--; q.users == 0 {
		delete(t.of, id)
	}
}

// turn is one that a request has, or not.
type turn struct {
	of *turns
	id string
}

// takeTurn waits for a turn.
func takeTurn(of *turns, id string) turn {
	of.take(id)
	return turn{of, id}
}

// end may be called more than once.
func (t *turn) end() {
	if t.of != nil {
		t.of.give(t.id)
		t.of = nil
	}
}
