package manager

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"sallyport/internal/periodic"
	"sallyport/sandbox"
	"sallyport/sandbox/state"
)

// reconcile brings the runtime and the network into agreement with the records. It skips a
// sandbox whose lock is held, and reports with busy that there is one.
func (m *Manager) reconcile(ctx context.Context) (busy bool, err error) {
	attached, err := m.opt.Network.Endpoints()
	if err != nil {
		return false, fmt.Errorf("listing network endpoints: %w", err)
	}
	byGeneration := map[uint32]sandbox.Endpoint{}
	for _, ep := range attached {
		byGeneration[ep.Generation] = ep
	}
	errs := []error{m.sweep()}
	for _, e := range m.all() {
		if !e.mu.TryLock() {
			// Another call holds the lock, perhaps for long. The other sandboxes do not
			// wait for it, and endpoints without an owner stay until the next reconcile.
			busy = true
			continue
		}
		keep, err := m.reconcileOne(ctx, e, byGeneration[e.Rec.Generation])
		if keep {
			delete(byGeneration, e.Rec.Generation)
		}
		m.release(e)
		if errors.Is(err, sandbox.ErrEngine) {
			return busy, err // it will be the same for all others
		}
		errs = append(errs, err)
	}
	if busy {
		return busy, errors.Join(errs...)
	}
	for gen := range byGeneration {
		errs = append(errs, m.opt.Network.Detach(gen))
	}
	return busy, errors.Join(errs...)
}

// reconcileOne brings one sandbox into agreement and says whether its endpoint stays.
func (m *Manager) reconcileOne(ctx context.Context, e *entry, have sandbox.Endpoint) (keep bool, err error) {
	if !e.exists {
		return false, nil
	}
	if e.Rec.Ready {
		if err := m.journal.Deliver(ctx, &e.Stored); err != nil {
			return true, err
		}
	} else {
		m.opt.Logger.Info("removing a half-made sandbox", "sandbox", e.Rec.Name)
		if err := m.discardChild(ctx, e, "the daemon ended while it was being made"); err != nil {
			return false, err
		}
		m.forget(e.Rec.Name, e)
		return false, nil
	}
	if e.Rec.Sleep == state.Awake { // a crash may have come before
		if err := m.removeMemory(e); err != nil {
			return true, err
		}
	}
	if err := m.tidySnapshots(ctx, e); err != nil {
		m.opt.Logger.Warn("old snapshots are not removed", "sandbox", e.Rec.Name, "error", err)
	}
	if e.Rec.Restoring != "" && e.state == sandbox.Stopped {
		if err := m.finishRestore(ctx, e); err != nil {
			m.opt.Logger.Warn("a sandbox is restored by half", "sandbox", e.Rec.Name, "error", err)
		}
	}
	if have.Link == 0 && e.Rec.Generation != 0 {
		// It may have been attached after the list was made.
		if have, err = m.endpoint(e.Rec.Generation); err != nil {
			return false, err
		}
	}
	st, err := m.opt.Runtime.Status(ctx, e.Rec.ID)
	switch {
	case errors.Is(err, sandbox.ErrNotFound):
		if e.failed() {
			return false, nil // it is known
		}
		return false, m.fail(ctx, e, fmt.Sprintf("its container is gone: `sallyport sandbox recover %s` makes it again", e.Rec.Name))
	case err != nil:
		return false, fmt.Errorf("asking for sandbox %s: %w", e.Rec.Name, err)
	case e.Rec.Sleep == state.Awake && st.Paused:
		// The daemon ended while it paused or resumed the sandbox.
		if err := m.opt.Runtime.Resume(ctx, e.Rec.ID); err != nil {
			return false, err
		}
		return m.identify(ctx, e, have, st)
	case e.Rec.Sleep != state.Awake:
		return m.reconcileAsleep(ctx, e, have, st)
	case st.Running && e.Rec.Session == "" && !(have.Link == st.Link && st.Link != 0):
		return false, m.stopAndDetach(ctx, e.Rec) // a crash came before its session, or after
	case st.Running:
		return m.identify(ctx, e, have, st)
	case e.Rec.Session != "" || have.Link != 0:
		return false, m.end(ctx, e, fmt.Sprintf("ended by itself with exit code %d", st.Exit))
	case e.Rec.Spec.Ephemeral && e.Rec.Generation != 0:
		return false, m.remove(ctx, e, "ephemeral") // a crash came before
	case e.fresh:
		return false, m.releaseFreshDisk(ctx, e)
	default:
		return false, nil
	}
}

// identify makes the network vouch for a sandbox that runs. A sandbox keeps the endpoint
// that it has.
func (m *Manager) identify(ctx context.Context, e *entry, have sandbox.Endpoint, st sandbox.Status) (keep bool, err error) {
	if have.Link == st.Link && st.Link != 0 {
		e.state = sandbox.Running
		m.publish(e.Rec.Address, m.info(e))
		m.restoreMemoryLimit(e)
		return true, nil
	}
	// Nothing vouches for the interface that it runs on: attach another endpoint.
	if err := m.renewGeneration(e); err != nil {
		return false, err
	}
	if err := m.attach(e, st); err != nil {
		return false, errors.Join(err, m.end(ctx, e, "could not be identified: "+err.Error()))
	}
	return true, nil
}

func (m *Manager) endpoint(generation uint32) (sandbox.Endpoint, error) {
	all, err := m.opt.Network.Endpoints()
	for _, ep := range all {
		if ep.Generation == generation {
			return ep, err
		}
	}
	return sandbox.Endpoint{}, err
}

// settleEvery is how often Watch reconciles if nothing has happened.
const settleEvery = 30 * time.Second

// busyEvery is how often Watch reconciles while a sandbox is skipped.
const busyEvery = time.Second

// Watch follows what happens to sandboxes without a call of the manager's, restarts of the
// engine included, until ctx is done.
func (m *Manager) Watch(ctx context.Context) error {
	exits, err := m.opt.Runtime.Exits(ctx)
	if err != nil {
		return err
	}
	var others sync.WaitGroup
	defer others.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	others.Go(func() { m.expire(ctx) })
	tick := time.NewTicker(settleEvery)
	defer tick.Stop()
	var soon <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case _, ok := <-exits:
			if !ok {
				if ctx.Err() != nil {
					return nil
				}
				exits = nil // the ticker goes on
			}
		case <-tick.C:
		case <-soon:
		}
		busy, err := m.reconcile(ctx)
		if soon = nil; busy {
			soon = time.After(busyEvery)
		}
		if err != nil && ctx.Err() == nil {
			m.opt.Logger.Warn("sandboxes could not be compared with the engine", "error", err)
		}
	}
}

// settleWait is how long a checkpoint that an earlier daemon began may take.
const settleWait = 30 * time.Second

// reconcileAsleep is reconcileOne for a sandbox that sleeps, or that was falling asleep or
// waking.
func (m *Manager) reconcileAsleep(ctx context.Context, e *entry, have sandbox.Endpoint, st sandbox.Status) (keep bool, err error) {
	switch e.Rec.Sleep {
	case state.Paused:
		return m.reconcilePaused(ctx, e, have, st)
	case state.Resuming:
		return m.reconcileResuming(ctx, e, have, st)
	case state.Hibernating:
		return m.reconcileHibernating(ctx, e, have, st)
	}
	// state.Hibernated or state.Waking: its memory is on the disk.
	switch {
	case st.Running && e.Rec.Sleep == state.Waking:
		// It woke; only its record was not written.
		keep, err := m.identify(ctx, e, have, st)
		if err != nil {
			return keep, err
		}
		return keep, m.finishWake(e)
	case st.Running:
		return false, m.loseMemory(ctx, e, "it was started behind Sallyport's back")
	case e.Rec.Sleep == state.Waking && !st.Started.Equal(e.Rec.Began):
		return false, m.loseMemory(ctx, e, "it ended as it woke")
	}
	if err := m.checkNotRun(ctx, e); err != nil {
		if !errors.Is(err, sandbox.ErrRan) {
			return false, err
		}
		return false, m.loseMemory(ctx, e, "it may have woken before the daemon, or the host, ended: "+err.Error())
	}
	if _, err := os.Stat(m.checkpointPath(e)); errors.Is(err, os.ErrNotExist) {
		return false, m.loseMemory(ctx, e, "its memory checkpoint is gone")
	}
	if e.state == sandbox.Hibernated && have.Link == 0 {
		return false, nil
	}
	err = e.removeLater(m.ram(e))
	if e.Rec.Sleep != state.Hibernated {
		err = errors.Join(err, m.journal.CommitWithEvent(ctx, &e.Stored, state.Lifecycle(e.Rec, "hibernated", "it was woken as the daemon ended, and is as before"), func(r *state.Record) { r.Sleep = state.Hibernated }))
	}
	m.setState(e, sandbox.Hibernated)
	return false, err
}

// checkNotRun returns ErrRan if processes may have run from the memory of a sandbox that
// was waking: the disk may be newer than that memory. The record says that it wakes before
// any of them can run. Only the runtime can say that none ran and none will, and only
// until the host reboots.
func (m *Manager) checkNotRun(ctx context.Context, e *entry) error {
	if e.Rec.Sleep != state.Waking {
		return nil
	}
	now, err := m.boot()
	if err != nil {
		return err
	}
	if e.Rec.Boot != now {
		return fmt.Errorf("%w: in another boot of the host, or one that is not on record", sandbox.ErrRan)
	}
	known, err := m.opt.Runtime.CancelRestore(ctx, e.Rec.ID)
	if err == nil && !known {
		err = sandbox.ErrRan
	}
	return err
}

// boot returns an identifier of this boot of the host.
func (m *Manager) boot() (string, error) {
	if m.opt.boot != "" {
		return m.opt.boot, nil
	}
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id)), err
}

// reconcilePaused handles a sandbox whose record says that it is paused.
func (m *Manager) reconcilePaused(ctx context.Context, e *entry, have sandbox.Endpoint, st sandbox.Status) (keep bool, err error) {
	if !st.Running {
		return false, m.loseMemory(ctx, e, "it ended while it was paused")
	}
	keep, err = m.identify(ctx, e, have, st)
	if err != nil {
		return keep, err
	}
	if st.Paused {
		m.setState(e, sandbox.Paused)
		return keep, nil
	}
	return keep, m.finishResume(ctx, e, "behind Sallyport's back")
}

// reconcileResuming handles a sandbox whose record says that it was to go on.
func (m *Manager) reconcileResuming(ctx context.Context, e *entry, have sandbox.Endpoint, st sandbox.Status) (keep bool, err error) {
	if !st.Running {
		return false, m.loseMemory(ctx, e, "it ended while it was paused")
	}
	if st.Paused {
		if err := m.opt.Runtime.Resume(ctx, e.Rec.ID); err != nil {
			return true, err
		}
	}
	if keep, err = m.identify(ctx, e, have, st); err != nil {
		return keep, err
	}
	return keep, m.finishWake(e)
}

// finishResume records that a sandbox goes on that was paused according to its record.
func (m *Manager) finishResume(ctx context.Context, e *entry, why string) error {
	return errors.Join(m.journal.CommitWithEvent(ctx, &e.Stored, state.Lifecycle(e.Rec, "resumed", why), func(r *state.Record) { r.Sleep = state.Resuming }), m.finishWake(e))
}

// reconcileHibernating handles a sandbox whose memory was being written. The program that
// writes it survives the daemon, and ends the container when the memory is whole.
func (m *Manager) reconcileHibernating(ctx context.Context, e *entry, have sandbox.Endpoint, st sandbox.Status) (keep bool, err error) {
	for deadline := time.Now().Add(settleWait); st.Running; {
		_, whole := os.Stat(m.ram(e))
		_, part := os.Stat(m.ram(e) + ".part")
		if whole != nil && part != nil || time.Now().After(deadline) {
			break // it was not begun, or will not end
		}
		if !periodic.Sleep(ctx, 20*time.Millisecond) {
			return true, ctx.Err()
		}
		if st, err = m.opt.Runtime.Status(ctx, e.Rec.ID); err != nil {
			return true, err
		}
	}
	if st.Running {
		keep, err = m.identify(ctx, e, have, st)
		if err != nil {
			return keep, err
		}
		defer m.restoreMemoryLimit(e) // once what was written is gone
		if e.Rec.Dozed {
			return keep, m.finishResume(ctx, e, "the daemon ended as it was being hibernated")
		}
		return keep, m.finishWake(e)
	}
	if !st.Started.Equal(e.Rec.Began) {
		return false, m.loseMemory(ctx, e, "it ended as it went on from what was written")
	}
	// If its memory could not be sealed, the sandbox was to go on: check whether it did.
	if _, err := m.opt.Runtime.CancelRestore(ctx, e.Rec.ID); errors.Is(err, sandbox.ErrRan) {
		return false, m.loseMemory(ctx, e, "it could not be hibernated, and may have gone on before the daemon ended: "+err.Error())
	} else if err != nil {
		return false, err
	}
	if _, err := os.Stat(m.checkpointPath(e)); err == nil { // sealed, and not recorded
		return false, m.recordHibernated(ctx, e)
	}
	if _, err := os.Stat(m.ram(e)); err == nil {
		build, err := m.opt.Runtime.Build(ctx)
		if err != nil {
			return false, err
		}
		return false, m.finishHibernate(ctx, e, m.sealMemory(e.Rec, build, m.ram(e), m.checkpointPath(e)))
	}
	return false, m.loseMemory(ctx, e, "it ended before its memory was written")
}

// recordHibernated records a checkpoint that was sealed by an earlier daemon.
func (m *Manager) recordHibernated(ctx context.Context, e *entry) error {
	if err := m.journal.CommitWithEvent(ctx, &e.Stored, state.Lifecycle(e.Rec, "hibernated", "recorded after a restart of the daemon"), hibernated); err != nil {
		return err
	}
	m.setState(e, sandbox.Hibernated)
	return e.removeLater(m.ram(e))
}
