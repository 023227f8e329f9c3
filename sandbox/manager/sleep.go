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

// checkpointFile is the file in a hibernated sandbox's folder that holds its memory,
// sealed.
const checkpointFile = "checkpoint"

// maxWakes is how many restores of a whole checkpoint may fail before the sandbox starts
// from its disk.
const maxWakes = 2

// ram is the folder in memory that holds a sandbox's memory while it is written or read.
func (m *Manager) ram(e *entry) string { return filepath.Join(m.opt.RAM, e.Rec.ID) }

func (m *Manager) checkpointPath(e *entry) string {
	return filepath.Join(m.dir(e.Rec.Name), checkpointFile)
}

// removeMemory removes a sandbox's memory, sealed and in RAM, if there is any.
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

// removeLater removes a file, or a folder of files, without waiting for the kernel to free
// what they take, which is tens of milliseconds for a large one. The kernel frees a file
// with its last descriptor (unlink(2)), even if this process ends. e.freeing waits for
// that. The entry's lock is held.
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

// Pause freezes a running sandbox in RAM; it takes no CPU time then. Any use wakes it. A
// sandbox that sleeps already is left as it is.
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

// errNoSession refuses to put a sandbox to sleep that has no session.
func (m *Manager) errNoSession(e *entry) error {
	return fmt.Errorf("%w: it is %s and has nothing to keep in memory: `sallyport sandbox start %s` begins a session", sandbox.ErrState, m.info(e).State, e.Rec.Name)
}

// setState changes the state of a sandbox that keeps its identity, and publishes it.
func (m *Manager) setState(e *entry, s sandbox.State) {
	e.state = s
	m.publish(e.Rec.Address, m.info(e))
}

// Wake lets a sandbox that sleeps go on with the processes that it had. A sandbox that
// runs is left as it is; one that is stopped is ErrState.
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

// finishWake records that a sandbox runs again, and releases its connections.
func (m *Manager) finishWake(e *entry) error {
	flows := e.Rec.Flows
	err := m.journal.Commit(&e.Stored, (*state.Record).Wake)
	m.setState(e, sandbox.Running)
	m.opt.Gate.Wake(e.Rec.Address, flows)
	if err != nil {
		// The sandbox runs. The next start of the daemon finds that, and writes the
		// record.
		err = fmt.Errorf("its record cannot be written: %w", err)
	}
	return errors.Join(err, m.removeMemory(e)) // what it has run on from is behind its disk
}

// Hibernate writes a sandbox's memory to disk, sealed, and frees its RAM. Any use wakes
// the sandbox, even after a reboot. A hibernated sandbox is left as it is. The error is
// ErrNoCheckpoint if the runtime cannot write memory.
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

// hibernate is Hibernate with the lock held and RAM reserved.
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
		// Its connections are held already. It runs for a moment only, so there is no
		// event.
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
		// The memory is whole: only the engine failed to report it.
	}
	return m.finishHibernate(ctx, e, s)
}

// checkpointToRAM writes the memory of a running container into RAM, which ends the
// container, and seals that memory. The engine takes some time to notice the end. If the
// daemon crashes before the event is recorded, the next one finds the sandbox hibernating
// and looks at what was sealed.
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

// sealed is the result of sealing memory: its size in bytes, or why it failed.
type sealed struct {
	size int64
	err  error
}

func (m *Manager) sealMemory(rec state.Record, build, from, to string) (s sealed) {
	h := checkpoint.Header{Build: build, ID: rec.ID, Session: rec.Session, Made: now()}
	s.size, s.err = checkpoint.Seal(m.opt.Key, h, from, to, m.checkDisk)
	return s
}

// awaitStatus is Status that waits while the engine restarts.
func (m *Manager) awaitStatus(ctx context.Context, e *entry) (st sandbox.Status, err error) {
	for deadline := time.Now().Add(settleWait); ; {
		st, err = m.opt.Runtime.Status(ctx, e.Rec.ID)
		if !errors.Is(err, sandbox.ErrEngine) || time.Now().After(deadline) {
			return st, err
		}
		time.Sleep(engineLook)
	}
}

// engineLook is how often awaitStatus asks an engine that is away.
const engineLook = 50 * time.Millisecond

// undoHibernate lets a sandbox that could not be hibernated go on.
func (m *Manager) undoHibernate(ctx context.Context, e *entry, flows []sandbox.Flow) error {
	e.Rec.Flows = flows
	defer m.restoreMemoryLimit(e) // once what was written is gone
	if e.state == sandbox.Paused {
		return m.finishResume(ctx, e, "it could not be hibernated")
	}
	return m.finishWake(e)
}

// finishHibernate records that a sandbox is hibernated, once its container has ended and
// its memory is sealed. If the memory could not be sealed, the sandbox goes on from RAM.
func (m *Manager) finishHibernate(ctx context.Context, e *entry, s sealed) error {
	if err := m.opt.Network.Detach(e.Rec.Generation); err != nil {
		m.opt.Logger.Error("a hibernated sandbox's identity cannot be detached", "sandbox", e.Rec.Name, "error", err)
	}
	// The container has ended by itself, so the engine still holds its files.
	if err := m.stopAndDetach(ctx, e.Rec); err != nil {
		m.opt.Logger.Warn("a hibernated sandbox's disk stays attached", "sandbox", e.Rec.Name, "error", err)
	}
	if s.err != nil {
		// The memory is still in RAM: the sandbox goes on from there.
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

// restartFromRAM lets a sandbox that could not be hibernated go on from its memory in RAM.
// First it removes the sealed copy for good, which would be older than the disk.
func (m *Manager) restartFromRAM(ctx context.Context, e *entry) error {
	path := m.checkpointPath(e)
	if err := errors.Join(e.removeLater(path), e.removeLater(path+".part"), durable.SyncDir(filepath.Dir(path))); err != nil {
		return err
	}
	return m.restore(ctx, e, nil)
}

// restore starts the container from the memory in RAM. fill puts the memory there; nil: it
// is there. When restore fails, the container does not run.
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

// restoreError says whether processes ran before a restore failed. If they did, the disk
// may be newer than the memory.
type restoreError struct {
	error
	ran bool
}

func (e *restoreError) Unwrap() error { return e.error }

// wake restores a hibernated sandbox, for which RAM is reserved. If its memory cannot be
// used, it starts the sandbox from its disk.
func (m *Manager) wake(ctx context.Context, e *entry) error {
	e.lease.AddFolder(e.Rec.ID)
	// An earlier wake may have run processes without having recorded that it failed.
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
	// The engine makes the container meanwhile. Nothing of it runs before the record says
	// that it wakes; until then the sandbox is hibernated as before.
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

// wakeFailed returns why a sandbox was not woken, or starts it from its disk if its memory
// can never be used.
func (m *Manager) wakeFailed(ctx context.Context, e *entry, why error) error {
	why = errors.Join(why, e.removeLater(m.ram(e)))
	if errors.Is(why, checkpoint.ErrUnusable) {
		return m.startFromDisk(ctx, e, why)
	}
	return fmt.Errorf("%w: it is hibernated as before; `sallyport sandbox stop %s` gives its memory up", why, e.Rec.Name)
}

// startFromDisk ends the session, recording why, and starts another from the disk.
func (m *Manager) startFromDisk(ctx context.Context, e *entry, why error) error {
	m.opt.Logger.Warn("a sandbox starts from its disk, without its memory", "sandbox", e.Rec.Name, "error", why)
	if err := m.loseMemory(context.WithoutCancel(ctx), e, why.Error()); err != nil {
		return err
	}
	return m.start(ctx, e)
}

// loseMemory ends a session whose memory is gone. Listings say why until the next sleep.
func (m *Manager) loseMemory(ctx context.Context, e *entry, why string) error {
	e.Rec.Lost = why
	return m.halt(ctx, e, why+": it starts from its disk")
}

func now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }
