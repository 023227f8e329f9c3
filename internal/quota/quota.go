// Package quota divides places among sandboxes and their owners, so that neither one
// sandbox nor one owner of many takes all of them. A caller that finds no place is
// refused at once: there is no queue that others could fill.
package quota

import "sync"

// Places are a number of places. A sandbox has at most its bound, an owner at most as many
// as are left for all others (half of all for one owner alone, a third for each of two).
// Places is safe for concurrent use.
type Places struct {
	most, ofOne, least int

	mu     sync.Mutex
	of     map[string]int // by sandbox
	owners map[string]int
	all    int
}

// New returns free places: most in all, ofOne for a sandbox.
func New(most, ofOne int) *Places {
	return &Places{most: most, ofOne: ofOne, of: map[string]int{}, owners: map[string]int{}}
}

// Least lets each sandbox have n places whatever others have taken, beyond the bound of
// all if need be: many sandboxes together cannot leave one without any. It returns p and
// must be called before any other method.
func (p *Places) Least(n int) *Places {
	p.least = n
	return p
}

// Enter takes a place for a sandbox, by its ID, of an owner, and reports whether there was
// one. The empty owner is an owner like any other. Call Leave afterwards.
func (p *Places) Enter(id, owner string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of[id] >= p.least && (p.owners[owner] >= p.most-p.all || p.of[id] >= p.ofOne) {
		return false
	}
	p.add(id, owner)
	return true
}

// Restore takes a place that was taken before a restart, whatever the bounds.
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

// Taken is the number of places taken, in all.
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
