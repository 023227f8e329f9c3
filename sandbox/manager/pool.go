package manager

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"sallyport/internal/durable"
	"sallyport/internal/periodic"
	"sallyport/sandbox"
	"sallyport/sandbox/state"
)

// Folders beside those of sandboxes. No sandbox's name begins with a dot.
const (
	poolDir = ".pool"  // a folder for each sandbox of the pool, by ID
	linkDir = ".by-id" // links to where a sandbox from the pool is now, by ID
)

// poolHost is the host name in a sandbox from the pool. Its name is not known when its
// kernel starts, and the kernel cannot be given another host name later.
const poolHost = "sandbox"

// Pauses of FillPool.
const (
	// poolRest leaves the host to the caller that has just taken a sandbox.
	poolRest = 250 * time.Millisecond
	// poolRetry follows a failure.
	poolRetry = 10 * time.Second
)

// pool holds running sandboxes of the default spec that have no owner yet. Each has an ID,
// an address, a disk and a certificate authority that its image trusts; it has no name and
// no record. Nothing vouches for its packets, so none passes until a caller takes it.
type pool struct {
	mu    sync.Mutex // guards what follows
	ready []state.Record
	left  []state.Record // of an earlier process, to be removed
	taken chan struct{}
}

// openPool finds the sandboxes of an earlier process. Their addresses are in use.
func (m *Manager) openPool() error {
	m.pool.taken = make(chan struct{}, 1)
	folders, err := os.ReadDir(m.dir(poolDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, f := range folders {
		name := filepath.Join(poolDir, f.Name())
		// Its record may have the name that it was about to get.
		rec, err := state.Read(m.dir(name))
		if err == nil {
			m.addresses[rec.Address] = true
		}
		rec.Name, rec.ID = name, f.Name()
		m.pool.left = append(m.pool.left, rec)
	}
	return nil
}

// FillPool removes what an earlier process left in the pool, and keeps the pool full until
// ctx is done.
func (m *Manager) FillPool(ctx context.Context) error {
	for {
		wait := poolRest
		if err := m.refillPool(ctx); err != nil && ctx.Err() == nil {
			m.opt.Logger.Warn("the pool of sandboxes cannot be filled", "error", err)
			wait = poolRetry
		} else {
			select {
			case <-ctx.Done():
			case <-m.pool.taken:
			}
		}
		if !periodic.Sleep(ctx, wait) {
			return nil
		}
	}
}

func (m *Manager) refillPool(ctx context.Context) error {
	m.pool.mu.Lock()
	left := m.pool.left
	m.pool.left = nil
	m.pool.mu.Unlock()
	for i, rec := range left {
		if err := m.discard(ctx, rec); err != nil {
			m.pool.mu.Lock()
			m.pool.left = left[i:]
			m.pool.mu.Unlock()
			return err
		}
	}
	for ctx.Err() == nil && m.poolSize() < m.opt.Pool {
		if err := m.checkDisk(); err != nil {
			return err
		}
		rec, err := m.addToPool(ctx)
		if err != nil {
			return err
		}
		m.pool.mu.Lock()
		m.pool.ready = append(m.pool.ready, rec)
		m.pool.mu.Unlock()
	}
	return nil
}

// poolSize is the number of sandboxes in the pool.
func (m *Manager) poolSize() int {
	m.pool.mu.Lock()
	defer m.pool.mu.Unlock()
	return len(m.pool.ready)
}

// DrainPool empties the pool, once FillPool has returned, and detaches the disks of
// sandboxes that were made and not started.
func (m *Manager) DrainPool(ctx context.Context) error {
	m.pool.mu.Lock()
	all := append(m.pool.ready, m.pool.left...)
	m.pool.ready, m.pool.left = nil, nil
	m.pool.mu.Unlock()
	var g errgroup.Group
	g.SetLimit(lifetimeStops)
	for _, rec := range all {
		g.Go(func() error { return m.discard(ctx, rec) })
	}
	for _, e := range m.all() {
		if ctx.Err() == nil && e.mu.TryLock() {
			g.Go(func() error {
				defer m.release(e)
				return m.releaseFreshDisk(ctx, e)
			})
		}
	}
	return g.Wait()
}

// link is the path by which the engine knows the folder of a sandbox from the pool, before
// and after the folder is renamed.
func (m *Manager) link(id string) string { return m.dir(filepath.Join(linkDir, id)) }

// linkTo points the link of a sandbox at the folder of a name.
func (m *Manager) linkTo(id, name string) error {
	next := m.link(id) + ".next"
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(filepath.Join("..", name), next); err != nil {
		return err
	}
	return os.Rename(next, m.link(id))
}

// addToPool makes a sandbox for the pool and starts it.
func (m *Manager) addToPool(ctx context.Context) (rec state.Record, err error) {
	for _, dir := range []string{poolDir, linkDir} {
		if err := os.MkdirAll(m.dir(dir), 0o700); err != nil {
			return rec, err
		}
	}
	rec = state.Record{ID: newID(), Spec: m.opt.Defaults, Created: now()}
	rec.Name = filepath.Join(poolDir, rec.ID)
	if rec.Address, err = m.newAddress(); err != nil {
		return rec, err
	}
	rec.MAC = state.HardwareAddress(rec.Address)
	defer func() {
		if err != nil {
			err = errors.Join(err, m.discard(context.WithoutCancel(ctx), rec))
		}
	}()
	if err := os.Mkdir(m.dir(rec.Name), 0o700); err != nil {
		return rec, err
	}
	if err := rec.Write(m.dir(rec.Name)); err != nil {
		return rec, err
	}
	if err := m.linkTo(rec.ID, rec.Name); err != nil {
		return rec, err
	}
	c, err := m.container(rec, poolHost)
	if err != nil {
		return rec, err
	}
	for _, path := range []*string{&c.Layer, &c.Mounts[0].Source} {
		if *path == "" {
			continue
		}
		inside, err := filepath.Rel(m.dir(rec.Name), *path)
		if err != nil {
			return rec, err
		}
		*path = filepath.Join(m.link(rec.ID), inside)
	}
	img, err := m.opt.Runtime.Create(ctx, c)
	if err != nil {
		return rec, err
	}
	rec.SetImage(img)
	if err := m.attachDisk(rec); err != nil {
		return rec, err
	}
	if _, err := m.opt.Runtime.Start(ctx, rec.ID); err != nil {
		return rec, err
	}
	m.settleDisk(rec)
	return rec, nil
}

// poolable reports whether a sandbox from the pool fits a spec. Its container has the
// default limits, image and runtime. The engine makes a working directory with the
// container, so a spec that names one does not fit.
func (m *Manager) poolable(s sandbox.Spec) bool {
	d := m.opt.Defaults
	return m.opt.Pool > 0 && s.Workdir == "" && s.Image == d.Image && s.Runtime == d.Runtime &&
		s.CPUs == d.CPUs && s.Memory == d.Memory && s.Pids == d.Pids && s.Disk == d.Disk
}

// takeFromPool gives a sandbox from the pool to the caller, if there is one that runs.
func (m *Manager) takeFromPool(ctx context.Context, e *entry, name string, spec sandbox.Spec) (taken bool, err error) {
	if !m.poolable(spec) || len(m.stores(state.Record{Name: name, Spec: spec})) > 0 {
		return false, nil
	}
	for {
		m.pool.mu.Lock()
		if len(m.pool.ready) == 0 {
			m.pool.mu.Unlock()
			return false, nil
		}
		rec := m.pool.ready[0]
		m.pool.ready = m.pool.ready[1:]
		m.pool.mu.Unlock()
		select {
		case m.pool.taken <- struct{}{}:
		default:
		}
		st, err := m.opt.Runtime.Status(ctx, rec.ID)
		if err == nil && st.Running && st.Link != 0 {
			return true, m.adopt(ctx, e, rec, name, spec, st)
		}
		m.opt.Logger.Warn("a sandbox of the pool does not run and is removed", "id", rec.ID, "error", err)
		if err := m.discard(context.WithoutCancel(ctx), rec); err != nil {
			m.pool.mu.Lock()
			m.pool.left = append(m.pool.left, rec)
			m.pool.mu.Unlock()
			m.opt.Logger.Warn("a sandbox of the pool cannot be removed", "id", rec.ID, "error", err)
		}
	}
}

// adopt gives a sandbox from the pool a name, a spec and a session. If the daemon crashes
// before the record is ready, the next one removes the sandbox, whichever of the two names
// its folder has.
func (m *Manager) adopt(ctx context.Context, e *entry, was state.Record, name string, spec sandbox.Spec, st sandbox.Status) (err error) {
	rec := was
	rec.Name, rec.Spec, rec.Created = name, spec, now()
	e.Rec = rec
	folder := was
	defer func() {
		if err != nil && !e.exists {
			err = errors.Join(err, m.discard(context.WithoutCancel(ctx), folder))
			e.Rec = state.Record{}
		}
	}()
	if err := m.takeQuota(rec); err != nil {
		return err
	}
	if err := rec.Write(m.dir(was.Name)); err != nil {
		return err
	}
	if err := m.linkTo(rec.ID, name); err != nil {
		return err
	}
	// Mounts in the folder move with it.
	if err := os.Rename(m.dir(was.Name), m.dir(name)); err != nil {
		return err
	}
	folder = rec
	if err := durable.SyncDir(m.opt.Dir); err != nil {
		return err
	}
	if err := m.journal.CommitWithEvent(ctx, &e.Stored, state.Lifecycle(rec, "created", ""), func(r *state.Record) { r.Ready = true }); err != nil {
		return err
	}
	e.state, e.exists = sandbox.Stopped, true
	if err := m.renew(ctx, e, "", nil); err != nil {
		return errors.Join(err, m.stopAndDetach(context.WithoutCancel(ctx), e.Rec))
	}
	if err := m.attach(e, st); err != nil {
		return fmt.Errorf("starting it: %w", errors.Join(err, m.end(context.WithoutCancel(ctx), e, "failed to start: "+err.Error())))
	}
	return nil
}
