// Package turn divides work among sandboxes: each has a number of turns at a time, and the
// rest of its work waits asleep. A sandbox that asks for thousands at once, or resets as
// many, does not fill the scheduler's queue in front of another's.
package turn

import (
	"runtime"
	"sync"
)

// OfOne is how many turns a sandbox has at a time, for each processor.
const OfOne = 16

// Set is the turns of all sandboxes. Make one with NewSet. It is safe for concurrent use.
type Set struct {
	most int

	mu sync.Mutex
	of map[string]*queue // by sandbox ID
}

// queue is the work of one sandbox.
type queue struct {
	slots chan struct{}
	users int // that have a slot or wait for one; guarded by Set.mu
}

// NewSet returns a Set in which nobody has a turn.
func NewSet() *Set { return &Set{most: OfOne * runtime.GOMAXPROCS(0), of: map[string]*queue{}} }

// Take waits for a turn of a sandbox's, also for a request that has been reset meanwhile:
// requests that a sandbox resets would otherwise all be worked on at once.
func (s *Set) Take(id string) Turn {
	s.mu.Lock()
	q := s.of[id]
	if q == nil {
		q = &queue{slots: make(chan struct{}, s.most)}
		s.of[id] = q
	}
	q.users++
	s.mu.Unlock()
	q.slots <- struct{}{}
	return Turn{s, q, id}
}

// Turn is one turn. The zero Turn is none.
type Turn struct {
	set   *Set
	queue *queue
	id    string
}

// End ends the turn. It may be called more than once.
func (t *Turn) End() {
	if t.set == nil {
		return
	}
	t.set.mu.Lock()
	defer t.set.mu.Unlock()
	<-t.queue.slots // which the caller has: this does not wait
	if t.queue.users--; t.queue.users == 0 {
		delete(t.set.of, t.id)
	}
	t.set = nil
}
