// Package live holds the connections, tunnels and requests that the policy has allowed
// and that go on, and checks them again after each change of the policy.
//
// Each change of the policy starts a new epoch. Nothing is entered by a decision of an
// older epoch: the caller decides again. So nothing that an older policy has allowed
// slips in between a change and the check of what goes on.
package live

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// Grace is for how long a Revocable that is stopped may take to say goodbye.
const Grace = 400 * time.Millisecond

// Revocable is a connection, a tunnel or a request that goes on.
type Revocable interface {
	// Recheck says why it may not go on by the policy of now, or nil.
	Recheck(context.Context) *Revoked
	// Stop ends it as its protocol has it, and returns soon. It is called once.
	Stop(*Revoked)
	// Cut ends it if it has not ended a Grace after Stop.
	Cut()
}

// Set is all that goes on. It has no bound of its own: the connections and requests of
// a sandbox are counted elsewhere. The zero Set is empty. It is safe for concurrent use.
type Set struct {
	epoch atomic.Uint64 // written while mu is held

	mu       sync.Mutex
	first    *Handle
	count    int
	sweeping bool
}

// Handle is the place of a Revocable in a Set, and a part of the Revocable. The zero
// Handle has no place.
type Handle struct {
	of         Revocable // nil before it is entered
	next, prev *Handle

	revoked atomic.Pointer[Revoked] // why it ends; set once

	mu   sync.Mutex // held while it is ended or leaves
	over bool
}

// Revoked returns why the policy has ended it, or nil.
func (h *Handle) Revoked() *Revoked { return h.revoked.Load() }

// Epoch is one more than the number of the policy's changes so far: never 0.
func (s *Set) Epoch() uint64 { return s.epoch.Load() + 1 }

// Decide calls decide until its decision is by the policy of now, and enters the
// Revocable that it returns; a nil Handle: nothing is to enter, and that is all. The
// first decision is of the given epoch.
func (s *Set) Decide(epoch uint64, decide func() (*Handle, Revocable)) {
	for {
		h, of := decide()
		if h == nil || s.enter(h, of, epoch) {
			return
		}
		epoch = s.Epoch()
	}
}

// enter gives h its place, unless the epoch of the decision is over.
func (s *Set) enter(h *Handle, of Revocable, epoch uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Epoch() != epoch {
		return false
	}
	h.of, h.next = of, s.first
	if s.first != nil {
		s.first.prev = h
	}
	s.first = h
	s.count++
	return true
}

// Leave gives the place back. From then on nothing ends the Revocable.
func (s *Set) Leave(h *Handle) {
	if h.of == nil {
		return
	}
	h.mu.Lock()
	gone := h.over
	h.over = true
	h.mu.Unlock()
	if gone {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.prev != nil {
		h.prev.next = h.next
	} else {
		s.first = h.next
	}
	if h.next != nil {
		h.next.prev = h.prev
	}
	h.next, h.prev = nil, nil
	s.count--
}

// all lists the Set, with its epoch.
func (s *Set) all() (uint64, []*Handle) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*Handle, 0, s.count)
	for h := s.first; h != nil; h = h.next {
		list = append(list, h)
	}
	return s.epoch.Load(), list
}

// revoke ends the Revocable, once.
func (h *Handle) revoke(why *Revoked) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over || !h.revoked.CompareAndSwap(nil, why) {
		return false
	}
	h.of.Stop(why)
	time.AfterFunc(Grace, h.Cut)
	return true
}

// Cut cuts the Revocable, unless it has ended.
func (h *Handle) Cut() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.over {
		h.of.Cut()
	}
}

// Advance starts a new epoch, and tells whether the caller has to call Sweep: not while
// another Sweep goes on, and not where sweep is false.
func (s *Set) Advance(sweep bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.epoch.Add(1)
	begun := s.sweeping
	s.sweeping = sweep
	return sweep && !begun
}

// breath is how many are checked before others may have the processor.
const breath = 16

// Sweep checks all that goes on until there was no change meanwhile. It calls revoked
// for each Revocable that it ends, and ends itself when ctx is done.
func (s *Set) Sweep(ctx context.Context, revoked func()) {
	for {
		epoch, list := s.all()
		var crew errgroup.Group
		// Requests go on meanwhile: half of the processors are theirs.
		n := max(1, runtime.GOMAXPROCS(0)/2)
		for part := range slices.Chunk(list, max(1, (len(list)+n-1)/n)) {
			crew.Go(func() error { recheck(ctx, part, revoked); return nil })
		}
		_ = crew.Wait() // it has no errors
		s.mu.Lock()
		over := s.epoch.Load() == epoch
		s.sweeping = !over
		s.mu.Unlock()
		if over {
			return
		}
	}
}

func recheck(ctx context.Context, list []*Handle, revoked func()) {
	for i, h := range list {
		if i%breath == breath-1 {
			runtime.Gosched()
		}
		h.mu.Lock()
		over := h.over
		h.mu.Unlock()
		if over || h.revoked.Load() != nil {
			continue
		}
		why := h.of.Recheck(ctx)
		if ctx.Err() != nil {
			return // everything ends, and nothing can be decided
		}
		if why != nil && h.revoke(why) {
			revoked()
		}
	}
}
