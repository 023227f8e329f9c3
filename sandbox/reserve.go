package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/internal/size"
)

// ErrFull refuses to create or start a sandbox on a host whose disk is nearly full.
var ErrFull = errors.New("the host's disk is nearly full")

// Space is the host's file system that sandboxes' disks take from. Both are in
// bytes, and count what was written and is not on the disk yet.
type Space interface {
	Free() (int64, error)
	Used(folder string) (int64, error) // by the disk in a sandbox's own folder
	// Yield gives up what Settle keeps back for the moment in which nothing is left.
	// Settle takes it again, or what there is of it. Both may be called again.
	Yield() error
	Settle() error
	// Cap keeps that disk from growing: what a sandbox writes to it ends as on a full
	// disk, at what it had when it was capped. It lasts until Uncap, or until the
	// sandbox ends. Both may be called again.
	Cap(folder string) error
	Uncap(folder string) error
}

const (
	// spaceEvery is how often the space that is left is looked at: what can be
	// written meanwhile is what a reserve is overshot by.
	spaceEvery = 250 * time.Millisecond
	// growthOver is how far back the growth of disks is compared.
	growthOver = 10 * time.Second
	// leastGrowth is what a disk must have grown by to be held: the journal and
	// the times of files take a little even where nothing is written.
	leastGrowth = 1 << 20
)

// roomy refuses where less is left than the host's reserve. Nobody knows whether
// there is room where that cannot be asked.
func (m *Manager) roomy() error { return m.roomyFor(0) }

// roomyFor is roomy once so many bytes more are written.
func (m *Manager) roomyFor(n int64) error {
	if m.opt.Space == nil {
		return nil
	}
	free, err := m.opt.Space.Free()
	if err != nil {
		return err
	}
	if free-n < m.opt.Reserve {
		return fmt.Errorf("%w: %s are left, and %s are kept for the host (sandbox.reserve): remove sandboxes or files, or use a larger disk",
			ErrFull, size.About(free), size.About(m.opt.Reserve))
	}
	return nil
}

// whileRoomy is a context that is done, with ErrFull as its cause, when less than
// the reserve is left: what the host writes for a sandbox counts as what that writes.
func (m *Manager) whileRoomy(ctx context.Context) (context.Context, context.CancelFunc) {
	return m.whileRoomyFor(ctx, 0)
}

// whileRoomyFor is whileRoomy that leaves so many bytes besides.
func (m *Manager) whileRoomyFor(ctx context.Context, n int64) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	if m.opt.Space != nil {
		go func() {
			tick := time.NewTicker(spaceEvery)
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				if err := m.roomyFor(n); err != nil {
					cancel(err)
				}
			}
		}()
	}
	return ctx, func() { cancel(nil) }
}

// lastRoom is what is left of the host's disk when ends of sessions and sandboxes are
// given what Space keeps back for them, in bytes.
const lastRoom = 32 << 20

// endings counts what is being ended.
type endings struct {
	mu    sync.Mutex
	under int
}

// ending makes room for an end, which has to be written down, on a disk that is full:
// without that the sandbox that fills it could not be removed. done takes it back.
func (m *Manager) ending() (done func()) {
	if m.opt.Space == nil {
		return func() {}
	}
	m.ends.mu.Lock()
	defer m.ends.mu.Unlock()
	m.ends.under++
	if free, err := m.opt.Space.Free(); err != nil || free < lastRoom {
		m.cannotKeep(m.opt.Space.Yield())
	}
	return func() {
		m.ends.mu.Lock()
		defer m.ends.mu.Unlock()
		if m.ends.under--; m.ends.under == 0 {
			m.cannotKeep(m.opt.Space.Settle())
		}
	}
}

func (m *Manager) cannotKeep(err error) {
	if err != nil {
		m.opt.Logger.Warn("room for the end of sandboxes on a full disk cannot be kept", "error", err)
	}
}

// WatchSpace keeps owners to their share of the host's disk, and the reserve for the
// host, until ctx is done. Writes are refused before anything is stopped:
//
//   - While an owner's sandboxes take more than they may, their disks do not grow.
//   - While less than twice the reserve is left, so it is of whoever has most: an owner,
//     or a sandbox of the host's own. Nothing more is written down for that one either.
//   - While less than the reserve is left, so it is of the running sandbox whose disk has
//     grown most, then of the next one. One that grows all the same is stopped.
func (m *Manager) WatchSpace(ctx context.Context) error {
	if m.opt.Space == nil {
		return nil
	}
	m.ending()() // which keeps room back from here on
	tick := time.NewTicker(spaceEvery)
	defer tick.Stop()
	var w spaceWatch
	for {
		if err := w.look(ctx, m); err != nil && ctx.Err() == nil {
			m.opt.Logger.Error("the reserve of the host's disk cannot be kept", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// spaceWatch compares the disks of what runs with how they were.
type spaceWatch struct {
	before map[string]int64 // bytes by the sandbox's ID, of those that ran
	taken  time.Time        // of before

	over map[string]string // why an owner has more than its share, by account
	low  map[string]string // why whoever has it is refused while little is left, by account or ID
	held map[string]bool   // IDs of those whose disks have been capped; nil: nobody knows
}

func (w *spaceWatch) look(ctx context.Context, m *Manager) error {
	free, err := m.opt.Space.Free()
	if err != nil {
		return err
	}
	if w.before == nil {
		w.over, w.low = map[string]string{}, map[string]string{}
	}
	all := m.List()
	used, totals := map[string]int64{}, map[string]int64{}
	var most Info
	var grown int64
	for _, i := range all {
		totals[i.account()] += i.Storage.Total()
		if i.State != Running {
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
	// Where there is too little, growth counts from before that was so: one that
	// writes slowly is found too.
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
	var over *Info
	if !enough && grown > 0 {
		why := fmt.Sprintf("the host's disk has %s left, less than its reserve of %s, and this sandbox's grew most, by %s",
			size.About(free), size.About(m.opt.Reserve), size.About(grown))
		if w.held[most.ID] {
			over = &most // it was capped, and grows
			errs = append(errs, m.hold(ctx, most, why))
		} else if w.low[most.account()] == "" {
			w.low[most.ID] = why
		}
		w.before, w.taken = used, time.Now() // the others have until now what they have
	}
	return errors.Join(append(errs, w.cap(ctx, m, all, over))...)
}

// share finds the owners that have more than they may.
func (w *spaceWatch) share(m *Manager, all []Info, totals map[string]int64) {
	quota := m.opt.StoragePerOwner
	over := map[string]string{}
	for _, i := range all {
		of := i.account()
		if owner, n := i.Spec.Owner, totals[of]; quota > 0 && owner != "" && (n > quota || w.over[of] != "" && n > quota-quota/lifted) {
			over[of] = fmt.Sprintf("the sandboxes of tenant %s, their snapshots and their memory on disk take %s of their %s (sandbox.storagePerTenant): %s",
				owner, size.About(n), size.About(quota), makeRoom)
		}
	}
	w.over = over
}

// lifted is the part of a limit by which there has to be more room for a refusal to end
// than for it to begin.
const lifted = 8

// refuse finds whoever has most while little is left, and forgives all when there is
// room again.
func (w *spaceWatch) refuse(m *Manager, free int64, all []Info, totals map[string]int64) {
	low := 2 * m.opt.Reserve
	if free >= low+low/lifted {
		clear(w.low)
	}
	if free >= low {
		return
	}
	var most *Info
	for n, i := range all {
		if most == nil || totals[i.account()] > totals[most.account()] {
			most = &all[n]
		}
	}
	if most == nil || w.low[most.account()] != "" {
		return
	}
	whose := "this sandbox, with its snapshots and its memory on disk,"
	if most.Spec.Owner != "" {
		whose = "tenant " + most.Spec.Owner
	}
	w.low[most.account()] = fmt.Sprintf("the host's disk is nearly full, and %s has most of it, %s: remove snapshots, sandboxes or files", whose, size.About(totals[most.account()]))
}

// cap keeps the disks of those from growing that are refused, but for the one that is
// stopped for it.
func (w *spaceWatch) cap(ctx context.Context, m *Manager, all []Info, but *Info) error {
	caps := maps.Clone(w.over)
	maps.Copy(caps, w.low)
	m.mu.Lock()
	m.caps = caps
	m.mu.Unlock()
	var errs []error
	held := map[string]bool{}
	for _, i := range all {
		if i.State != Running && i.State != Paused || but != nil && but.ID == i.ID {
			continue
		}
		why, dir := cmp.Or(caps[i.account()], caps[i.ID]), m.dir(i.Name)
		switch {
		case why != "":
			// Again each time: it may have been started since.
			if err := m.opt.Space.Cap(dir); err != nil {
				errs = append(errs, err)
				held[i.ID] = true // so that it is stopped if it grows
				continue
			}
			if held[i.ID] = true; !w.held[i.ID] {
				// What it has written until now is forgiven.
				if n, err := m.opt.Space.Used(dir); err == nil {
					w.before[i.ID] = n
				}
				m.opt.Logger.Warn("a sandbox's disk takes no more", "sandbox", i.Name, "reason", why)
				errs = append(errs, m.opt.Recorder.Append(ctx, detailed(i.record(), "capped", why)))
			}
		case w.held == nil || w.held[i.ID]: // an earlier process may have capped it
			errs = append(errs, m.opt.Space.Uncap(dir))
			if w.held[i.ID] {
				errs = append(errs, m.opt.Recorder.Append(ctx, detailed(i.record(), "uncapped", "there is room again")))
			}
		}
	}
	w.held = held
	return errors.Join(errs...)
}

// record is what an event says of a sandbox.
func (i Info) record() record {
	return record{Name: i.Name, ID: i.ID, Session: i.Session, Spec: i.Spec, Lineage: i.Lineage}
}

// hold keeps a sandbox from writing more: its session ends at once, its files stay.
func (m *Manager) hold(ctx context.Context, i Info, why string) error {
	// It gets no time to end in, not even what an engine takes to start a program
	// that kills it, nor what something takes that is being done to it: it could go on
	// writing.
	killed := m.slay(ctx, i.ID)
	e := m.entry(i.Name)
	defer m.release(e)
	if !e.exists {
		m.drop(i.Name, e)
	}
	if !e.exists || e.rec.ID != i.ID || e.state != Running || e.rec.Session != i.Session {
		return nil
	}
	m.opt.Logger.Warn("a sandbox is stopped to keep room for the host", "sandbox", i.Name, "reason", why)
	e.rec.Held = why // kept by the end of the session
	return errors.Join(killed, m.halt(context.WithoutCancel(ctx), e, why))
}

// slay kills what runs of a sandbox, without its lock.
func (m *Manager) slay(ctx context.Context, id string) error {
	st, err := m.opt.Runtime.Status(ctx, id)
	if err == nil && st.Running && st.PID > 1 {
		err = unix.Kill(st.PID, unix.SIGKILL)
	}
	if errors.Is(err, ErrNotFound) || errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}
