package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"sallyport/internal/durable"
)

// What a record says of a sandbox's sleep. A step that may be cut short by a crash
// has a word of its own, and reconcile knows the way out of each.
const (
	awake       = ""
	pausedNow   = "paused"
	resuming    = "resuming"    // it is on record that it goes on
	hibernating = "hibernating" // its memory is being written
	hibernated  = "hibernated"  // its memory is in checkpointFile
	waking      = "waking"      // the same, and the container is being started with it
)

// maxWakes is how often a checkpoint that is whole may fail to be restored before
// the sandbox starts from its disk.
const maxWakes = 2

// asleep tells whether a sandbox has a session that does not run now.
func (s State) asleep() bool { return s == Paused || s == Hibernated }

// live tells whether a sandbox has a session.
func (s State) live() bool { return s == Running || s.asleep() }

// ram is where a sandbox's memory is while it is written and read: a folder in
// memory.
func (m *Manager) ram(e *entry) string { return filepath.Join(m.opt.RAM, e.rec.ID) }

func (m *Manager) checkpointPath(e *entry) string {
	return filepath.Join(m.dir(e.rec.Name), checkpointFile)
}

// clear removes what there may be of a sandbox's memory.
func (m *Manager) clear(e *entry) error {
	var errs []error
	if m.opt.RAM != "" && e.rec.ID != "" {
		errs = append(errs, e.drop(m.ram(e)), e.drop(m.ram(e)+".part"))
	}
	for _, path := range []string{m.checkpointPath(e), m.checkpointPath(e) + ".part"} {
		errs = append(errs, e.drop(path))
	}
	return errors.Join(errs...)
}

// drop removes a file, or a folder of files. To give back what a large one takes is
// tens of milliseconds, in which nobody need wait: the kernel does it with the last
// descriptor (unlink(2)), wherever this process ends. Whoever has to know that it is done waits for e.freeing. The entry's lock is held.
func (e *entry) drop(path string) error {
	names := []string{path}
	files, _ := os.ReadDir(path)
	for _, f := range files {
		names = append(names, filepath.Join(path, f.Name()))
	}
	var held []*os.File
	for _, n := range names {
		if f, err := os.Open(n); err == nil {
			held = append(held, f)
		}
	}
	err := os.RemoveAll(path)
	e.freeing.Go(func() {
		for _, f := range held {
			_ = f.Close()
		}
	})
	return err
}

// Pause stops a running sandbox where it is: in RAM, taking no CPU time. Any use
// wakes it. One that sleeps already is left as it is.
func (m *Manager) Pause(ctx context.Context, name string) (Info, error) {
	return m.doing(ctx, name, "pausing", noRoom, func(e *entry) error {
		if e.state.asleep() {
			return nil
		}
		return m.pause(ctx, e)
	})
}

func (m *Manager) pause(ctx context.Context, e *entry) error {
	if e.state != Running {
		return m.idle(e)
	}
	flows := m.opt.Gate.Sleep(ctx, e.rec.Address)
	e.hangUp()
	err := m.opt.Runtime.Pause(ctx, e.rec.ID)
	if err == nil {
		ctx, ev := context.WithoutCancel(ctx), lifecycle(e.rec, "paused")
		err = m.tell(ctx, e, ev, func(r *record) { r.Sleep, r.Flows, r.Slept = pausedNow, flows, now() })
		if err != nil {
			err = errors.Join(err, m.opt.Runtime.Resume(ctx, e.rec.ID),
				m.untell(e, ev, func(r *record) { r.Sleep, r.Flows, r.Slept = awake, nil, time.Time{} }))
		}
	}
	if err != nil {
		m.opt.Gate.Wake(e.rec.Address, flows)
		return err
	}
	m.enter(e, Paused)
	return nil
}

// idle is why what has no session is not put to sleep.
func (m *Manager) idle(e *entry) error {
	return fmt.Errorf("%w: it is %s and has nothing to keep in memory: `sallyport sandbox start %s` begins a session", ErrState, m.info(e).State, e.rec.Name)
}

// enter shows a state that keeps the sandbox's identity.
func (m *Manager) enter(e *entry, s State) {
	e.state = s
	m.publish(e.rec.Address, m.info(e))
}

// Resume wakes a sandbox that sleeps. It is Start for those that have a session.
func (m *Manager) Resume(ctx context.Context, name string) (Info, error) {
	return m.Wake(ctx, name)
}

// Wake lets a sandbox that sleeps go on: its processes are what they were. One
// that runs is left as it is, one that is stopped is ErrState.
func (m *Manager) Wake(ctx context.Context, name string) (Info, error) {
	return m.doing(ctx, name, "waking", m.toWake, func(e *entry) error {
		if !e.state.live() {
			return fmt.Errorf("%w: it is %s and has no session to go on with: `sallyport sandbox start %s` begins one", ErrState, m.info(e).State, name)
		}
		return m.start(ctx, e)
	})
}

// resume lets a paused sandbox go on.
func (m *Manager) resume(ctx context.Context, e *entry) error {
	ev := lifecycle(e.rec, "resumed")
	if err := m.tell(ctx, e, ev, func(r *record) { r.Sleep = resuming }); err != nil {
		return errors.Join(err, m.untell(e, ev, func(r *record) { r.Sleep = pausedNow }))
	}
	ctx = context.WithoutCancel(ctx)
	if err := m.opt.Runtime.Resume(ctx, e.rec.ID); err != nil {
		if st, serr := m.opt.Runtime.Status(ctx, e.rec.ID); serr == nil && !st.Running {
			err = errors.Join(err, m.lose(ctx, e, "it ended while it was paused"))
		} else {
			err = errors.Join(err, m.tell(ctx, e, detailed(e.rec, "paused", "it could not be resumed: "+err.Error()), func(r *record) { r.Sleep = pausedNow }))
		}
		return err
	}
	return m.wakened(e)
}

// wakened is what follows when the sandbox runs again.
func (m *Manager) wakened(e *entry) error {
	flows := e.rec.Flows
	err := m.note(e, func(r *record) {
		r.Sleep, r.Flows, r.Slept, r.Wakes, r.Began, r.Dozed = awake, nil, time.Time{}, 0, time.Time{}, false
		r.Boot = ""
	})
	m.enter(e, Running)
	m.opt.Gate.Wake(e.rec.Address, flows)
	if err != nil {
		// It runs; the next start of the daemon finds it so and tries again.
		err = fmt.Errorf("its record cannot be written: %w", err)
	}
	return errors.Join(err, m.clear(e)) // what it has run on from is behind its disk
}

// Hibernate writes a sandbox's memory to disk, sealed, and gives its RAM back. Any
// use wakes it, after a reboot too. A hibernated one is left as it is. It is
// ErrNoCheckpoint where the runtime cannot.
func (m *Manager) Hibernate(ctx context.Context, name string) (Info, error) {
	need := func(e *entry) int64 {
		if e.state == Hibernated {
			return 0
		}
		return m.memorySize(ctx, e)
	}
	return m.doing(ctx, name, "hibernating", need, func(e *entry) error {
		if e.state == Hibernated {
			return nil
		}
		return m.hibernate(ctx, e)
	})
}

// hibernate is Hibernate with the lock held and room reserved.
func (m *Manager) hibernate(ctx context.Context, e *entry) (err error) {
	if e.state != Running && e.state != Paused {
		return m.idle(e)
	}
	if err := m.canRemember(e); err != nil {
		return fmt.Errorf("%w: pause or stop it", err)
	}
	if err := m.roomy(); err != nil {
		return err
	}
	done, err := m.book(e.rec.Spec.Owner, e.rec.ID, m.memorySize(ctx, e))
	if err != nil {
		return err
	}
	defer done()
	build, err := m.opt.Runtime.Build(ctx)
	if err != nil {
		return err
	}
	st, err := m.opt.Runtime.Status(ctx, e.rec.ID)
	if err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx) // half of it is of use to nobody
	flows := e.rec.Flows
	if e.state == Paused {
		// Its connections are held already. That it runs for a moment is not an
		// event: it does not become awake.
		if err := m.opt.Runtime.Resume(ctx, e.rec.ID); err != nil {
			return err
		}
	} else {
		flows = m.opt.Gate.Sleep(ctx, e.rec.Address)
	}
	err = m.clear(e)
	if err == nil {
		err = m.note(e, func(r *record) {
			r.Sleep, r.Flows, r.Slept, r.Began, r.Dozed = hibernating, flows, now(), st.Started, e.state == Paused
		})
	}
	if err != nil {
		return errors.Join(err, m.rouse(ctx, e, flows))
	}
	s, err := m.writeDown(ctx, e, build)
	if err != nil {
		st, serr := m.awaitStatus(ctx, e)
		if serr != nil {
			return errors.Join(err, serr) // the next settle finds out what has become of it
		}
		if st.Running {
			return errors.Join(err, m.rouse(ctx, e, flows))
		}
		if _, whole := os.Stat(m.ram(e)); whole != nil {
			return errors.Join(err, m.lose(ctx, e, "its memory could not be written: "+err.Error()))
		}
		// Only the engine could not say so.
	}
	return m.settleHibernated(ctx, e, s)
}

// writeDown ends a container that runs with its memory in RAM, and seals that. The
// engine takes its time to see that the container has ended: until then, and until the
// event, a crash finds it hibernating, and what is sealed is looked at when it has.
func (m *Manager) writeDown(ctx context.Context, e *entry, build string) (s sealed, err error) {
	e.room.Use(e.rec.ID)
	e.hangUp()
	e.loose = true
	var sealing chan sealed
	defer func() {
		if sealing != nil {
			s = <-sealing
		}
	}()
	err = m.opt.Runtime.Checkpoint(ctx, e.rec.ID, m.ram(e), e.room.Left(), false, func() {
		if err := e.room.Correct(); err != nil {
			m.opt.Logger.Warn("more room in memory is held than a sandbox takes", "sandbox", e.rec.Name, "error", err)
		}
		sealing = make(chan sealed, 1)
		go func(rec record) { sealing <- m.sealMemory(rec, build, m.ram(e), m.checkpointPath(e)) }(e.rec)
	})
	return s, err
}

// sealed is what has become of memory that was to be sealed: so many bytes of it.
type sealed struct {
	size int64
	err  error
}

func (m *Manager) sealMemory(rec record, build, from, to string) (s sealed) {
	h := header{Build: build, ID: rec.ID, Session: rec.Session, Made: now()}
	s.size, s.err = sealCheckpoint(m.opt.Key, h, from, to, m.roomy)
	return s
}

// awaitStatus is Status where the engine may be starting anew.
func (m *Manager) awaitStatus(ctx context.Context, e *entry) (st Status, err error) {
	for deadline := time.Now().Add(settleWait); ; {
		st, err = m.opt.Runtime.Status(ctx, e.rec.ID)
		if !errors.Is(err, ErrEngine) || time.Now().After(deadline) {
			return st, err
		}
		time.Sleep(engineLook)
	}
}

// engineLook is how often an engine is looked for that is away.
const engineLook = 50 * time.Millisecond

// rouse goes back to what runs.
func (m *Manager) rouse(ctx context.Context, e *entry, flows []Flow) error {
	e.rec.Flows = flows
	defer m.confine(e) // once what was written is gone
	if e.state == Paused {
		return m.resumed(ctx, e, "it could not be hibernated")
	}
	return m.wakened(e)
}

// settleHibernated is what follows when the memory has been sealed of a container
// that has ended.
func (m *Manager) settleHibernated(ctx context.Context, e *entry, s sealed) error {
	if err := m.opt.Network.Detach(e.rec.Generation); err != nil {
		m.opt.Logger.Error("a hibernated sandbox's identity cannot be detached", "sandbox", e.rec.Name, "error", err)
	}
	// It has ended; but the engine, whom nobody asked for that, has its files still.
	if err := m.unplug(ctx, e.rec); err != nil {
		m.opt.Logger.Warn("a hibernated sandbox's disk stays attached", "sandbox", e.rec.Name, "error", err)
	}
	if s.err != nil {
		// Its memory is in RAM still: it goes on from there.
		err := fmt.Errorf("writing its memory to disk: %w", s.err)
		if rerr := m.again(ctx, e); rerr != nil {
			return errors.Join(err, rerr, m.lose(ctx, e, "its memory could not be written to disk, nor restored: "+err.Error()))
		}
		return err
	}
	ev := lifecycle(e.rec, "hibernated")
	ev.Detail = fmt.Sprintf("%d bytes of memory, sealed", s.size)
	was := e.rec
	err := m.tell(ctx, e, ev, func(r *record) { r.Sleep, r.Lost, r.Wakes, r.Dozed = hibernated, "", 0, false })
	if err != nil {
		err = errors.Join(err, m.untell(e, ev, func(r *record) { r.Sleep, r.Lost, r.Wakes, r.Dozed = was.Sleep, was.Lost, was.Wakes, was.Dozed }))
		if rerr := m.again(ctx, e); rerr != nil {
			return errors.Join(err, rerr, m.lose(ctx, e, "that it hibernates could not be recorded"))
		}
		return err
	}
	m.enter(e, Hibernated)
	return e.drop(m.ram(e))
}

// again has what could not be hibernated go on, from its memory in RAM. What there is
// sealed of that goes first, for good: it would be behind the disk.
func (m *Manager) again(ctx context.Context, e *entry) error {
	path := m.checkpointPath(e)
	if err := errors.Join(e.drop(path), e.drop(path+".part"), durable.SyncDir(filepath.Dir(path))); err != nil {
		return err
	}
	return m.restore(ctx, e, nil)
}

// restore starts the container with the memory in RAM, which fill puts there unless
// it is nil, and lets it go on. When it fails the container does not run.
func (m *Manager) restore(ctx context.Context, e *entry, fill func() error) error {
	if err := m.renumber(e); err != nil {
		return err
	}
	var st Status
	err := m.attachDisk(e.rec)
	if err == nil {
		st, err = m.opt.Runtime.Restore(ctx, e.rec.ID, m.ram(e), fill)
	}
	if err != nil {
		return &restoreError{errors.Join(err, m.detachDisk(e.rec)), errors.Is(err, ErrRan)}
	}
	m.settleDisk(e.rec)
	if err := m.attach(e, st); err != nil {
		return &restoreError{err, true}
	}
	if e.rec.Dozed {
		return m.resumed(ctx, e, "it could not be hibernated")
	}
	return m.wakened(e)
}

// restoreError tells whether processes ran, after which their disk may be ahead of
// the memory that they began with.
type restoreError struct {
	error
	ran bool
}

func (e *restoreError) Unwrap() error { return e.error }

// wake restores a hibernated sandbox, for which there is room, or starts it from its
// disk where its memory is of no use.
func (m *Manager) wake(ctx context.Context, e *entry) error {
	e.room.Use(e.rec.ID)
	// Of a wake that failed not even that may be on record.
	if err := m.unspent(ctx, e); err != nil {
		if errors.Is(err, ErrRan) {
			err = fmt.Errorf("%w: %w", errUnusable, err)
		}
		return m.unwoken(ctx, e, err)
	}
	boot, err := m.boot()
	if err != nil {
		return err
	}
	build, err := m.opt.Runtime.Build(ctx)
	if err != nil {
		return err
	}
	in, err := openCheckpoint(m.opt.Key, m.checkpointPath(e), checkHeader(e.rec, build))
	if err != nil {
		return m.unwoken(ctx, e, err)
	}
	defer in.Close()
	// The container is being made meanwhile. Until it is on record that it wakes,
	// nothing of it runs, and it is hibernated as before.
	var unfilled error
	patient := context.WithoutCancel(ctx)
	err = m.restore(patient, e, func() error {
		if unfilled = in.unseal(m.ram(e)); unfilled != nil {
			return unfilled
		}
		ev := lifecycle(e.rec, "woken")
		if unfilled = m.tell(ctx, e, ev, func(r *record) { r.Sleep, r.Boot = waking, boot }); unfilled != nil {
			unfilled = errors.Join(unfilled, m.untell(e, ev, func(r *record) { r.Sleep = hibernated }))
		}
		return unfilled
	})
	var failed *restoreError
	switch {
	case unfilled != nil:
		return m.unwoken(ctx, e, err)
	case !errors.As(err, &failed):
		return err
	}
	tries := e.rec.Wakes + 1
	switch {
	case failed.ran || tries >= maxWakes && !errors.Is(err, ErrEngine):
		err = fmt.Errorf("%w: %w", errUnusable, err)
	case e.rec.Sleep == waking: // it may be the engine, or the bridge that nothing guards
		ev := detailed(e.rec, "hibernated", "it could not be woken: "+err.Error())
		err = errors.Join(err, m.tell(patient, e, ev, func(r *record) { r.Sleep, r.Wakes = hibernated, tries }))
	}
	return m.unwoken(patient, e, err)
}

// unwoken is what follows where a sandbox cannot be woken, now or ever.
func (m *Manager) unwoken(ctx context.Context, e *entry, why error) error {
	why = errors.Join(why, e.drop(m.ram(e)))
	if errors.Is(why, errUnusable) {
		return m.fresh(ctx, e, why)
	}
	return fmt.Errorf("%w: it is hibernated as before; `sallyport sandbox stop %s` gives its memory up", why, e.rec.Name)
}

// fresh starts a session from the disk, and says why the last one is over.
func (m *Manager) fresh(ctx context.Context, e *entry, why error) error {
	m.opt.Logger.Warn("a sandbox starts from its disk, without its memory", "sandbox", e.rec.Name, "error", why)
	if err := m.lose(context.WithoutCancel(ctx), e, why.Error()); err != nil {
		return err
	}
	return m.start(ctx, e)
}

// lose ends a session whose memory is gone, which listings say until the next sleep.
func (m *Manager) lose(ctx context.Context, e *entry, why string) error {
	e.rec.Lost = why
	return m.halt(ctx, e, why+": it starts from its disk")
}

func now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }
