package sandbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// stopGrace is how long a sandbox's processes have between SIGTERM and SIGKILL.
const stopGrace = 5 * time.Second

func (m *Manager) start(ctx context.Context, e *entry) error {
	if e.state == Running {
		return nil
	}
	if err := e.rec.outlived(); err != nil {
		return err
	}
	if e.failed() {
		return fmt.Errorf("%w: it is in error: %s: `sallyport sandbox recover %s` is the way out", ErrState, e.rec.Reason, e.rec.Name)
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
	if err := m.renewSpec(ctx, e); err != nil {
		return err
	}
	return m.begin(ctx, e, "", nil, func() (Status, error) { return m.opt.Runtime.Start(ctx, e.rec.ID) })
}

// begin is the start of a session, in which run has the container run. agent is the
// key of the agent that is in the memory that it begins with, or nil.
func (m *Manager) begin(ctx context.Context, e *entry, why string, agent []byte, run func() (Status, error)) error {
	if err := m.renew(ctx, e, why, agent); err != nil {
		return err
	}
	e.fresh = false
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
func (m *Manager) renew(ctx context.Context, e *entry, why string, agent []byte) error {
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
		r.Generation, r.Session, r.Reason, r.Held, r.Agent = rec.Generation, rec.Session, "", "", agent
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
	defer m.ending()()
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
		r.Boot = ""
	})
	if e.rec.Sleep == awake {
		err = errors.Join(err, m.clear(e))
	}
	return errors.Join(append(errs, err)...)
}
