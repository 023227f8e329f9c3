package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"sallyport/internal/auditlimit"
	"sallyport/internal/tmpfs"
	"sallyport/memory"
)

// Manager keeps the sandboxes. Its methods may be called concurrently; calls
// that change one sandbox run one after the other.
type Manager struct {
	opt  Options
	room *tmpfs.Room // opt.RAM, shared out
	// refusals bounds how many are recorded.
	refusals *auditlimit.Limit
	compared *comparisons
	ends     endings

	mu        sync.Mutex // guards what follows; taken after an entry's, never before
	entries   map[string]*entry
	counters  counters
	pool      pool                       // under a mutex of its own
	addresses map[netip.Addr]bool        // of all records
	scratches map[string]bool            // folders in RAM that are in use
	shares    map[string]map[string]bool // IDs of an owner's sandboxes, also of those being made
	booked    map[string]int64           // bytes that are about to be written, by account
	caps      map[string]string          // why no more is written for whom, by account or ID

	// identities is what the gateway asks on each connection.
	identities atomic.Pointer[map[netip.Addr]Info]
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
	m := &Manager{opt: opt, refusals: auditlimit.New(), compared: newComparisons(), room: tmpfs.NewRoom(opt.RAM, opt.ramSize), entries: map[string]*entry{}, addresses: map[netip.Addr]bool{}, scratches: map[string]bool{}, shares: map[string]map[string]bool{}, booked: map[string]int64{}, counters: c}
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
		m.entries[rec.Name] = &entry{rec: rec, state: Stopped, exists: true, old: true, fresh: rec.Generation == 0, loose: true}
		m.addresses[rec.Address] = true
		m.count(rec)
		if opt.Disks != nil {
			// What an earlier process of ours was copying as it ended. Whoever writes waits.
			if err := errors.Join(opt.Disks.Thaw(m.dir(rec.Name)), m.unlook(rec)); err != nil {
				opt.Logger.Error("what was being read of a sandbox's disk is left", "sandbox", rec.Name, "error", err)
			}
		}
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

// GetOrCreate returns the sandbox of that name, made now if there was none.
// Concurrent calls make one. A spec that asks for what an existing sandbox
// does not have is ErrConflict.
func (m *Manager) GetOrCreate(ctx context.Context, name string, spec Spec) (info Info, created bool, err error) {
	defer func() { m.refused(ctx, name, err) }()
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
	full := spec.fill(m.opt.Defaults)
	if e.exists {
		if OwnerOf(ctx) == "" && !e.rec.Spec.visible(ctx) {
			return Info{}, false, fmt.Errorf("%w: %s: choose another, or write %s for the one that there is", ErrTaken, name, fullName(e.rec.Spec.Owner, name))
		}
		if !e.rec.Spec.visible(ctx) {
			return Info{}, false, fmt.Errorf("%w: %s: choose another", ErrTaken, name)
		}
		if err := full.validate(); err != nil {
			return Info{}, false, err
		}
		if d := spec.differs(e.rec.wanted()); len(d) > 0 {
			return Info{}, false, fmt.Errorf("%w: %s is asked for %s", ErrConflict, name, explain(d, name))
		}
		return m.info(e), false, nil
	}
	if owner, ok := ctx.Value(fullKey{}).(string); ok && owner != spec.Owner {
		return Info{}, false, fmt.Errorf("%w: %q: a tenant's own keys make its sandboxes", ErrNotFound, fullName(owner, name))
	}
	if err := mayName(ctx, name); err != nil {
		return Info{}, false, err
	}
	spec = full
	if err := errors.Join(spec.validate(), m.checkImage(spec)); err != nil {
		return Info{}, false, err
	}
	if err := m.refuseSecrets(ctx, name, spec.Env); err != nil {
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
	return m.doing(ctx, name, "starting", m.toWake, func(e *entry) error {
		defer e.use()()
		return m.startOrSay(ctx, e)
	})
}

// Defaults are what a spec has where it says nothing.
func (m *Manager) Defaults() Spec { return m.opt.Defaults }

// Stop ends the sandbox's processes; its files stay.
func (m *Manager) Stop(ctx context.Context, name string) (Info, error) {
	m.closeFiles(ctx, name)
	return m.doing(ctx, name, "stopping", noRoom, func(e *entry) error {
		if !e.state.live() {
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
	if e.state.live() {
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
	if e := m.known(name); e != nil {
		if i := e.shown.Load(); i != nil {
			return m.sized(*i), nil
		}
	}
	return Info{}, notFound(name)
}

// List returns the sandboxes by name.
func (m *Manager) List() []Info {
	var list []Info
	for _, e := range m.all() {
		if i := e.shown.Load(); i != nil {
			list = append(list, m.sized(*i))
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
		ImageID: e.rec.ImageID, ImageDigest: e.rec.ImageDigest,
	}
	if e.state.live() {
		i.Session = e.rec.Session
	}
	if e.state.asleep() {
		i.Slept = e.rec.Slept
	}
	i.Lost = e.rec.Lost
	if e.state != Running {
		i.Reason = e.rec.Held
	}
	if e.failed() {
		i.State, i.Reason = Failed, e.rec.Reason
	}
	return i
}
