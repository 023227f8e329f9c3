package sandbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// reconcile brings runtime and network into agreement with the records, but for
// those of sandboxes that something is being done to: busy tells whether there are
// any.
func (m *Manager) reconcile(ctx context.Context) (busy bool, err error) {
	attached, err := m.opt.Network.Endpoints()
	if err != nil {
		return false, fmt.Errorf("listing network endpoints: %w", err)
	}
	byGeneration := map[uint32]Endpoint{}
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
		keep, err := m.settle(ctx, e, byGeneration[e.rec.Generation])
		if keep {
			delete(byGeneration, e.rec.Generation)
		}
		m.release(e)
		if errors.Is(err, ErrEngine) {
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

// settle brings one sandbox into agreement and says whether its endpoint stays.
func (m *Manager) settle(ctx context.Context, e *entry, have Endpoint) (keep bool, err error) {
	if !e.exists {
		return false, nil
	}
	if e.rec.Ready {
		if err := m.retell(ctx, e); err != nil {
			return true, err
		}
	} else {
		m.opt.Logger.Info("removing a half-made sandbox", "sandbox", e.rec.Name)
		if err := m.abort(ctx, e, "the daemon ended while it was being made"); err != nil {
			return false, err
		}
		m.drop(e.rec.Name, e)
		return false, nil
	}
	if e.rec.Sleep == awake { // a crash may have come before
		if err := m.clear(e); err != nil {
			return true, err
		}
	}
	if err := m.tidy(ctx, e); err != nil {
		m.opt.Logger.Warn("old snapshots are not removed", "sandbox", e.rec.Name, "error", err)
	}
	if e.rec.Restoring != "" && e.state == Stopped {
		if err := m.mend(ctx, e); err != nil {
			m.opt.Logger.Warn("a sandbox is restored by half", "sandbox", e.rec.Name, "error", err)
		}
	}
	if have.Link == 0 && e.rec.Generation != 0 {
		// It may have been attached since the list was made.
		if have, err = m.endpoint(e.rec.Generation); err != nil {
			return false, err
		}
	}
	st, err := m.opt.Runtime.Status(ctx, e.rec.ID)
	switch {
	case errors.Is(err, ErrNotFound):
		if e.failed() {
			return false, nil // it is known
		}
		return false, m.fail(ctx, e, fmt.Sprintf("its container is gone: `sallyport sandbox recover %s` makes it again", e.rec.Name))
	case err != nil:
		return false, fmt.Errorf("asking for sandbox %s: %w", e.rec.Name, err)
	case e.rec.Sleep == awake && st.Paused:
		// It was being paused, or resumed, when we ended.
		if err := m.opt.Runtime.Resume(ctx, e.rec.ID); err != nil {
			return false, err
		}
		return m.identify(ctx, e, have, st)
	case e.rec.Sleep != awake:
		return m.settleSleep(ctx, e, have, st)
	case st.Running && e.rec.Session == "" && !(have.Link == st.Link && st.Link != 0):
		return false, m.unplug(ctx, e.rec) // a crash came before its session, or after
	case st.Running:
		return m.identify(ctx, e, have, st)
	case e.rec.Session != "" || have.Link != 0:
		return false, m.end(ctx, e, fmt.Sprintf("ended by itself with exit code %d", st.Exit))
	case e.rec.Spec.Ephemeral && e.rec.Generation != 0:
		return false, m.remove(ctx, e, "ephemeral") // a crash came before
	case e.fresh:
		return false, m.unplugFresh(ctx, e)
	default:
		return false, nil
	}
}

// identify has the network vouch for a sandbox that runs. It keeps its endpoint
// where it has one.
func (m *Manager) identify(ctx context.Context, e *entry, have Endpoint, st Status) (keep bool, err error) {
	if have.Link == st.Link && st.Link != 0 {
		e.state = Running
		m.publish(e.rec.Address, m.info(e))
		m.confine(e)
		return true, nil
	}
	// It runs on an interface that nothing vouches for: identify it anew.
	if err := m.renumber(e); err != nil {
		return false, err
	}
	if err := m.attach(e, st); err != nil {
		return false, errors.Join(err, m.end(ctx, e, "could not be identified: "+err.Error()))
	}
	return true, nil
}

func (m *Manager) endpoint(generation uint32) (Endpoint, error) {
	all, err := m.opt.Network.Endpoints()
	for _, ep := range all {
		if ep.Generation == generation {
			return ep, err
		}
	}
	return Endpoint{}, err
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
