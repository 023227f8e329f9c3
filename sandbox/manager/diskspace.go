package manager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/internal/periodic"
	"sallyport/internal/size"
	"sallyport/memory"
	"sallyport/sandbox"
	"sallyport/sandbox/state"
)

const (
	// spaceEvery is how often the free space is measured. The reserve can be overshot by
	// what is written between two looks.
	spaceEvery = 250 * time.Millisecond
	// growthOver is how far back the growth of disks is compared.
	growthOver = 10 * time.Second
	// leastGrowth is the least growth of a disk that counts. The journal and the times of
	// files take a little without a write.
	leastGrowth = 1 << 20
)

// checkDisk returns ErrDiskFull if the host's disk has less left than the reserve, or why
// it cannot be measured.
func (m *Manager) checkDisk() error { return m.checkDiskFor(0) }

// checkDiskFor is checkDisk after n more bytes are written.
func (m *Manager) checkDiskFor(n int64) error {
	if m.opt.Space == nil {
		return nil
	}
	free, err := m.opt.Space.Free()
	if err != nil {
		return err
	}
	if free-n < m.opt.Reserve {
		return fmt.Errorf("%w: %s are left, and %s are kept for the host (sandbox.reserve): remove sandboxes or files, or use a larger disk",
			sandbox.ErrDiskFull, size.About(free), size.About(m.opt.Reserve))
	}
	return nil
}

// watchDisk returns a context that ends, with ErrDiskFull as its cause, when less than the
// reserve and n bytes are left. Writes of the host for a sandbox count as the sandbox's own.
// done ends the watch, and returns ErrDiskFull in place of an error that it caused.
func (m *Manager) watchDisk(ctx context.Context, n int64) (_ context.Context, done func(error) error) {
	ctx, cancel := context.WithCancelCause(ctx)
	if m.opt.Space != nil {
		go func() {
			for periodic.Sleep(ctx, spaceEvery) {
				if err := m.checkDiskFor(n); err != nil {
					cancel(err)
				}
			}
		}()
	}
	return ctx, func(err error) error {
		if full := context.Cause(ctx); err != nil && errors.Is(full, sandbox.ErrDiskFull) {
			err = full
		}
		cancel(nil)
		return err
	}
}

// lastRoom is how little is left of the host's disk, in bytes, when ends of sessions and
// sandboxes may use what Space keeps back.
const lastRoom = 32 << 20

// endings counts the sessions and sandboxes that are being ended.
type endings struct {
	mu    sync.Mutex
	under int
}

// yieldSpace makes room on a full disk for the record of an end: without it, the sandbox
// that fills the disk could not be removed. done takes the room back.
func (m *Manager) yieldSpace() (done func()) {
	if m.opt.Space == nil {
		return func() {}
	}
	m.ends.mu.Lock()
	defer m.ends.mu.Unlock()
	m.ends.under++
	if free, err := m.opt.Space.Free(); err != nil || free < lastRoom {
		m.warnNoSpace(m.opt.Space.Yield())
	}
	return func() {
		m.ends.mu.Lock()
		defer m.ends.mu.Unlock()
		if m.ends.under--; m.ends.under == 0 {
			m.warnNoSpace(m.opt.Space.Settle())
		}
	}
}

func (m *Manager) warnNoSpace(err error) {
	if err != nil {
		m.opt.Logger.Warn("room for the end of sandboxes on a full disk cannot be kept", "error", err)
	}
}

// WatchSpace keeps owners to their quota of the host's disk, and keeps the reserve for the
// host, until ctx is done. Writes are refused before a sandbox is stopped:
//
//   - While an owner's sandboxes exceed the quota, their disks do not grow.
//   - While less than twice the reserve is left, the disks do not grow of the owner, or of
//     the sandbox without an owner, that has the most. Neither are its snapshots or its
//     memory written.
//   - While less than the reserve is left, the disk of the running sandbox that has grown
//     most does not grow, then the next one's. A sandbox that grows all the same is stopped.
func (m *Manager) WatchSpace(ctx context.Context) error {
	if m.opt.Space == nil {
		return nil
	}
	m.yieldSpace()() // which keeps room back from here on
	var w spaceWatch
	return periodic.Run(ctx, spaceEvery, func(time.Time) {
		if err := w.look(ctx, m); err != nil && ctx.Err() == nil {
			m.opt.Logger.Error("the reserve of the host's disk cannot be kept", "error", err)
		}
	})
}

// spaceWatch compares the disks of running sandboxes with their earlier sizes.
type spaceWatch struct {
	before map[string]int64 // bytes by the sandbox's ID, of those that ran
	taken  time.Time        // of before

	over map[string]string // why an owner has more than its share, by account
	low  map[string]string // why whoever has it is refused while little is left, by account or ID
	held map[string]bool   // IDs of those whose disks have been capped; nil: nobody knows
}

func (w *spaceWatch) look(ctx context.Context, m *Manager) error {
	if w.before == nil {
		w.over, w.low = map[string]string{}, map[string]string{}
	}
	all := m.List()
	// After the disks: a write that is counted in one of them is missing from what is left.
	free, err := m.opt.Space.Free()
	if err != nil {
		return err
	}
	used, totals := map[string]int64{}, map[string]int64{}
	var most sandbox.Info
	var grown int64
	for _, i := range all {
		totals[accountOf(i)] += i.Storage.Total()
		if i.State != sandbox.Running {
			continue
		}
		n := i.Storage.Disk
		used[i.ID] = n
		before, known := w.before[i.ID]
		if g := n - before; known && g >= leastGrowth && g > grown {
			most, grown = i, g
		}
	}
	enough := free >= m.opt.Reserve
	// While too little is left, growth counts from before that, so that a slow writer is
	// found.
	if w.before == nil || enough && time.Since(w.taken) >= growthOver {
		w.before, w.taken = used, time.Now()
	}
	for id, n := range used {
		if _, known := w.before[id]; !known {
			w.before[id] = n
		}
	}
	w.share(m, all, totals)
	w.refuse(m, free, all, totals)
	var errs []error
	var over *sandbox.Info
	if !enough && grown > 0 {
		why := fmt.Sprintf("the host's disk has %s left, less than its reserve of %s, and this sandbox's grew most, by %s",
			size.About(free), size.About(m.opt.Reserve), size.About(grown))
		if w.held[most.ID] {
			over = &most // it was capped, and grows
			errs = append(errs, m.stopForSpace(ctx, most, why))
		} else if w.low[accountOf(most)] == "" {
			w.low[most.ID] = why
		}
		w.before, w.taken = used, time.Now() // the others have until now what they have
	}
	return errors.Join(append(errs, w.cap(ctx, m, all, over))...)
}

// share finds the owners that exceed their quota.
func (w *spaceWatch) share(m *Manager, all []sandbox.Info, totals map[string]int64) {
	quota := m.opt.StoragePerOwner
	over := map[string]string{}
	for _, i := range all {
		of := accountOf(i)
		if owner, n := i.Spec.Owner, totals[of]; quota > 0 && owner != "" && (n > quota || w.over[of] != "" && n > quota-quota/lifted) {
			over[of] = fmt.Sprintf("the sandboxes of tenant %s, their snapshots and their memory on disk take %s of their %s (sandbox.storagePerTenant): %s",
				owner, size.About(n), size.About(quota), makeRoom)
		}
	}
	w.over = over
}

// lifted is the part of a limit by which more must be free for a refusal to end than for
// it to begin.
const lifted = 8

// refuse refuses the owner or sandbox with the most while little is left, and ends all
// such refusals when there is room.
func (w *spaceWatch) refuse(m *Manager, free int64, all []sandbox.Info, totals map[string]int64) {
	low := 2 * m.opt.Reserve
	if free >= low+low/lifted {
		clear(w.low)
	}
	if free >= low {
		return
	}
	var most *sandbox.Info
	for n, i := range all {
		if most == nil || totals[accountOf(i)] > totals[accountOf(*most)] {
			most = &all[n]
		}
	}
	if most == nil || w.low[accountOf(*most)] != "" {
		return
	}
	whose := "this sandbox, with its snapshots and its memory on disk,"
	if most.Spec.Owner != "" {
		whose = "tenant " + most.Spec.Owner
	}
	w.low[accountOf(*most)] = fmt.Sprintf("the host's disk is nearly full, and %s has most of it, %s: remove snapshots, sandboxes or files", whose, size.About(totals[accountOf(*most)]))
}

// cap caps the disks of refused sandboxes, except the one that is being stopped.
func (w *spaceWatch) cap(ctx context.Context, m *Manager, all []sandbox.Info, but *sandbox.Info) error {
	caps := maps.Clone(w.over)
	maps.Copy(caps, w.low)
	m.mu.Lock()
	m.caps = caps
	m.mu.Unlock()
	var errs []error
	held := map[string]bool{}
	for _, i := range all {
		if i.State != sandbox.Running && i.State != sandbox.Paused || but != nil && but.ID == i.ID {
			continue
		}
		why, dir := cmp.Or(caps[accountOf(i)], caps[i.ID]), m.dir(i.Name)
		switch {
		case why != "":
			// At each look: it may have been restarted.
			if err := m.opt.Space.Cap(dir); err != nil {
				errs = append(errs, err)
				held[i.ID] = true // so that it is stopped if it grows
				continue
			}
			if held[i.ID] = true; !w.held[i.ID] {
				// Its growth counts from here.
				if n, err := m.opt.Space.Used(dir); err == nil {
					w.before[i.ID] = n
				}
				m.opt.Logger.Warn("a sandbox's disk takes no more", "sandbox", i.Name, "reason", why)
				errs = append(errs, m.opt.Recorder.Append(ctx, state.Lifecycle(recordOf(i), "capped", why)))
			}
		case w.held == nil || w.held[i.ID]: // an earlier process may have capped it
			errs = append(errs, m.opt.Space.Uncap(dir))
			if w.held[i.ID] {
				errs = append(errs, m.opt.Recorder.Append(ctx, state.Lifecycle(recordOf(i), "uncapped", "there is room again")))
			}
		}
	}
	w.held = held
	return errors.Join(errs...)
}

// recordOf is the part of a record that an event needs.
func recordOf(i sandbox.Info) state.Record {
	return state.Record{Name: i.Name, ID: i.ID, Session: i.Session, Spec: i.Spec, Lineage: i.Lineage}
}

// stopForSpace ends a sandbox's session at once, to keep it from writing. Its files stay.
func (m *Manager) stopForSpace(ctx context.Context, i sandbox.Info, why string) error {
	// It is killed without a grace period, not through the engine, which would start a
	// program for that, and without waiting for the lock: meanwhile it could write.
	killed := m.killContainer(ctx, i.ID)
	e := m.entry(i.Name)
	defer m.release(e)
	if !e.exists {
		m.forget(i.Name, e)
	}
	if !e.exists || e.Rec.ID != i.ID || e.state != sandbox.Running || e.Rec.Session != i.Session {
		return nil
	}
	m.opt.Logger.Warn("a sandbox is stopped to keep room for the host", "sandbox", i.Name, "reason", why)
	e.Rec.Held = why // kept by the end of the session
	return errors.Join(killed, m.halt(context.WithoutCancel(ctx), e, why))
}

// killContainer kills the first process of a sandbox, without its lock.
func (m *Manager) killContainer(ctx context.Context, id string) error {
	st, err := m.opt.Runtime.Status(ctx, id)
	if err == nil && st.Running && st.PID > 1 {
		err = unix.Kill(st.PID, unix.SIGKILL)
	}
	if errors.Is(err, sandbox.ErrNotFound) || errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// storage is the space that a sandbox takes. Files that cannot be read count as 0: they
// are being made or removed.
func (m *Manager) storage(name string) (s sandbox.Storage) {
	if m.opt.Space != nil {
		s.Disk, _ = m.opt.Space.Used(m.dir(name))
	}
	s.Memory = allocated(filepath.Join(m.dir(name), checkpointFile)) + allocated(filepath.Join(m.dir(name), checkpointFile+partSuffix))
	for _, file := range memory.HostFiles() {
		s.History += allocated(filepath.Join(m.dir(name), file))
	}
	folders, _ := os.ReadDir(m.snapshotsDir(name))
	for _, f := range folders {
		dir := filepath.Join(m.snapshotsDir(name), f.Name())
		files, _ := os.ReadDir(dir)
		for _, f := range files {
			s.Snapshots += allocated(filepath.Join(dir, f.Name()))
		}
	}
	return s
}

// allocated is the space that a file takes on the host's disk, in bytes.
func allocated(path string) int64 {
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil {
		return 0
	}
	return st.Blocks * 512
}

// account names the account of a sandbox's bytes: its owner's, or its own.
func account(owner, id string) string {
	if owner == "" {
		return id
	}
	return "owner " + owner
}

func accountOf(i sandbox.Info) string { return account(i.Spec.Owner, i.ID) }

// sized adds to an Info the space that the sandbox takes.
func (m *Manager) sized(i sandbox.Info) sandbox.Info {
	i.Storage = m.storage(i.Name)
	m.mu.Lock()
	defer m.mu.Unlock()
	i.Capped = cmp.Or(m.caps[accountOf(i)], m.caps[i.ID])
	return i
}

// reserveStorage reserves n bytes of the host's disk for a sandbox until done. It refuses
// if the owner's quota has no room for them, or if the owner has the most on a disk that
// is nearly full.
func (m *Manager) reserveStorage(owner, id string, n int64) (done func(), err error) {
	of, used := account(owner, id), int64(0)
	quota := m.opt.StoragePerOwner
	if owner == "" {
		quota = 0
	}
	if quota > 0 {
		for _, i := range m.List() {
			if i.Spec.Owner == owner {
				used += i.Storage.Total()
			}
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if why := cmp.Or(m.caps[of], m.caps[id]); why != "" {
		return nil, fmt.Errorf("%w: %s", sandbox.ErrStorageQuota, why)
	}
	if used += m.booked[of]; quota > 0 && used+n > quota {
		return nil, fmt.Errorf("%w: the sandboxes of tenant %s, their snapshots and their memory on disk take %s of their %s (sandbox.storagePerTenant), and this may take %s more: %s",
			sandbox.ErrStorageQuota, owner, size.About(used), size.About(quota), size.About(n), makeRoom)
	}
	m.booked[of] += n
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.booked[of] -= n; m.booked[of] <= 0 {
			delete(m.booked, of)
		}
	}, nil
}

// makeRoom is the advice in an ErrStorageQuota.
const makeRoom = "remove snapshots or sandboxes (`sallyport sandbox ls` says what each takes), or have the limit raised"
