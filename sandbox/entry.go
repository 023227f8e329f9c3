package sandbox

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"sallyport/internal/tmpfs"
	"sallyport/sandbox/agent/channel"
)

// entry is one sandbox; its mutex is held while the sandbox changes state.
type entry struct {
	mu     sync.Mutex
	rec    record
	state  State
	exists bool
	told   string           // ID of the last event that is known to be in the log
	old    bool             // an earlier process has written rec
	fresh  bool             // made and not started: its disk is attached until the next settle
	loose  bool             // it may have more memory than its spec says: see confine
	agent  *channel.Channel // to the session's agent, nil until it is used
	room   *tmpfs.Lease     // of who has the lock, where it was reserved; release gives it back
	// line is of those who wait for room for it, done when it may be in vain that they
	// do; scatter has it be done. See await.
	line    context.Context
	scatter context.CancelFunc
	// freeing is for what the kernel gives back of files that have been removed.
	freeing sync.WaitGroup
	// shown is what listings say, also while mu is held for long; nil for a
	// sandbox that is not there. release brings it up to date.
	shown atomic.Pointer[Info]
	// files ends what serves its files while it cannot be started, and gives up mu, which
	// is held for that; nil while nothing does.
	files atomic.Pointer[func()]

	busy atomic.Int32 // uses that are under way
	used atomic.Int64 // when the last one ended, in nanoseconds of Unix time
}

// release gives up an entry's lock, with the room in RAM that was reserved for it, and
// shows what the entry has become.
func (m *Manager) release(e *entry) {
	e.room.Give()
	e.room = nil
	var i *Info
	if e.exists && e.rec.Ready {
		now := m.info(e)
		i = &now
	}
	if was := e.shown.Swap(i); e.scatter != nil && moved(was, i) {
		e.scatter()
	}
	e.mu.Unlock()
}

// moved tells whether a sandbox has come, gone, or to another state or session.
func moved(was, is *Info) bool {
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

// drop forgets an entry whose lock the caller holds.
func (m *Manager) drop(name string, e *entry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e.exists = false
	delete(m.entries, name)
}

// existing is entry for a sandbox that must be there, for the context's owner.
func (m *Manager) existing(ctx context.Context, name string) (*entry, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	e := m.entry(name)
	if e.exists && e.rec.Ready && e.rec.Spec.visible(ctx) {
		return e, nil
	}
	none := notFound(name)
	if e.exists && e.rec.Ready {
		none = Info{Name: name, Spec: e.rec.Spec}.hidden(ctx)
	}
	if !e.exists {
		m.drop(name, e)
	}
	m.release(e)
	return nil, none
}

func notFound(name string) error {
	return fmt.Errorf("%w: %q: `sallyport sandbox ls` shows those there are, `sallyport run %s -- CMD` makes it", ErrNotFound, name, name)
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

// doing does something to a sandbox, under its lock; verb is for the error. Where f
// writes or reads the sandbox's memory it has the room that need asks for.
func (m *Manager) doing(ctx context.Context, name, verb string, need need, f func(*entry) error) (Info, error) {
	e, err := m.spacious(ctx, name, verb, need)
	if err != nil {
		return Info{}, err
	}
	defer m.release(e)
	if err := f(e); err != nil {
		return Info{}, fmt.Errorf("%s sandbox %s: %w", verb, name, err)
	}
	return m.sized(m.info(e)), nil
}
