package manager

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"sallyport/sandbox"
	"sallyport/sandbox/disk"
	"sallyport/sandbox/state"
)

// reconcile brings runtime and network into agreement with the records, but for
// those of sandboxes that something is being done to: busy tells whether there are
// any.
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
			// Something is being done to it, which may take long: the others, and the
			// endpoints whose owners are not known, do not wait for that.
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
		// It may have been attached since the list was made.
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
		// It was being paused, or resumed, when we ended.
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

// identify has the network vouch for a sandbox that runs. It keeps its endpoint
// where it has one.
func (m *Manager) identify(ctx context.Context, e *entry, have sandbox.Endpoint, st sandbox.Status) (keep bool, err error) {
	if have.Link == st.Link && st.Link != 0 {
		e.state = sandbox.Running
		m.publish(e.Rec.Address, m.info(e))
		m.restoreMemoryLimit(e)
		return true, nil
	}
	// It runs on an interface that nothing vouches for: identify it anew.
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

// settleEvery is how often Watch compares records and reality besides being told.
const settleEvery = 30 * time.Second

// busyEvery is how often it does while something is done to one of them.
const busyEvery = time.Second

// Watch follows what happens to the sandboxes behind the manager's back, an
// engine's restart included, until ctx is done.
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

// What a sandbox is in state Failed for, and what Recover does about it:
//
//   - its container is gone: it is made again of its own image, over what the sandbox
//     had written, which is on its disk. Without a disk of its own that is gone. Where
//     the image is gone too, it is made of the one that has its name now.
//   - its disk cannot be mended: it is tried again, once the operator has.

// Recover gets a sandbox out of Failed: it is stopped then. One that is in no error
// is left as it is.
func (m *Manager) Recover(ctx context.Context, name string) (sandbox.Info, error) {
	return m.withLocked(ctx, name, "recovering", noMemory, func(e *entry) error {
		if !e.failed() {
			return nil
		}
		return m.recover(ctx, e)
	})
}

// failed tells whether a sandbox is in Failed.
func (e *entry) failed() bool {
	return e.Rec.Reason != "" && !e.state.Live()
}

func (m *Manager) recover(ctx context.Context, e *entry) error {
	how, lost, img := "its disk can be used again", "", sandbox.Image{}
	_, err := m.opt.Runtime.Status(ctx, e.Rec.ID)
	switch {
	case errors.Is(err, sandbox.ErrNotFound):
		if err := m.checkImage(e.Rec.Spec); err != nil {
			return err
		}
		how = "its container is made again over its files"
		if e.Rec.Spec.Disk == 0 {
			how = "its container is made again"
			lost = "its container was gone, and with it all files but those in /memory"
		}
		c, err := m.container(e.Rec, e.Rec.Name)
		if err != nil {
			return err
		}
		c.Image = e.Rec.ImageID
		if img, err = m.opt.Runtime.Create(ctx, c); errors.Is(err, sandbox.ErrNoImage) && c.Image != "" {
			c.Image = ""
			if img, err = m.opt.Runtime.Create(ctx, c); err == nil {
				other := fmt.Sprintf("its image %s was gone, and it is made of another one that is named %s now, %s", e.Rec.ImageID, e.Rec.Spec.Image, img.ID)
				how, lost = how+": "+other, strings.TrimPrefix(lost+"; "+other, "; ")
			}
		}
		if err != nil {
			return err
		}
		m.releaseDisk(ctx, e)
		// It has the limits of the spec that it is made of.
	case err != nil:
		return err
	default:
		if err := m.attachDisk(e.Rec); err != nil {
			return err
		}
		if err := m.detachDisk(e.Rec); err != nil {
			return err
		}
	}
	return m.journal.CommitWithEvent(ctx, &e.Stored, state.Lifecycle(e.Rec, "recovered", how), func(r *state.Record) {
		if r.Reason = ""; lost != "" {
			r.Lost = lost
		}
		if img.ID != "" {
			r.SetImage(img)
		}
	})
}

// fail is for a sandbox that has no container any more.
func (m *Manager) fail(ctx context.Context, e *entry, why string) error {
	const gone = "its container is gone"
	switch {
	case e.Rec.Session != "":
		e.Rec.Reason = why
		return m.end(ctx, e, gone)
	case e.Rec.Spec.Ephemeral:
		return m.remove(ctx, e, gone)
	}
	return m.journal.CommitWithEvent(ctx, &e.Stored, state.Lifecycle(e.Rec, "failed", gone), func(r *state.Record) { r.Reason = why })
}

// noteDamage notes of a start that failed what only an operator can mend.
func (m *Manager) noteDamage(e *entry, err error) error {
	if !e.exists || !errors.Is(err, disk.ErrDamaged) {
		return nil
	}
	return m.journal.Commit(&e.Stored, func(r *state.Record) { r.Reason = fmt.Sprintf("%v; then `sallyport sandbox recover %s`", err, r.Name) })
}
