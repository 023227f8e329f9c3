package sandbox

import (
	"errors"
	"fmt"
)

// ErrShare refuses an owner another sandbox.
var ErrShare = errors.New("this owner has as many sandboxes as it may")

// spare says whether an owner may have another sandbox.
func (m *Manager) spare(owner string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.full(owner)
}

// full is spare with m.mu held.
func (m *Manager) full(owner string) error {
	if most := m.opt.PerOwner; owner != "" && most > 0 && len(m.shares[owner]) >= most {
		return fmt.Errorf("%w: %d: remove some first", ErrShare, most)
	}
	return nil
}

// allot counts a sandbox that is about to be made as its owner's, if there is room
// for it. discard gives the room back.
func (m *Manager) allot(r record) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.full(r.Spec.Owner); err != nil {
		return err
	}
	m.count(r)
	return nil
}

// count counts a sandbox as its owner's. m.mu is held, or nobody else is there.
func (m *Manager) count(r record) {
	owner := r.Spec.Owner
	if m.shares[owner] == nil {
		m.shares[owner] = map[string]bool{}
	}
	m.shares[owner][r.ID] = true
}

// uncount is its end. m.mu is held. What was in the pool is discarded by a record
// that may be of nobody yet.
func (m *Manager) uncount(id string) {
	for owner, all := range m.shares {
		if delete(all, id); len(all) == 0 {
			delete(m.shares, owner)
		}
	}
}
