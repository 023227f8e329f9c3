package manager

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"sallyport/sandbox"
	"sallyport/sandbox/state"
)

// stopGrace is how long a sandbox's processes have between SIGTERM and SIGKILL.
const stopGrace = 5 * time.Second

func (m *Manager) start(ctx context.Context, e *entry) error {
	if e.state == sandbox.Running {
		return nil
	}
	if err := e.Rec.CheckLifetime(); err != nil {
		return err
	}
	if e.failed() {
		return fmt.Errorf("%w: it is in error: %s: `sallyport sandbox recover %s` is the way out", sandbox.ErrState, e.Rec.Reason, e.Rec.Name)
	}
	if err := m.checkDisk(); err != nil {
		return err
	}
	switch e.state {
	case sandbox.Paused:
		return m.resume(ctx, e)
	case sandbox.Hibernated:
		return m.wake(ctx, e)
	}
	if err := m.finishRestore(ctx, e); err != nil {
		return err
	}
	if err := m.renewSpec(ctx, e); err != nil {
		return err
	}
	return m.begin(ctx, e, "", nil, func() (sandbox.Status, error) { return m.opt.Runtime.Start(ctx, e.Rec.ID) })
}

// begin is the start of a session, in which run has the container run. agent is the
// key of the agent that is in the memory that it begins with, or nil.
func (m *Manager) begin(ctx context.Context, e *entry, why string, agent []byte, run func() (sandbox.Status, error)) error {
	if err := m.renew(ctx, e, why, agent); err != nil {
		return err
	}
	e.fresh = false
	rec := e.Rec
	var st sandbox.Status
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
		return errors.Join(err, m.end(ctx, e, "failed to start: "+err.Error()), m.noteDamage(e, err))
	}
	return nil
}

// renew gives a sandbox a new session, which is on record when it returns.
func (m *Manager) renew(ctx context.Context, e *entry, why string, agent []byte) error {
	if err := e.Rec.CheckLifetime(); err != nil {
		return err
	}
	gen, err := m.newGeneration()
	if err != nil {
		return err
	}
	rec := e.Rec
	rec.Generation, rec.Session = gen, uuid.Must(uuid.NewV7()).String()
	return m.journal.Transact(ctx, &e.Stored, state.Lifecycle(rec, "started", why), func(r *state.Record) {
		r.Generation, r.Session, r.Reason, r.Held, r.Agent = rec.Generation, rec.Session, "", "", agent
	})
}

// attach makes the sandbox's identity known to the gateway, then lets its
// packets pass.
func (m *Manager) attach(e *entry, st sandbox.Status) error {
	if st.Link == 0 {
		return fmt.Errorf("the container has no network interface: is the engine Sallyport's own?")
	}
	e.state = sandbox.Running
	m.publish(e.Rec.Address, m.info(e))
	err := m.opt.Network.Attach(sandbox.Endpoint{
		Link: st.Link, Sandbox: e.Rec.Name, ID: e.Rec.ID,
		Generation: e.Rec.Generation, Address: e.Rec.Address, MAC: e.Rec.MAC,
		Offline: e.Rec.Spec.Offline,
	})
	if err != nil {
		return fmt.Errorf("attaching the sandbox's identity: %w", err)
	}
	return nil
}

// halt ends the session: the sandbox's packets first, then its identity, then
// its processes. Whatever fails, all of it is tried.
func (m *Manager) halt(ctx context.Context, e *entry, why string) error {
	defer m.yieldSpace()()
	var errs []error
	e.closeAgent() // while its end can still be told
	if e.Rec.Generation != 0 {
		errs = append(errs, m.opt.Network.Detach(e.Rec.Generation))
	}
	m.publish(e.Rec.Address, sandbox.Info{})
	if e.Rec.Sleep != state.Awake {
		m.opt.Gate.End(e.Rec.Address)
		// What is paused does not see that it is asked to end.
		_ = m.opt.Runtime.Resume(ctx, e.Rec.ID)
	}
	if err := m.opt.Runtime.Stop(ctx, e.Rec.ID, stopGrace); err != nil && !errors.Is(err, sandbox.ErrNotFound) {
		errs = append(errs, err)
	}
	errs = append(errs, m.detachDisk(e.Rec))
	e.state = sandbox.Stopped
	err := m.journal.CommitWithEvent(context.WithoutCancel(ctx), &e.Stored, state.Lifecycle(e.Rec, "stopped", why), func(r *state.Record) {
		r.Session = ""
		r.Wake()
	})
	if e.Rec.Sleep == state.Awake {
		err = errors.Join(err, m.removeMemory(e))
	}
	return errors.Join(append(errs, err)...)
}

// end is halt for a session that is over for good: an ephemeral sandbox ends with
// it.
func (m *Manager) end(ctx context.Context, e *entry, why string) error {
	if err := m.halt(ctx, e, why); err != nil || !e.Rec.Spec.Ephemeral {
		return err
	}
	return m.remove(ctx, e, "ephemeral")
}

// remove removes a sandbox that does not run.
func (m *Manager) remove(ctx context.Context, e *entry, why string) error {
	defer m.yieldSpace()()
	if err := m.journal.Transact(ctx, &e.Stored, state.Lifecycle(e.Rec, "removed", why), func(r *state.Record) { r.Ready = false }); err != nil {
		return err
	}
	// What fails from here on is tried again by the next settle.
	if err := m.discard(ctx, e.Rec); err != nil {
		return err
	}
	m.forget(e.Rec.Name, e)
	return nil
}

// What is done about lifetimes.
const (
	lifetimeTick  = time.Second
	lifetimeStops = 4 // at once
)

// expire ends what has outlived its lifetime, until ctx is done. What fails is
// tried again.
func (m *Manager) expire(ctx context.Context) {
	tick := time.NewTicker(lifetimeTick)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			m.expireAll(ctx)
		}
	}
}

func (m *Manager) expireAll(ctx context.Context) {
	var g errgroup.Group
	g.SetLimit(lifetimeStops)
	for _, i := range m.List() {
		over := state.Record{Spec: i.Spec, Created: i.Created}.Expired(time.Now())
		if !over || !i.State.Live() && !i.Spec.Ephemeral {
			continue
		}
		g.Go(func() error {
			if err := m.expireOne(ctx, i); err != nil && ctx.Err() == nil {
				m.opt.Logger.Warn("a sandbox that has outlived its lifetime cannot be ended", "sandbox", i.Name, "error", err)
			}
			return nil
		})
	}
	_ = g.Wait()
}

// expireOne ends one, if it still is the one that was seen.
func (m *Manager) expireOne(ctx context.Context, seen sandbox.Info) error {
	e := m.known(seen.Name)
	if e == nil || !e.mu.TryLock() {
		return nil // gone, or busy: the next look finds it, and others do not wait
	}
	defer m.release(e)
	if !e.exists || e.Rec.ID != seen.ID || !e.Rec.Expired(time.Now()) {
		return nil
	}
	why := fmt.Sprintf("its lifetime of %v has ended", e.Rec.Spec.Lifetime)
	if e.state != sandbox.Stopped {
		return m.end(ctx, e, why)
	}
	if e.Rec.Spec.Ephemeral {
		return m.remove(ctx, e, why)
	}
	return nil
}
