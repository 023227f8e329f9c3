// Package quota divides places for what goes on at once, so that neither a sandbox nor
// an owner of many takes all of them from the others. Who finds none is refused at
// once: nobody stands in a queue that others fill.
package quota

import "sync"

// Places are a number of places: each sandbox has a bound, each owner no more than are
// left for all others (half of all for one alone, a third for each of two), and all
// have one. It is safe for concurrent use.
type Places struct {
	most, ofOne, least int

	mu     sync.Mutex
	of     map[string]int // by sandbox
	owners map[string]int
	all    int
}

// New returns places that nobody has: most in all, ofOne for a sandbox.
func New(most, ofOne int) *Places {
	return &Places{most: most, ofOne: ofOne, of: map[string]int{}, owners: map[string]int{}}
}

// Least lets each sandbox have n places whatever the others have taken, beyond the bound
// of all where need be: however many sandboxes work together, none is left with nothing.
// It returns p and is called before any other method.
func (p *Places) Least(n int) *Places {
	p.least = n
	return p
}

// Enter takes a place for a sandbox, by its ID, of an owner. The empty owner is one as
// any other. Who has entered leaves.
func (p *Places) Enter(id, owner string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of[id] >= p.least && (p.owners[owner] >= p.most-p.all || p.of[id] >= p.ofOne) {
		return false
	}
	p.add(id, owner)
	return true
}

// Restore takes a place that was taken before a restart, whatever there is room for.
func (p *Places) Restore(id, owner string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.add(id, owner)
}

// add takes a place. p.mu is held.
func (p *Places) add(id, owner string) {
	p.of[id]++
	p.owners[owner]++
	p.all++
}

// Leave gives a place back.
func (p *Places) Leave(id, owner string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all--
	less(p.of, id)
	less(p.owners, owner)
}

// Taken is how many places are taken, in all.
func (p *Places) Taken() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.all
}

func less(m map[string]int, key string) {
	if m[key]--; m[key] == 0 {
		delete(m, key)
	}
}
