package gateway

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// underway holds what the policy has allowed and what goes on: connections that
// are read, tunnels, exchanges. What is in it is judged again after each change
// of the policy. Its bound is that of what it holds: connections and requests of
// a sandbox are counted elsewhere.
//
// What is decided and what is entered belong to a round, which a change begins.
// Whoever has decided in an earlier one than that in which it enters decides
// again, so that nothing that an older policy has allowed slips in between the
// change and the look at what there is.
type underway struct {
	round atomic.Uint64 // written while mu is held

	mu       sync.Mutex
	first    *entry
	count    int
	sweeping bool
}

// entry is a place among what is under way, a part of what has it.
type entry struct {
	of         carrier // nil before it is entered
	next, prev *entry

	revoked atomic.Pointer[revokedError] // what ends it; set once

	mu   sync.Mutex // held while it is ended or leaves
	over bool
}

// carrier is something that goes on.
type carrier interface {
	// judge says why it may not go on, or nil.
	judge(context.Context) *revokedError
	// stop ends it as its protocol has it, and returns soon. It is called once.
	stop(*revokedError)
	// cut ends what has not ended by then.
	cut()
}

// stopGrace is for how long what is stopped may take to say goodbye.
const stopGrace = 400 * time.Millisecond

// enter gives e its place, unless the round is over in which that was decided.
func (u *underway) enter(e *entry, of carrier, round uint64) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.round.Load() != round {
		return false
	}
	e.of, e.next = of, u.first
	if u.first != nil {
		u.first.prev = e
	}
	u.first = e
	u.count++
	return true
}

// leave gives the place back. From then on nobody ends what had it.
func (u *underway) leave(e *entry) {
	if e.of == nil {
		return
	}
	e.mu.Lock()
	gone := e.over
	e.over = true
	e.mu.Unlock()
	if gone {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if e.prev != nil {
		e.prev.next = e.next
	} else {
		u.first = e.next
	}
	if e.next != nil {
		e.next.prev = e.prev
	}
	e.next, e.prev = nil, nil
	u.count--
}

// all lists what there is, and the round that it is of.
func (u *underway) all() (uint64, []*entry) {
	u.mu.Lock()
	defer u.mu.Unlock()
	list := make([]*entry, 0, u.count)
	for e := u.first; e != nil; e = e.next {
		list = append(list, e)
	}
	return u.round.Load(), list
}

// revoke ends what has the place, once.
func (e *entry) revoke(why *revokedError) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.over || !e.revoked.CompareAndSwap(nil, why) {
		return false
	}
	e.of.stop(why)
	time.AfterFunc(stopGrace, e.cut)
	return true
}

func (e *entry) cut() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.over {
		e.of.cut()
	}
}

// Redecide judges all that is under way by the policy as it is now, and ends
// what that no longer allows, or allows with other credentials or by another way
// than it goes by. It returns at once; the Decider must decide by the new policy
// before it is called. A policy's changes are told by it (see
// [policy.Engine.Follow]).
func (g *Gateway) Redecide() {
	u := &g.underway
	g.mu.Lock()
	defer g.mu.Unlock()
	u.mu.Lock()
	u.round.Add(1)
	begun := u.sweeping
	u.sweeping = !g.closing
	u.mu.Unlock()
	g.holds.reconsider()
	if !begun && !g.closing {
		g.work.Go(g.sweep)
	}
}

// breath is how many are judged before others may have the processor.
const breath = 16

// sweep judges what is under way until there was no change meanwhile.
func (g *Gateway) sweep() {
	u := &g.underway
	for {
		round, list := u.all()
		var crew errgroup.Group
		// Requests go on meanwhile: half of the processors are theirs.
		n := max(1, runtime.GOMAXPROCS(0)/2)
		for part := range slices.Chunk(list, max(1, (len(list)+n-1)/n)) {
			crew.Go(func() error { g.review(part); return nil })
		}
		_ = crew.Wait() // which has no errors
		u.mu.Lock()
		over := u.round.Load() == round
		u.sweeping = !over
		u.mu.Unlock()
		if over {
			return
		}
	}
}

func (g *Gateway) review(list []*entry) {
	for i, e := range list {
		if i%breath == breath-1 {
			runtime.Gosched()
		}
		e.mu.Lock()
		over := e.over
		e.mu.Unlock()
		if over || e.revoked.Load() != nil {
			continue
		}
		why := e.of.judge(g.life)
		if g.life.Err() != nil {
			return // everything ends, and nothing can be decided
		}
		if why != nil && e.revoke(why) {
			g.metrics.revoked.Inc()
		}
	}
}
