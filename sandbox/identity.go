package sandbox

import (
	"maps"
	"net/netip"
)

// publish replaces one identity in the table that the gateway reads. One that is
// offline is nobody to the gateway.
func (m *Manager) publish(a netip.Addr, i Info) {
	if i.Spec.Offline {
		i = Info{}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	next := maps.Clone(*m.identities.Load())
	if i.ID == "" {
		delete(next, a)
	} else {
		next[a] = i
	}
	m.identities.Store(&next)
	if m.opt.Publish != nil {
		m.opt.Publish(a, i)
	}
}

// Identities returns the running sandboxes by their addresses. It must not be
// changed.
func (m *Manager) Identities() map[netip.Addr]Info { return *m.identities.Load() }

// ByAddress returns the running sandbox that has an address. It does not block.
func (m *Manager) ByAddress(a netip.Addr) (Info, bool) {
	i, ok := (*m.identities.Load())[a]
	return i, ok
}
