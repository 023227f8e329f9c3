package manager

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"sallyport/internal/tmpfs"
	"sallyport/sandbox"
	"sallyport/sandbox/agent/channel"
	"sallyport/sandbox/state"
)

// entry is one sandbox. Its mutex is held while the sandbox changes state.
type entry struct {
	mu sync.Mutex
	state.Stored
	state  sandbox.State
	exists bool
	fresh  bool               // made and not started: its disk is attached until the next reconcile
	loose  bool               // it may have more memory than its spec says: see restoreMemoryLimit
	agent  *channel.Channel   // to the session's agent, nil until it is used
	lease  *tmpfs.Reservation // RAM that the holder of the lock has reserved; release gives it back
	// waitLine is done when the calls that wait for RAM for this sandbox may wait in vain;
	// endWait ends it. See awaitMemory.
	waitLine context.Context
	endWait  context.CancelFunc
	// freeing waits until the kernel has given back files that were removed.
	freeing sync.WaitGroup
	// shown is what listings say, also while mu is held for long; nil for a sandbox that
	// does not exist. release updates it.
	shown atomic.Pointer[sandbox.Info]
	// files ends what serves the files of a sandbox that cannot be started, and gives up
	// mu, which is held for that; nil otherwise.
	files atomic.Pointer[func()]

	busy atomic.Int32 // uses under way
	used atomic.Int64 // when the last use ended, in nanoseconds of Unix time
}

// release gives up an entry's lock, with the room in RAM that was reserved for it, and
// shows what the entry has become.
func (m *Manager) release(e *entry) {
	e.lease.Release()
	e.lease = nil
	var i *sandbox.Info
	if e.exists && e.Rec.Ready {
		now := m.info(e)
		i = &now
	}
	if was := e.shown.Swap(i); e.endWait != nil && changedSession(was, i) {
		e.endWait()
	}
	e.mu.Unlock()
}

// changedSession tells whether a sandbox has come, gone, or to another state or session.
func changedSession(was, is *sandbox.Info) bool {
	if was == nil || is == nil {
		return was != is
	}
	return was.State != is.State || was.Session != is.Session
}

// entry returns the entry of a name with its lock held; the caller unlocks it.
// The entry of a name that has none is made, to be dropped if nothing comes of it.
func (m *Manager) entry(name string) *entry {
	for {
		m.mu.Lock()
		e, ok := m.entries[name]
		if !ok {
			e = &entry{}
			m.entries[name] = e
		}
		m.mu.Unlock()
		e.mu.Lock()
		if m.holds(name, e) {
			return e
		}
		e.mu.Unlock() // dropped while we waited for its lock
	}
}

func (m *Manager) holds(name string, e *entry) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.entries[name] == e
}

// removeLater forgets an entry whose lock the caller holds.
func (m *Manager) forget(name string, e *entry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e.exists = false
	delete(m.entries, name)
}

// existing is entry for a sandbox that must be there, for the context's owner.
func (m *Manager) existing(ctx context.Context, name string) (*entry, error) {
	if err := sandbox.CheckName(name); err != nil {
		return nil, err
	}
	e := m.entry(name)
	if e.exists && e.Rec.Ready && visible(ctx, e.Rec.Spec) {
		return e, nil
	}
	none := notFound(name)
	if e.exists && e.Rec.Ready {
		none = hidden(ctx, sandbox.Info{Name: name, Spec: e.Rec.Spec})
	}
	if !e.exists {
		m.forget(name, e)
	}
	m.release(e)
	return nil, none
}

func notFound(name string) error {
	return fmt.Errorf("%w: %q: `sallyport sandbox ls` shows those there are, `sallyport run %s -- CMD` makes it", sandbox.ErrNotFound, name, name)
}

// known returns the entry of a name, or nil.
func (m *Manager) known(name string) *entry {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.entries[name]
}

// all are the entries that there are now, of names that are being made too.
func (m *Manager) all() []*entry {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.entries))
}

// withLocked does something to a sandbox, under its lock; verb is for the error. Where f
// writes or reads the sandbox's memory it has the room that need asks for.
func (m *Manager) withLocked(ctx context.Context, name, verb string, need memoryNeed, f func(*entry) error) (sandbox.Info, error) {
	e, err := m.lockWithMemory(ctx, name, verb, need)
	if err != nil {
		return sandbox.Info{}, err
	}
	defer m.release(e)
	if err := f(e); err != nil {
		return sandbox.Info{}, fmt.Errorf("%s sandbox %s: %w", verb, name, err)
	}
	return m.sized(m.info(e)), nil
}

// publish replaces one identity in the table that the gateway reads. One that is
// offline is nobody to the gateway.
func (m *Manager) publish(a netip.Addr, i sandbox.Info) {
	if i.Spec.Offline {
		i = sandbox.Info{}
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
func (m *Manager) Identities() map[netip.Addr]sandbox.Info { return *m.identities.Load() }

// ByAddress returns the running sandbox that has an address. It does not block.
func (m *Manager) ByAddress(a netip.Addr) (sandbox.Info, bool) {
	i, ok := (*m.identities.Load())[a]
	return i, ok
}
