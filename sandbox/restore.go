package sandbox

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"sallyport/memory"
)

// Restore makes a sandbox what it was at a snapshot, having made one of what it is
// now. Where the snapshot has processes they go on, in a new session; where they
// cannot be had (Info.Lost says why), and where there are none, a sandbox that ran
// starts from its disk, and one that was stopped stays so. A snapshot whose disk is
// damaged is ErrDamaged, and nothing has changed.
func (m *Manager) Restore(ctx context.Context, name, snapshot string) (Info, error) {
	// For both at once: who has room waits for no other.
	need := func(e *entry) int64 { return m.snapshotSize(e, snapshot) + m.safetySize(ctx, e) }
	return m.doing(ctx, name, "restoring", need, func(e *entry) error { return m.revert(ctx, e, snapshot) })
}

// safetySize is how much the processes take of the snapshot that is made of what a
// sandbox is before it is restored, in bytes, at most.
func (m *Manager) safetySize(ctx context.Context, e *entry) int64 {
	if e.rec.Restoring != "" {
		return 0
	}
	return m.memorySize(ctx, e)
}

// revert restores, with room for the memory of before and that of after.
func (m *Manager) revert(ctx context.Context, e *entry, snapshot string) (err error) {
	s, err := m.snapshot(e, snapshot)
	if err != nil {
		return err
	}
	if err := m.verify(s); err != nil {
		return err
	}
	live := e.state.live()
	mem, done := m.scratch(e)
	defer func() { err = errors.Join(err, done()) }()
	lost, err := m.recollect(ctx, s, mem)
	if err != nil {
		return err
	}
	if e.rec.Restoring == "" {
		safety := SnapshotSpec{Name: stamp("before-"), Memory: live && m.canRemember(e) == nil, safety: true}
		if _, err := m.keep(ctx, e, safety); err != nil {
			return fmt.Errorf("making a snapshot of what it is now: %w", err)
		}
		if err := e.room.Correct(); err != nil { // that one is on the disk
			return err
		}
	}
	patient := context.WithoutCancel(ctx)
	if live {
		if err := m.halt(patient, e, "it is being restored to snapshot "+s.Name); err != nil {
			return err
		}
	}
	if err := m.note(e, func(r *record) { r.Restoring, r.Reason = s.Name, "" }); err != nil {
		return err
	}
	if err := m.mend(patient, e); err != nil {
		return err
	}
	switch {
	case s.Memory && lost == nil:
		err = m.begin(patient, e, "with the processes of snapshot "+s.Name, func() (Status, error) {
			return m.opt.Runtime.Restore(patient, e.rec.ID, mem, nil)
		})
		if err == nil {
			m.opt.Gate.Wake(e.rec.Address, s.Flows)
			return nil
		}
		lost = err
		fallthrough
	case lost != nil:
		m.opt.Logger.Warn("a sandbox is restored without its memory", "sandbox", e.rec.Name, "snapshot", s.Name, "error", lost)
		if err := m.note(e, func(r *record) { r.Lost = lost.Error() }); err != nil {
			return err
		}
		return m.begin(patient, e, "from the disk of snapshot "+s.Name+": "+lost.Error(), func() (Status, error) { return m.opt.Runtime.Start(patient, e.rec.ID) })
	case live:
		return m.start(patient, e)
	}
	return nil
}

// verify compares the files of the disk with what was written. It is done before
// anything is changed.
func (m *Manager) verify(s Snapshot) error {
	for _, part := range []string{snapshotLayer, snapshotStore} {
		if err := m.intact(s, part); err != nil {
			return err
		}
	}
	return nil
}

func (m *Manager) intact(s Snapshot, part string) error {
	sum, _, err := sumOf(filepath.Join(m.snapshotsDir(s.Sandbox), s.Name, part))
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%w: its %s is gone: use another snapshot, and remove this one", ErrDamaged, part)
	}
	if err == nil && (sum != s.Sums[part] || sum == "") {
		err = fmt.Errorf("%w: its %s is not what was written: use another snapshot, and remove this one", ErrDamaged, part)
	}
	return err
}

// recollect unseals the processes of a snapshot into the folder ram. lost says why
// they cannot be had, if that is so for ever.
func (m *Manager) recollect(ctx context.Context, s Snapshot, ram string) (lost, err error) {
	if !s.Memory {
		return nil, nil
	}
	build, err := m.opt.Runtime.Build(ctx)
	if err != nil {
		return nil, err
	}
	err = m.intact(s, snapshotMemory)
	if err == nil {
		want := record{ID: s.SandboxID, Session: s.Session}
		err = unsealCheckpoint(m.opt.Key, filepath.Join(m.snapshotsDir(s.Sandbox), s.Name, snapshotMemory), ram, checkHeader(want, build))
	}
	if errors.Is(err, errUnusable) || errors.Is(err, ErrDamaged) {
		return errors.Join(err, os.RemoveAll(ram)), nil
	}
	return nil, err
}

// mend makes the disk of a sandbox what the snapshot says that it is being restored
// to. It can be begun again.
func (m *Manager) mend(ctx context.Context, e *entry) error {
	if e.rec.Restoring == "" {
		return nil
	}
	s, err := m.snapshot(e, e.rec.Restoring)
	if err == nil {
		err = m.verify(s)
	}
	if err == nil {
		err = m.refill(ctx, e, s)
	}
	if err != nil {
		return fmt.Errorf("its disk is half that of snapshot %s: %w: restore it to another with `sallyport sandbox restore %s SNAPSHOT`", e.rec.Restoring, err, e.rec.Name)
	}
	return m.tell(ctx, e, detailed(e.rec, "restored", "to snapshot "+s.Name), func(r *record) { r.Restoring = "" })
}

// refill replaces the files of a sandbox that does not run.
func (m *Manager) refill(ctx context.Context, e *entry, s Snapshot) error {
	if err := m.attachDisk(e.rec); err != nil {
		return err
	}
	defer m.letGo(ctx, e)
	return m.unfold(ctx, e, s)
}

// unfold replaces the files of a sandbox whose disk is attached by a snapshot's.
func (m *Manager) unfold(ctx context.Context, e *entry, s Snapshot) error {
	layer, err := m.opt.Runtime.Layer(ctx, e.rec.ID)
	if err != nil {
		return err
	}
	for part, dir := range map[string]string{snapshotLayer: layer, snapshotStore: memory.Dir(m.dir(e.rec.Name))} {
		if err := emptyTree(ctx, dir); err != nil {
			return err
		}
		if err := m.unpackSealed(ctx, filepath.Join(m.snapshotsDir(s.Sandbox), s.Name, part), dir); err != nil {
			return err
		}
	}
	return nil
}

func (m *Manager) unpackSealed(ctx context.Context, from, to string) error {
	f, r, err := m.unsealed(from)
	if err != nil {
		return err
	}
	defer f.Close()
	return unpackTree(ctx, r, to)
}

// unsealed opens a file for what was sealed in it.
func (m *Manager) unsealed(path string) (io.Closer, io.Reader, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	r, err := m.opt.Key.NewReader(bufio.NewReaderSize(f, 256<<10))
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, r, nil
}

// grow gives a child that is to be the files of a snapshot, and puts its processes
// into the folder ram, if there are any.
func (m *Manager) grow(ctx context.Context, c *entry, s Snapshot, ram string) (lost, err error) {
	if err := m.verify(s); err != nil {
		return nil, err
	}
	if lost, err = m.recollect(ctx, s, ram); err != nil {
		return nil, err
	}
	return lost, m.unfold(ctx, c, s)
}
