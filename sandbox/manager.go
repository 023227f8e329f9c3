package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"sallyport/audit"
	"sallyport/internal/seal"
	"sallyport/memory"
	"sallyport/sandbox/agent/channel"
)

// Recorder is the audit log: Append returns when the events are durable.
type Recorder interface {
	Append(context.Context, ...*audit.Event) error
}

// Options of a Manager; all but Disks, Layers, Space, Forget and Publish are needed.
type Options struct {
	Dir       string // one folder for each sandbox
	Subnet    netip.Prefix
	Defaults  Spec
	Pool      int // how many of the defaults' spec are kept started, for who asks next
	Runtime   Runtime
	Disks     Disks // nil: nothing bounds what sandboxes write
	Network   Network
	Authority Authority
	Secrets   Secrets
	Recorder  Recorder
	// Recorded says whether the log has an event, by its ID. nil: what an earlier
	// process may have recorded is recorded again.
	Recorded func(ctx context.Context, id string) (bool, error)
	Logger   *slog.Logger
	Agent    channel.Options // how agents are spoken to
	// Reserve is what is kept of Space for the host, in bytes. Space nil: nothing.
	Space   Space
	Reserve int64
	Layers  Layers // nil: Changes tells nothing
	// Forget is told the ID of a sandbox that is removed, for those who keep
	// something under it.
	Forget func(id string) error
	// Publish is told of each change of what ByAddress returns, in order: of a
	// sandbox before its packets may pass, of the zero Info after none passes
	// any more.
	Publish func(netip.Addr, Info)
	// RAM is a folder in memory, that is never swapped (see ram.Mount), for what
	// is in the clear of sandboxes that hibernate; Key seals it for the disk. Where
	// one of them is missing none can.
	RAM string
	Key *seal.Key
	// Gate holds the connections of sandboxes that sleep. Default: nobody does.
	Gate Gate
	// Meter and Busy tell WatchIdle what goes on in a sandbox besides what is asked
	// of the manager. Default: nothing does.
	Meter Meter
	Busy  Busy
	// Inherit gives a fork what else it has of its parent, by their IDs: the names
	// that its memory knows addresses of. It is called while the parent stands still.
	Inherit func(parent, child string) error
	// Told tells whether an event is on record. It is asked after a crash. Default:
	// what may be is taken to be.
	Told func(context.Context, Deed) (bool, error)
	// Mark says what is in force and recorded now, for snapshots to note.
	Mark func() Mark
	// PerOwner is how many sandboxes an owner may have; 0: no bound. Those of nobody
	// have none.
	PerOwner int
}

// stopGrace is how long a sandbox's processes have between SIGTERM and SIGKILL.
const stopGrace = 5 * time.Second

// Manager keeps the sandboxes. Its methods may be called concurrently; calls
// that change one sandbox run one after the other.
type Manager struct {
	opt Options

	mu        sync.Mutex // guards what follows; taken after an entry's, never before
	entries   map[string]*entry
	counters  counters
	pool      pool                       // under a mutex of its own
	addresses map[netip.Addr]bool        // of all records
	scratches map[string]bool            // folders in RAM that are in use
	shares    map[string]map[string]bool // IDs of an owner's sandboxes, also of those being made

	// identities is what the gateway asks on each connection.
	identities atomic.Pointer[map[netip.Addr]Info]
}

// entry is one sandbox; its mutex is held while the sandbox changes state.
type entry struct {
	mu     sync.Mutex
	rec    record
	state  State
	exists bool
	told   string           // ID of the last event that is known to be in the log
	old    bool             // an earlier process has written rec
	agent  *channel.Channel // to the session's agent, nil until it is used
	// shown is what listings say, also while mu is held for long; nil for a
	// sandbox that is not there. release brings it up to date.
	shown atomic.Pointer[Info]

	busy atomic.Int32 // uses that are under way
	used atomic.Int64 // when the last one ended, in nanoseconds of Unix time
}

// release gives up an entry's lock and shows what the entry has become.
func (m *Manager) release(e *entry) {
	if e.exists && e.rec.Ready {
		i := m.info(e)
		e.shown.Store(&i)
	} else {
		e.shown.Store(nil)
	}
	e.mu.Unlock()
}

// Open reads the records in opt.Dir and brings runtime and network into
// agreement with them: half-made sandboxes are removed, running ones keep their
// identity, and what the network vouches for without a record is detached.
func Open(ctx context.Context, opt Options) (*Manager, error) {
	if err := os.MkdirAll(opt.Dir, 0o700); err != nil {
		return nil, err
	}
	if opt.Gate == nil {
		opt.Gate = noGate{}
	}
	c, err := readCounters(filepath.Join(opt.Dir, ".counters"))
	if err != nil {
		return nil, err
	}
	m := &Manager{opt: opt, entries: map[string]*entry{}, addresses: map[netip.Addr]bool{}, scratches: map[string]bool{}, shares: map[string]map[string]bool{}, counters: c}
	m.identities.Store(&map[netip.Addr]Info{})

	folders, err := os.ReadDir(opt.Dir)
	if err != nil {
		return nil, err
	}
	for _, f := range folders {
		if !f.IsDir() || CheckName(f.Name()) != nil {
			continue
		}
		rec, err := readRecord(m.dir(f.Name()))
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
		m.entries[rec.Name] = &entry{rec: rec, state: Stopped, exists: true, old: true}
		m.addresses[rec.Address] = true
		m.count(rec)
	}
	if err := m.openPool(); err != nil {
		return nil, err
	}
	if _, err := m.reconcile(ctx); errors.Is(err, ErrEngine) {
		return nil, err
	} else if err != nil {
		opt.Logger.Error("a sandbox cannot be brought into agreement with the engine; the others go on", "error", err)
	}
	return m, nil
}

func (m *Manager) dir(name string) string { return filepath.Join(m.opt.Dir, name) }

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
	if e.exists && e.rec.Ready && e.rec.Spec.Owned(OwnerOf(ctx)) {
		return e, nil
	}
	if e.exists {
		m.release(e)
		return nil, notFound(name)
	}
	m.drop(name, e)
	m.release(e)
	return nil, notFound(name)
}

func notFound(name string) error {
	return fmt.Errorf("%w: %q: `sallyport sandbox ls` shows those there are, `sallyport run %s -- CMD` makes it", ErrNotFound, name, name)
}

// GetOrCreate returns the sandbox of that name, made now if there was none.
// Concurrent calls make one. A spec that asks for what an existing sandbox
// does not have is ErrConflict.
func (m *Manager) GetOrCreate(ctx context.Context, name string, spec Spec) (info Info, created bool, err error) {
	if err := CheckName(name); err != nil {
		return Info{}, false, err
	}
	if err := spec.claim(ctx); err != nil {
		return Info{}, false, err
	}
	e := m.entry(name)
	defer m.release(e)
	defer func() {
		if !e.exists {
			m.drop(name, e)
		}
	}()
	if e.exists && !e.rec.Ready {
		// It is removed, but for what could not be.
		if err := m.discard(ctx, e.rec); err != nil {
			return Info{}, false, fmt.Errorf("removing what was %s: %w", name, err)
		}
		e.rec, e.exists = record{}, false
	}
	if e.exists {
		if !e.rec.Spec.Owned(OwnerOf(ctx)) {
			return Info{}, false, fmt.Errorf("%w: %s: choose another", ErrTaken, name)
		}
		if d := spec.differs(e.rec.wanted()); len(d) > 0 {
			return Info{}, false, fmt.Errorf("%w: %s asks for %s", ErrConflict, name, explain(d, name))
		}
		return m.info(e), false, nil
	}
	spec = spec.fill(m.opt.Defaults)
	if err := spec.validate(); err != nil {
		return Info{}, false, err
	}
	if err := spec.refuseSecrets(ctx, m.opt.Secrets); err != nil {
		return Info{}, false, err
	}
	if err := m.create(ctx, e, name, spec); err != nil {
		return Info{}, false, fmt.Errorf("creating sandbox %s: %w", name, err)
	}
	return m.info(e), true, nil
}

// Start runs a stopped sandbox and attaches its identity, or wakes one that
// sleeps; running ones are left as they are.
func (m *Manager) Start(ctx context.Context, name string) (Info, error) {
	e, err := m.existing(ctx, name)
	if err != nil {
		return Info{}, err
	}
	defer m.release(e)
	defer e.use()()
	if err := m.start(ctx, e); err != nil {
		return Info{}, fmt.Errorf("starting sandbox %s: %w", name, err)
	}
	return m.info(e), nil
}

func (m *Manager) start(ctx context.Context, e *entry) error {
	if e.state == Running {
		return nil
	}
	if err := e.rec.outlived(); err != nil {
		return err
	}
	if e.failed() {
		return fmt.Errorf("%w: it is in error: %s", ErrState, e.rec.Reason)
	}
	if err := m.roomy(); err != nil {
		return err
	}
	switch e.state {
	case Paused:
		return m.resume(ctx, e)
	case Hibernated:
		return m.wake(ctx, e)
	}
	if err := m.mend(ctx, e); err != nil {
		return err
	}
	if next := e.rec.Next; next != nil {
		// Should this be where we die, the next start does it again.
		if err := m.opt.Runtime.Update(ctx, e.rec.ID, *next); err != nil {
			return err
		}
		if err := m.note(e, func(r *record) { r.Spec, r.Next = *next, nil }); err != nil {
			return err
		}
	}
	return m.begin(ctx, e, "", func() (Status, error) { return m.opt.Runtime.Start(ctx, e.rec.ID) })
}

// begin is the start of a session, in which run has the container run.
func (m *Manager) begin(ctx context.Context, e *entry, why string, run func() (Status, error)) error {
	if err := m.renew(ctx, e, why); err != nil {
		return err
	}
	rec := e.rec
	var st Status
	err := m.attachDisk(rec)
	if err == nil {
		st, err = run()
	}
	if err == nil {
		m.settleDisk(rec)
	}
	if err == nil {
		err = m.attach(e, st)
	}
	if err != nil {
		ctx := context.WithoutCancel(ctx)
		return errors.Join(err, m.end(ctx, e, "failed to start: "+err.Error()), m.spoilt(e, err))
	}
	return nil
}

// renew gives a sandbox a new session, which is on record when it returns.
func (m *Manager) renew(ctx context.Context, e *entry, why string) error {
	if err := e.rec.outlived(); err != nil {
		return err
	}
	gen, err := m.newGeneration()
	if err != nil {
		return err
	}
	was, rec := e.rec, e.rec
	rec.Generation, rec.Session = gen, uuid.Must(uuid.NewV7()).String()
	ev := detailed(rec, "started", why)
	err = m.tell(ctx, e, ev, func(r *record) {
		r.Generation, r.Session, r.Reason, r.Held = rec.Generation, rec.Session, "", ""
	})
	if err != nil {
		return errors.Join(err, m.untell(e, ev, func(r *record) { r.Session, r.Reason, r.Held = was.Session, was.Reason, was.Held }))
	}
	return nil
}

// attach makes the sandbox's identity known to the gateway, then lets its
// packets pass.
func (m *Manager) attach(e *entry, st Status) error {
	if st.Link == 0 {
		return fmt.Errorf("the container has no network interface: is the engine Sallyport's own?")
	}
	e.state = Running
	m.publish(e.rec.Address, m.info(e))
	err := m.opt.Network.Attach(Endpoint{
		Link: st.Link, Sandbox: e.rec.Name, ID: e.rec.ID,
		Generation: e.rec.Generation, Address: e.rec.Address, MAC: e.rec.MAC,
		Offline: e.rec.Spec.Offline,
	})
	if err != nil {
		return fmt.Errorf("attaching the sandbox's identity: %w", err)
	}
	return nil
}

// halt ends the session: the sandbox's packets first, then its identity, then
// its processes. Whatever fails, all of it is tried.
func (m *Manager) halt(ctx context.Context, e *entry, why string) error {
	var errs []error
	e.hangUp() // while its end can still be told
	if e.rec.Generation != 0 {
		errs = append(errs, m.opt.Network.Detach(e.rec.Generation))
	}
	m.publish(e.rec.Address, Info{})
	if e.rec.Sleep != awake {
		m.opt.Gate.End(e.rec.Address)
		// What is paused does not see that it is asked to end.
		_ = m.opt.Runtime.Resume(ctx, e.rec.ID)
	}
	if err := m.opt.Runtime.Stop(ctx, e.rec.ID, stopGrace); err != nil && !errors.Is(err, ErrNotFound) {
		errs = append(errs, err)
	}
	errs = append(errs, m.detachDisk(e.rec))
	e.state = Stopped
	err := m.tell(context.WithoutCancel(ctx), e, detailed(e.rec, "stopped", why), func(r *record) {
		r.Session = ""
		r.Sleep, r.Flows, r.Slept, r.Began, r.Wakes, r.Dozed = awake, nil, time.Time{}, time.Time{}, 0, false
	})
	if e.rec.Sleep == awake {
		err = errors.Join(err, m.clear(e))
	}
	return errors.Join(append(errs, err)...)
}

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

// Defaults are what a spec has where it says nothing.
func (m *Manager) Defaults() Spec { return m.opt.Defaults }

// Stop ends the sandbox's processes; its files stay.
func (m *Manager) Stop(ctx context.Context, name string) (Info, error) {
	e, err := m.existing(ctx, name)
	if err != nil {
		return Info{}, err
	}
	defer m.release(e)
	if e.state == Running || e.state.asleep() {
		if err := m.end(ctx, e, "asked to"); err != nil {
			return Info{}, fmt.Errorf("stopping sandbox %s: %w", name, err)
		}
	}
	return m.info(e), nil
}

// Remove ends a sandbox for good: its files, its memory and its certificate
// authority. Its audit stays.
func (m *Manager) Remove(ctx context.Context, name string) error {
	e, err := m.existing(ctx, name)
	if err != nil {
		return err
	}
	defer m.release(e)
	if e.state == Running || e.state.asleep() {
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
func (m *Manager) Get(name string) (Info, error) {
	if err := CheckName(name); err != nil {
		return Info{}, err
	}
	m.mu.Lock()
	e := m.entries[name]
	m.mu.Unlock()
	if e != nil {
		if i := e.shown.Load(); i != nil {
			return *i, nil
		}
	}
	return Info{}, notFound(name)
}

// List returns the sandboxes by name.
func (m *Manager) List() []Info {
	m.mu.Lock()
	entries := slices.Collect(maps.Values(m.entries))
	m.mu.Unlock()
	var list []Info
	for _, e := range entries {
		if i := e.shown.Load(); i != nil {
			list = append(list, *i)
		}
	}
	slices.SortFunc(list, func(a, b Info) int { return strings.Compare(a.Name, b.Name) })
	return list
}

func (m *Manager) info(e *entry) Info {
	i := Info{
		Name: e.rec.Name, ID: e.rec.ID, State: e.state, Spec: e.rec.Spec,
		Address: e.rec.Address, Generation: e.rec.Generation,
		Created: e.rec.Created, Memory: memory.Dir(m.dir(e.rec.Name)),
		Lineage: e.rec.Lineage, Next: e.rec.Next,
	}
	live := e.state == Running || e.state.asleep()
	if live {
		i.Session = e.rec.Session
	}
	if e.state.asleep() {
		i.Slept = e.rec.Slept
	}
	i.Lost = e.rec.Lost
	if e.state != Running {
		i.Reason = e.rec.Held
	}
	if e.rec.Reason != "" && !live {
		i.State, i.Reason = Failed, e.rec.Reason
	}
	return i
}
