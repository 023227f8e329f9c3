// Package manager keeps named, durable sandboxes: it creates, changes, starts, stops and
// removes them, runs commands in them, puts them to sleep, and makes snapshots and forks.
//
// The Manager owns the record of each sandbox: its spec, address, identity and state. It
// drives what it declares as interfaces, above all the Runtime that runs a sandbox, the
// Network that checks its packets, and the Authority whose certificate it trusts. A
// sandbox that is not attached to the Network runs but reaches nothing.
//
// It guarantees that a name stands for one sandbox, that each start is on record before
// the sandbox runs and each end afterwards, whatever ended it, and that the next Open
// removes what a crash left half-made. It does not decide what a sandbox may reach, and
// it does not protect from root of the host.
package manager

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"sallyport/internal/ratelimit"
	"sallyport/internal/tmpfs"
	"sallyport/memory"
	"sallyport/sandbox"
	"sallyport/sandbox/agent/channel"
	"sallyport/sandbox/state"
)

// Manager keeps the sandboxes. Its methods may be called concurrently; calls
// that change one sandbox run one after the other.
type Manager struct {
	opt    Options
	memory *tmpfs.Budget // opt.RAM, shared out
	// refusals bounds how many are recorded.
	refusals *ratelimit.BySource
	compared *comparisons
	ends     endings
	journal  *state.Journal

	mu        sync.Mutex // guards what follows; taken after an entry's, never before
	entries   map[string]*entry
	counters  state.Counters
	pool      pool                       // under a mutex of its own
	addresses map[netip.Addr]bool        // of all records
	scratches map[string]bool            // folders in RAM that are in use
	shares    map[string]map[string]bool // IDs of an owner's sandboxes, also of those being made
	booked    map[string]int64           // bytes that are about to be written, by account
	caps      map[string]string          // why no more is written for whom, by account or ID

	// identities is what the gateway asks on each connection.
	identities atomic.Pointer[map[netip.Addr]sandbox.Info]
}

// Open reads the records in opt.Dir and brings runtime and network into
// agreement with them: half-made sandboxes are removed, running ones keep their
// identity, and what the network vouches for without a record is detached.
func Open(ctx context.Context, opt Options) (*Manager, error) {
	if err := os.MkdirAll(opt.Dir, 0o700); err != nil {
		return nil, err
	}
	if opt.Memories == nil {
		opt.Memories = noMemories{}
	}
	if opt.Gate == nil {
		opt.Gate = noGate{}
	}
	c, err := state.ReadCounters(filepath.Join(opt.Dir, ".counters"))
	if err != nil {
		return nil, err
	}
	m := &Manager{opt: opt, refusals: ratelimit.ForAudit(), compared: newComparisons(), memory: tmpfs.NewBudget(opt.RAM, opt.ramSize), entries: map[string]*entry{}, addresses: map[netip.Addr]bool{}, scratches: map[string]bool{}, shares: map[string]map[string]bool{}, booked: map[string]int64{}, counters: c, journal: &state.Journal{Dir: opt.Dir, Append: opt.Recorder.Append, Find: opt.Recorded}}
	m.identities.Store(&map[netip.Addr]sandbox.Info{})

	folders, err := os.ReadDir(opt.Dir)
	if err != nil {
		return nil, err
	}
	for _, f := range folders {
		if !f.IsDir() || sandbox.CheckName(f.Name()) != nil {
			continue
		}
		rec, err := state.Read(m.dir(f.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			opt.Logger.Warn("a sandbox folder has no record; it is left alone", "folder", m.dir(f.Name()))
			continue
		}
		if err == nil && rec.Name != f.Name() {
			err = fmt.Errorf("the record in %s is of %q", m.dir(f.Name()), rec.Name)
		}
		if err != nil {
			// The others go on. Nothing vouches for this one's packets, and its
			// folder stays in the way of a new one of its name.
			opt.Logger.Error("a sandbox cannot be read and does not run; mend its record or move its folder aside", "error", err)
			continue
		}
		m.entries[rec.Name] = &entry{Stored: state.Stored{Rec: rec, Old: true}, state: sandbox.Stopped, exists: true, fresh: rec.Generation == 0, loose: true}
		m.addresses[rec.Address] = true
		m.count(rec)
		if opt.Disks != nil {
			// An earlier process of ours may have ended while it copied a disk. Its writers wait.
			if err := errors.Join(opt.Disks.Thaw(m.dir(rec.Name)), m.removeOpenDisks(rec)); err != nil {
				opt.Logger.Error("what was being read of a sandbox's disk is left", "sandbox", rec.Name, "error", err)
			}
		}
	}
	if err := m.openPool(); err != nil {
		return nil, err
	}
	if _, err := m.reconcile(ctx); errors.Is(err, sandbox.ErrEngine) {
		return nil, err
	} else if err != nil {
		opt.Logger.Error("a sandbox cannot be brought into agreement with the engine; the others go on", "error", err)
	}
	return m, nil
}

func (m *Manager) dir(name string) string { return filepath.Join(m.opt.Dir, name) }

// GetOrCreate returns the sandbox of that name, made now if there was none.
// Concurrent calls make one. A spec that asks for what an existing sandbox
// does not have is ErrSpecMismatch.
func (m *Manager) GetOrCreate(ctx context.Context, name string, spec sandbox.Spec) (info sandbox.Info, created bool, err error) {
	defer func() { m.recordIfRefused(ctx, name, err) }()
	if err := sandbox.CheckName(name); err != nil {
		return sandbox.Info{}, false, err
	}
	if err := claimOwner(ctx, &spec); err != nil {
		return sandbox.Info{}, false, err
	}
	e := m.entry(name)
	defer m.release(e)
	defer func() {
		if !e.exists {
			m.forget(name, e)
		}
	}()
	if e.exists && !e.Rec.Ready {
		// It is removed, but for what could not be.
		if err := m.discard(ctx, e.Rec); err != nil {
			return sandbox.Info{}, false, fmt.Errorf("removing what was %s: %w", name, err)
		}
		e.Rec, e.exists = state.Record{}, false
	}
	full := withDefaults(spec, m.opt.Defaults)
	if e.exists {
		if sandbox.OwnerOf(ctx) == "" && !visible(ctx, e.Rec.Spec) {
			return sandbox.Info{}, false, fmt.Errorf("%w: %s: choose another, or write %s for the one that there is", sandbox.ErrTaken, name, sandbox.FullName(e.Rec.Spec.Owner, name))
		}
		if !visible(ctx, e.Rec.Spec) {
			return sandbox.Info{}, false, fmt.Errorf("%w: %s: choose another", sandbox.ErrTaken, name)
		}
		if err := validate(full); err != nil {
			return sandbox.Info{}, false, err
		}
		if d := differences(spec, e.Rec.NextSpec()); len(d) > 0 {
			return sandbox.Info{}, false, fmt.Errorf("%w: %s is asked for %s", sandbox.ErrSpecMismatch, name, explain(d, name))
		}
		return m.info(e), false, nil
	}
	if owner, ok := ctx.Value(fullKey{}).(string); ok && owner != spec.Owner {
		return sandbox.Info{}, false, fmt.Errorf("%w: %q: a tenant's own keys make its sandboxes", sandbox.ErrNotFound, sandbox.FullName(owner, name))
	}
	if err := checkAllowed(ctx, name); err != nil {
		return sandbox.Info{}, false, err
	}
	spec = full
	if err := errors.Join(validate(spec), m.checkImage(spec)); err != nil {
		return sandbox.Info{}, false, err
	}
	if err := m.refuseSecrets(ctx, name, spec.Env); err != nil {
		return sandbox.Info{}, false, err
	}
	if err := m.create(ctx, e, name, spec); err != nil {
		return sandbox.Info{}, false, fmt.Errorf("creating sandbox %s: %w", name, err)
	}
	return m.info(e), true, nil
}

// Start runs a stopped sandbox and attaches its identity, or wakes one that
// sleeps; running ones are left as they are.
func (m *Manager) Start(ctx context.Context, name string) (sandbox.Info, error) {
	return m.withLocked(ctx, name, "starting", m.memoryToWake, func(e *entry) error {
		defer e.use()()
		return m.startWithHint(ctx, e)
	})
}

// Defaults are what a spec has where it says nothing.
func (m *Manager) Defaults() sandbox.Spec { return m.opt.Defaults }

// Stop ends the sandbox's processes; its files stay.
func (m *Manager) Stop(ctx context.Context, name string) (sandbox.Info, error) {
	m.closeFiles(ctx, name)
	return m.withLocked(ctx, name, "stopping", noMemory, func(e *entry) error {
		if !e.state.Live() {
			return nil
		}
		return m.end(ctx, e, "asked to")
	})
}

// Remove ends a sandbox for good: its files, its memory and its certificate
// authority. Its audit stays.
func (m *Manager) Remove(ctx context.Context, name string) error {
	m.closeFiles(ctx, name)
	e, err := m.existing(ctx, name)
	if err != nil {
		return err
	}
	defer m.release(e)
	m.opt.Memories.Interrupt(e.Rec.ID)
	if e.state.Live() {
		if err := m.halt(ctx, e, "being removed"); err != nil {
			return fmt.Errorf("stopping sandbox %s: %w", name, err)
		}
	}
	if err := m.remove(ctx, e, "asked to"); err != nil {
		return fmt.Errorf("removing sandbox %s: %w", name, err)
	}
	return nil
}

// Get returns one sandbox.
func (m *Manager) Get(name string) (sandbox.Info, error) {
	if err := sandbox.CheckName(name); err != nil {
		return sandbox.Info{}, err
	}
	if e := m.known(name); e != nil {
		if i := e.shown.Load(); i != nil {
			return m.sized(*i), nil
		}
	}
	return sandbox.Info{}, notFound(name)
}

// List returns the sandboxes by name.
func (m *Manager) List() []sandbox.Info {
	var list []sandbox.Info
	for _, e := range m.all() {
		if i := e.shown.Load(); i != nil {
			list = append(list, m.sized(*i))
		}
	}
	slices.SortFunc(list, func(a, b sandbox.Info) int { return strings.Compare(a.Name, b.Name) })
	return list
}

func (m *Manager) info(e *entry) sandbox.Info {
	i := sandbox.Info{
		Name: e.Rec.Name, ID: e.Rec.ID, State: e.state, Spec: e.Rec.Spec,
		Address: e.Rec.Address, Generation: e.Rec.Generation,
		Created: e.Rec.Created, Memory: memory.Dir(m.dir(e.Rec.Name)),
		Lineage: e.Rec.Lineage, Next: e.Rec.Next,
		ImageID: e.Rec.ImageID, ImageDigest: e.Rec.ImageDigest, Placeholders: e.Rec.Placeholders,
	}
	if e.state.Live() {
		i.Session = e.Rec.Session
	}
	if e.state.Asleep() {
		i.Slept = e.Rec.Slept
	}
	i.Lost = e.Rec.Lost
	if e.state != sandbox.Running {
		i.Reason = e.Rec.Held
	}
	if e.failed() {
		i.State, i.Reason = sandbox.Failed, e.Rec.Reason
	}
	return i
}

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
		if m.known(name) == e {
			return e
		}
		e.mu.Unlock() // dropped while we waited for its lock
	}
}

// forget drops an entry whose lock the caller holds.
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
