package manager

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"sallyport/internal/durable"
	"sallyport/sandbox"
	"sallyport/sandbox/checkpoint"
	"sallyport/sandbox/state"
)

// checkpointFile is a hibernated sandbox's memory, sealed, in its folder.
const checkpointFile = "checkpoint"

// maxWakes is how often a checkpoint that is whole may fail to be restored before
// the sandbox starts from its disk.
const maxWakes = 2

// ram is where a sandbox's memory is while it is written and read: a folder in
// memory.
func (m *Manager) ram(e *entry) string { return filepath.Join(m.opt.RAM, e.Rec.ID) }

func (m *Manager) checkpointPath(e *entry) string {
	return filepath.Join(m.dir(e.Rec.Name), checkpointFile)
}

// removeMemory removes what there may be of a sandbox's memory.
func (m *Manager) removeMemory(e *entry) error {
	var errs []error
	if m.opt.RAM != "" && e.Rec.ID != "" {
		errs = append(errs, e.removeLater(m.ram(e)), e.removeLater(m.ram(e)+".part"))
	}
	for _, path := range []string{m.checkpointPath(e), m.checkpointPath(e) + ".part"} {
		errs = append(errs, e.removeLater(path))
	}
	return errors.Join(errs...)
}

// removeLater removes a file, or a folder of files. To give back what a large one takes is
// tens of milliseconds, in which nobody need wait: the kernel does it with the last
// descriptor (unlink(2)), wherever this process ends. Whoever has to know that it is done waits for e.freeing. The entry's lock is held.
func (e *entry) removeLater(path string) error {
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
func (m *Manager) Pause(ctx context.Context, name string) (sandbox.Info, error) {
	return m.withLocked(ctx, name, "pausing", noMemory, func(e *entry) error {
		if e.state.Asleep() {
			return nil
		}
		return m.pause(ctx, e)
	})
}

func (m *Manager) pause(ctx context.Context, e *entry) error {
	if e.state != sandbox.Running {
		return m.errNoSession(e)
	}
	flows := m.opt.Gate.Sleep(ctx, e.Rec.Address)
	e.closeAgent()
	err := m.opt.Runtime.Pause(ctx, e.Rec.ID)
	if err == nil {
		ctx := context.WithoutCancel(ctx)
		err = m.journal.Transact(ctx, &e.Stored, state.Lifecycle(e.Rec, "paused", ""), func(r *state.Record) { r.Sleep, r.Flows, r.Slept = state.Paused, flows, now() })
		if err != nil {
			err = errors.Join(err, m.opt.Runtime.Resume(ctx, e.Rec.ID))
		}
	}
	if err != nil {
		m.opt.Gate.Wake(e.Rec.Address, flows)
		return err
	}
	m.setState(e, sandbox.Paused)
	return nil
}

// errNoSession is why what has no session is not put to sleep.
func (m *Manager) errNoSession(e *entry) error {
	return fmt.Errorf("%w: it is %s and has nothing to keep in memory: `sallyport sandbox start %s` begins a session", sandbox.ErrState, m.info(e).State, e.Rec.Name)
}

// setState shows a state that keeps the sandbox's identity.
func (m *Manager) setState(e *entry, s sandbox.State) {
	e.state = s
	m.publish(e.Rec.Address, m.info(e))
}

// Resume wakes a sandbox that sleeps. It is Start for those that have a session.
func (m *Manager) Resume(ctx context.Context, name string) (sandbox.Info, error) {
	return m.Wake(ctx, name)
}

// Wake lets a sandbox that sleeps go on: its processes are what they were. One
// that runs is left as it is, one that is stopped is ErrState.
func (m *Manager) Wake(ctx context.Context, name string) (sandbox.Info, error) {
	return m.withLocked(ctx, name, "waking", m.memoryToWake, func(e *entry) error {
		if !e.state.Live() {
			return fmt.Errorf("%w: it is %s and has no session to go on with: `sallyport sandbox start %s` begins one", sandbox.ErrState, m.info(e).State, name)
		}
		return m.start(ctx, e)
	})
}

// resume lets a paused sandbox go on.
func (m *Manager) resume(ctx context.Context, e *entry) error {
	if err := m.journal.Transact(ctx, &e.Stored, state.Lifecycle(e.Rec, "resumed", ""), func(r *state.Record) { r.Sleep = state.Resuming }); err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	if err := m.opt.Runtime.Resume(ctx, e.Rec.ID); err != nil {
		if st, serr := m.opt.Runtime.Status(ctx, e.Rec.ID); serr == nil && !st.Running {
			err = errors.Join(err, m.loseMemory(ctx, e, "it ended while it was paused"))
		} else {
			err = errors.Join(err, m.journal.CommitWithEvent(ctx, &e.Stored, state.Lifecycle(e.Rec, "paused", "it could not be resumed: "+err.Error()), func(r *state.Record) { r.Sleep = state.Paused }))
		}
		return err
	}
	return m.finishWake(e)
}

// finishWake is what follows when the sandbox runs again.
func (m *Manager) finishWake(e *entry) error {
	flows := e.Rec.Flows
	err := m.journal.Commit(&e.Stored, (*state.Record).Wake)
	m.setState(e, sandbox.Running)
	m.opt.Gate.Wake(e.Rec.Address, flows)
	if err != nil {
		// It runs; the next start of the daemon finds it so and tries again.
		err = fmt.Errorf("its record cannot be written: %w", err)
	}
	return errors.Join(err, m.removeMemory(e)) // what it has run on from is behind its disk
}

// Hibernate writes a sandbox's memory to disk, sealed, and gives its RAM back. Any
// use wakes it, after a reboot too. A hibernated one is left as it is. It is
// ErrNoCheckpoint where the runtime cannot.
func (m *Manager) Hibernate(ctx context.Context, name string) (sandbox.Info, error) {
	need := func(e *entry) int64 {
		if e.state == sandbox.Hibernated {
			return 0
		}
		return m.memorySize(ctx, e)
	}
	return m.withLocked(ctx, name, "hibernating", need, func(e *entry) error {
		if e.state == sandbox.Hibernated {
			return nil
		}
		return m.hibernate(ctx, e)
	})
}

// hibernate is Hibernate with the lock held and room reserved.
func (m *Manager) hibernate(ctx context.Context, e *entry) (err error) {
	if e.state != sandbox.Running && e.state != sandbox.Paused {
		return m.errNoSession(e)
	}
	if err := m.canCheckpoint(e); err != nil {
		return fmt.Errorf("%w: pause or stop it", err)
	}
	if err := m.checkDisk(); err != nil {
		return err
	}
	done, err := m.reserveStorage(e.Rec.Spec.Owner, e.Rec.ID, m.memorySize(ctx, e))
	if err != nil {
		return err
	}
	defer done()
	build, err := m.opt.Runtime.Build(ctx)
	if err != nil {
		return err
	}
	st, err := m.opt.Runtime.Status(ctx, e.Rec.ID)
	if err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx) // half of it is of use to nobody
	flows := e.Rec.Flows
	if e.state == sandbox.Paused {
		// Its connections are held already. That it runs for a moment is not an
		// event: it does not become awake.
		if err := m.opt.Runtime.Resume(ctx, e.Rec.ID); err != nil {
			return err
		}
	} else {
		flows = m.opt.Gate.Sleep(ctx, e.Rec.Address)
	}
	err = m.removeMemory(e)
	if err == nil {
		err = m.journal.Commit(&e.Stored, func(r *state.Record) {
			r.Sleep, r.Flows, r.Slept, r.Began, r.Dozed = state.Hibernating, flows, now(), st.Started, e.state == sandbox.Paused
		})
	}
	if err != nil {
		return errors.Join(err, m.undoHibernate(ctx, e, flows))
	}
	s, err := m.checkpointToRAM(ctx, e, build)
	if err != nil {
		st, serr := m.awaitStatus(ctx, e)
		if serr != nil {
			return errors.Join(err, serr) // the next settle finds out what has become of it
		}
		if st.Running {
			return errors.Join(err, m.undoHibernate(ctx, e, flows))
		}
		if _, whole := os.Stat(m.ram(e)); whole != nil {
			return errors.Join(err, m.loseMemory(ctx, e, "its memory could not be written: "+err.Error()))
		}
		// Only the engine could not say so.
	}
	return m.finishHibernate(ctx, e, s)
}

// checkpointToRAM ends a container that runs with its memory in RAM, and seals that. The
// engine takes its time to see that the container has ended: until then, and until the
// event, a crash finds it hibernating, and what is sealed is looked at when it has.
func (m *Manager) checkpointToRAM(ctx context.Context, e *entry, build string) (s sealed, err error) {
	e.lease.AddFolder(e.Rec.ID)
	e.closeAgent()
	e.loose = true
	var sealing chan sealed
	defer func() {
		if sealing != nil {
			s = <-sealing
		}
	}()
	err = m.opt.Runtime.Checkpoint(ctx, e.Rec.ID, m.ram(e), e.lease.Left(), false, func() {
		if err := e.lease.Settle(); err != nil {
			m.opt.Logger.Warn("more room in memory is held than a sandbox takes", "sandbox", e.Rec.Name, "error", err)
		}
		sealing = make(chan sealed, 1)
		go func(rec state.Record) { sealing <- m.sealMemory(rec, build, m.ram(e), m.checkpointPath(e)) }(e.Rec)
	})
	return s, err
}

// sealed is what has become of memory that was to be sealed: so many bytes of it.
type sealed struct {
	size int64
	err  error
}

func (m *Manager) sealMemory(rec state.Record, build, from, to string) (s sealed) {
	h := checkpoint.Header{Build: build, ID: rec.ID, Session: rec.Session, Made: now()}
	s.size, s.err = checkpoint.Seal(m.opt.Key, h, from, to, m.checkDisk)
	return s
}

// awaitStatus is Status where the engine may be starting anew.
func (m *Manager) awaitStatus(ctx context.Context, e *entry) (st sandbox.Status, err error) {
	for deadline := time.Now().Add(settleWait); ; {
		st, err = m.opt.Runtime.Status(ctx, e.Rec.ID)
		if !errors.Is(err, sandbox.ErrEngine) || time.Now().After(deadline) {
			return st, err
		}
		time.Sleep(engineLook)
	}
}

// engineLook is how often an engine is looked for that is away.
const engineLook = 50 * time.Millisecond

// undoHibernate goes back to what runs.
func (m *Manager) undoHibernate(ctx context.Context, e *entry, flows []sandbox.Flow) error {
	e.Rec.Flows = flows
	defer m.restoreMemoryLimit(e) // once what was written is gone
	if e.state == sandbox.Paused {
		return m.finishResume(ctx, e, "it could not be hibernated")
	}
	return m.finishWake(e)
}

// finishHibernate is what follows when the memory has been sealed of a container
// that has ended.
func (m *Manager) finishHibernate(ctx context.Context, e *entry, s sealed) error {
	if err := m.opt.Network.Detach(e.Rec.Generation); err != nil {
		m.opt.Logger.Error("a hibernated sandbox's identity cannot be detached", "sandbox", e.Rec.Name, "error", err)
	}
	// It has ended; but the engine, whom nobody asked for that, has its files still.
	if err := m.stopAndDetach(ctx, e.Rec); err != nil {
		m.opt.Logger.Warn("a hibernated sandbox's disk stays attached", "sandbox", e.Rec.Name, "error", err)
	}
	if s.err != nil {
		// Its memory is in RAM still: it goes on from there.
		err := fmt.Errorf("writing its memory to disk: %w", s.err)
		if rerr := m.restartFromRAM(ctx, e); rerr != nil {
			return errors.Join(err, rerr, m.loseMemory(ctx, e, "its memory could not be written to disk, nor restored: "+err.Error()))
		}
		return err
	}
	ev := state.Lifecycle(e.Rec, "hibernated", "")
	ev.Detail = fmt.Sprintf("%d bytes of memory, sealed", s.size)
	err := m.journal.Transact(ctx, &e.Stored, ev, hibernated)
	if err != nil {
		if rerr := m.restartFromRAM(ctx, e); rerr != nil {
			return errors.Join(err, rerr, m.loseMemory(ctx, e, "that it hibernates could not be recorded"))
		}
		return err
	}
	m.setState(e, sandbox.Hibernated)
	return e.removeLater(m.ram(e))
}

// hibernated is the change of a record whose sandbox's memory is sealed.
func hibernated(r *state.Record) { r.Sleep, r.Lost, r.Wakes, r.Dozed = state.Hibernated, "", 0, false }

// restartFromRAM has what could not be hibernated go on, from its memory in RAM. What there is
// sealed of that goes first, for good: it would be behind the disk.
func (m *Manager) restartFromRAM(ctx context.Context, e *entry) error {
	path := m.checkpointPath(e)
	if err := errors.Join(e.removeLater(path), e.removeLater(path+".part"), durable.SyncDir(filepath.Dir(path))); err != nil {
		return err
	}
	return m.restore(ctx, e, nil)
}

// restore starts the container with the memory in RAM, which fill puts there unless
// it is nil, and lets it go on. When it fails the container does not run.
func (m *Manager) restore(ctx context.Context, e *entry, fill func() error) error {
	if err := m.renewGeneration(e); err != nil {
		return err
	}
	var st sandbox.Status
	err := m.attachDisk(e.Rec)
	if err == nil {
		st, err = m.opt.Runtime.Restore(ctx, e.Rec.ID, m.ram(e), fill)
	}
	if err != nil {
		return &restoreError{errors.Join(err, m.detachDisk(e.Rec)), errors.Is(err, sandbox.ErrRan)}
	}
	m.settleDisk(e.Rec)
	if err := m.attach(e, st); err != nil {
		return &restoreError{err, true}
	}
	if e.Rec.Dozed {
		return m.finishResume(ctx, e, "it could not be hibernated")
	}
	return m.finishWake(e)
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
	e.lease.AddFolder(e.Rec.ID)
	// Of a wake that failed not even that may be on record.
	if err := m.checkNotRun(ctx, e); err != nil {
		if errors.Is(err, sandbox.ErrRan) {
			err = fmt.Errorf("%w: %w", checkpoint.ErrUnusable, err)
		}
		return m.wakeFailed(ctx, e, err)
	}
	boot, err := m.boot()
	if err != nil {
		return err
	}
	build, err := m.opt.Runtime.Build(ctx)
	if err != nil {
		return err
	}
	in, err := checkpoint.Open(m.opt.Key, m.checkpointPath(e), checkpoint.Match(e.Rec.ID, e.Rec.Session, build))
	if err != nil {
		return m.wakeFailed(ctx, e, err)
	}
	defer in.Close()
	// The container is being made meanwhile. Until it is on record that it wakes,
	// nothing of it runs, and it is hibernated as before.
	var unfilled error
	patient := context.WithoutCancel(ctx)
	err = m.restore(patient, e, func() error {
		if unfilled = in.Unseal(m.ram(e)); unfilled != nil {
			return unfilled
		}
		unfilled = m.journal.Transact(ctx, &e.Stored, state.Lifecycle(e.Rec, "woken", ""), func(r *state.Record) { r.Sleep, r.Boot = state.Waking, boot })
		return unfilled
	})
	var failed *restoreError
	switch {
	case unfilled != nil:
		return m.wakeFailed(ctx, e, err)
	case !errors.As(err, &failed):
		return err
	}
	tries := e.Rec.Wakes + 1
	switch {
	case failed.ran || tries >= maxWakes && !errors.Is(err, sandbox.ErrEngine):
		err = fmt.Errorf("%w: %w", checkpoint.ErrUnusable, err)
	case e.Rec.Sleep == state.Waking: // it may be the engine, or the bridge that nothing guards
		ev := state.Lifecycle(e.Rec, "hibernated", "it could not be woken: "+err.Error())
		err = errors.Join(err, m.journal.CommitWithEvent(patient, &e.Stored, ev, func(r *state.Record) { r.Sleep, r.Wakes = state.Hibernated, tries }))
	}
	return m.wakeFailed(patient, e, err)
}

// wakeFailed is what follows where a sandbox cannot be woken, now or ever.
func (m *Manager) wakeFailed(ctx context.Context, e *entry, why error) error {
	why = errors.Join(why, e.removeLater(m.ram(e)))
	if errors.Is(why, checkpoint.ErrUnusable) {
		return m.startFromDisk(ctx, e, why)
	}
	return fmt.Errorf("%w: it is hibernated as before; `sallyport sandbox stop %s` gives its memory up", why, e.Rec.Name)
}

// startFromDisk starts a session from the disk, and says why the last one is over.
func (m *Manager) startFromDisk(ctx context.Context, e *entry, why error) error {
	m.opt.Logger.Warn("a sandbox starts from its disk, without its memory", "sandbox", e.Rec.Name, "error", why)
	if err := m.loseMemory(context.WithoutCancel(ctx), e, why.Error()); err != nil {
		return err
	}
	return m.start(ctx, e)
}

// loseMemory ends a session whose memory is gone, which listings say until the next sleep.
func (m *Manager) loseMemory(ctx context.Context, e *entry, why string) error {
	e.Rec.Lost = why
	return m.halt(ctx, e, why+": it starts from its disk")
}

func now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }
