package manager

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"sallyport/internal/durable"
	"sallyport/memory"
	"sallyport/sandbox"
	"sallyport/sandbox/checkpoint"
	"sallyport/sandbox/disk"
	"sallyport/sandbox/state"
)

// Restore makes a sandbox what it was at a snapshot. First it keeps what the sandbox is
// now, unless the spec discards that. Processes of the snapshot go on in a new session. If
// they cannot (Info.Lost says why), or if there are none, a sandbox that ran starts from
// its disk, and a stopped one stays stopped. A snapshot with a damaged disk is ErrDamaged,
// and nothing has changed.
//
// Nothing that a sandbox does to itself prevents a restore: if no snapshot of it can be
// made, its disk is kept as it is (Snapshot.Unsealed).
func (m *Manager) Restore(ctx context.Context, name string, spec sandbox.RestoreSpec) (sandbox.Info, error) {
	// One reservation for both: a call that holds RAM waits for no other.
	need := func(e *entry) int64 {
		n := m.snapshotSize(e, spec.Snapshot)
		if !spec.Discard {
			n += m.safetyMemory(ctx, e)
		}
		return n
	}
	return m.withLocked(ctx, name, "restoring", need, func(e *entry) error { return m.restoreTo(ctx, e, spec) })
}

// safetyMemory is the most RAM, in bytes, that the snapshot takes that is made before a
// restore.
func (m *Manager) safetyMemory(ctx context.Context, e *entry) int64 {
	if e.Rec.Restoring != "" {
		return 0
	}
	return m.memorySize(ctx, e)
}

// restoreTo is Restore with the lock held, and RAM reserved for both memories.
func (m *Manager) restoreTo(ctx context.Context, e *entry, spec sandbox.RestoreSpec) (err error) {
	if err := m.ownDisk(e.Rec); err != nil {
		return err
	}
	s, err := m.snapshot(e, spec.Snapshot)
	if err != nil {
		return err
	}
	if err := m.verify(s); err != nil {
		return err
	}
	written, err := m.reserveForRestore(e, s, spec.Discard)
	if err != nil {
		return err
	}
	defer written()
	live := e.state.Live()
	mem, done := m.scratchFolder(e)
	defer func() { err = errors.Join(err, done()) }()
	lost, err := m.unsealProcesses(ctx, s, mem)
	if err != nil {
		return err
	}
	m.recordMemoryWithin(ctx, e, memory.Cause{Operation: memory.Restoring, From: s.Name})
	if ctx.Err() != nil {
		return context.Cause(ctx) // with spec.Discard, nothing else keeps what the memory is now
	}
	aside := ""
	if e.Rec.Restoring == "" && !spec.Discard {
		if aside, err = m.safetySnapshot(ctx, e); err != nil {
			return err
		}
		if err := e.lease.Settle(); err != nil { // that one is on the disk
			return err
		}
	}
	patient := context.WithoutCancel(ctx)
	if live {
		if err := m.halt(patient, e, "it is being restored to snapshot "+s.Name); err != nil {
			return err
		}
	}
	if err := m.journal.Commit(&e.Stored, func(r *state.Record) { r.Restoring, r.Aside, r.Reason = s.Name, cmp.Or(aside, r.Aside), "" }); err != nil {
		return err
	}
	if err := m.finishRestore(patient, e); err != nil {
		return err
	}
	if s.Memory {
		// The session is a new one, whatever its processes remember.
		if err := m.renewSpec(patient, e); err != nil {
			return err
		}
	}
	switch {
	case s.Memory && lost == nil:
		err = m.begin(patient, e, "with the processes of snapshot "+s.Name, s.Agent, func() (sandbox.Status, error) {
			return m.opt.Runtime.Restore(patient, e.Rec.ID, mem, nil)
		})
		if err == nil {
			m.opt.Gate.Wake(e.Rec.Address, s.Flows)
			return nil
		}
		lost = err
		fallthrough
	case lost != nil:
		m.opt.Logger.Warn("a sandbox is restored without its memory", "sandbox", e.Rec.Name, "snapshot", s.Name, "error", lost)
		if err := m.journal.Commit(&e.Stored, func(r *state.Record) { r.Lost = lost.Error() }); err != nil {
			return err
		}
		return m.begin(patient, e, "from the disk of snapshot "+s.Name+": "+lost.Error(), nil, func() (sandbox.Status, error) { return m.opt.Runtime.Start(patient, e.Rec.ID) })
	case live:
		return m.start(patient, e)
	}
	return nil
}

// reserveForRestore refuses a restore that would use the host's reserve or exceed the
// owner's quota. A disk that is discarded makes room.
func (m *Manager) reserveForRestore(e *entry, s sandbox.Snapshot, discard bool) (done func(), err error) {
	n := s.Size
	if discard || e.Rec.Restoring != "" {
		n -= m.storage(e.Rec.Name).Disk
	}
	if n <= 0 {
		return func() {}, nil
	}
	if err = m.checkDiskFor(n); err == nil {
		done, err = m.reserveStorage(e.Rec.Spec.Owner, e.Rec.ID, n)
	}
	if err != nil && !discard {
		err = fmt.Errorf("%w; or give up what it is now: `sallyport sandbox restore --discard %s %s`", err, e.Rec.Name, s.Name)
	}
	return done, err
}

// safetySnapshot makes a snapshot of a sandbox before it is restored. If none can be made,
// for want of room or because of what the sandbox has become, it returns the name of the
// snapshot that the disk is to become as it is.
func (m *Manager) safetySnapshot(ctx context.Context, e *entry) (aside string, err error) {
	spec := keepSpec{sandbox.SnapshotSpec{Name: stamp("before-"), Memory: e.state.Live() && m.canCheckpoint(e) == nil}, true}
	_, err = m.makeSnapshot(ctx, e, spec)
	switch {
	case err == nil:
		return "", nil
	case ctx.Err() != nil || m.opt.Key == nil:
		return "", fmt.Errorf("making a snapshot of what it is now: %w", err)
	}
	m.opt.Logger.Warn("no snapshot can be made of what a sandbox is before it is restored: its disk is set aside", "sandbox", e.Rec.Name, "error", err)
	return spec.Name, nil
}

// keepDisk makes the disk of a sandbox that does not run the snapshot Aside, unsealed. It
// can be repeated.
func (m *Manager) keepDisk(ctx context.Context, e *entry) error {
	name := e.Rec.Aside
	if name == "" {
		return nil
	}
	spec := keepSpec{sandbox.SnapshotSpec{Name: name}, true}
	dir := filepath.Join(m.snapshotsDir(e.Rec.Name), name)
	if _, err := os.Lstat(dir); errors.Is(err, os.ErrNotExist) {
		s := m.newSnapshot(e, spec)
		s.Unsealed, s.Mark = true, m.mark()
		if m.opt.Space != nil {
			if s.Size, err = m.opt.Space.Used(m.dir(e.Rec.Name)); err != nil {
				return err
			}
		}
		part := dir + partSuffix
		if err := os.RemoveAll(part); err != nil {
			return err
		}
		if err := durable.MkdirAll(part, 0o700); err != nil {
			return err
		}
		if err := m.writeSnapshotRecord(part, &s); err != nil {
			return err
		}
		if err := m.publishSnapshot(ctx, e, s, part); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	if err := m.opt.Disks.Move(m.dir(e.Rec.Name), dir); err != nil {
		return err
	}
	if err := m.journal.Commit(&e.Stored, func(r *state.Record) { r.Aside = "" }); err != nil {
		return err
	}
	return m.retain(ctx, e, spec)
}

// verify compares a snapshot's disk with its checksum, before anything is changed.
func (m *Manager) verify(s sandbox.Snapshot) error {
	if !s.Unsealed {
		return m.intact(s, snapshotDisk)
	}
	if !disk.Exists(filepath.Join(m.snapshotsDir(s.Sandbox), s.Name)) {
		return fmt.Errorf("%w: its disk is gone: use another snapshot, and remove this one", sandbox.ErrDamaged)
	}
	return nil
}

func (m *Manager) intact(s sandbox.Snapshot, part string) error {
	sum, _, err := sumOf(filepath.Join(m.snapshotsDir(s.Sandbox), s.Name, part))
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%w: its %s is gone: use another snapshot, and remove this one", sandbox.ErrDamaged, part)
	}
	if err == nil && (sum != s.Sums[part] || sum == "") {
		err = fmt.Errorf("%w: its %s is not what was written: use another snapshot, and remove this one", sandbox.ErrDamaged, part)
	}
	return err
}

// unsealProcesses unseals the processes of a snapshot into the folder ram. lost says why
// they can never be had.
func (m *Manager) unsealProcesses(ctx context.Context, s sandbox.Snapshot, ram string) (lost, err error) {
	if !s.Memory {
		return nil, nil
	}
	build, err := m.opt.Runtime.Build(ctx)
	if err != nil {
		return nil, err
	}
	err = m.intact(s, snapshotMemory)
	if err == nil {
		err = checkpoint.Unseal(m.opt.Key, filepath.Join(m.snapshotsDir(s.Sandbox), s.Name, snapshotMemory), ram, checkpoint.Match(s.SandboxID, s.Session, build))
	}
	if errors.Is(err, checkpoint.ErrUnusable) || errors.Is(err, sandbox.ErrDamaged) {
		return errors.Join(err, os.RemoveAll(ram)), nil
	}
	return nil, err
}

// finishRestore gives a sandbox the disk of the snapshot that its record says it is
// restored to, and its memory a version that says so. It can be repeated.
func (m *Manager) finishRestore(ctx context.Context, e *entry) error {
	if e.Rec.Restoring == "" {
		return nil
	}
	s, err := m.snapshot(e, e.Rec.Restoring)
	if err == nil {
		err = m.verify(s)
	}
	if err == nil {
		c := memory.Cause{Operation: memory.Restored, From: s.Name}
		err = m.opt.Memories.Replace(ctx, e.memoryOwner(), c, func() error { return m.replaceDisk(ctx, e, s) })
	}
	if err != nil {
		return fmt.Errorf("its disk is not yet that of snapshot %s: %w: start it, or restore it to another with `sallyport sandbox restore %s SNAPSHOT`", e.Rec.Restoring, err, e.Rec.Name)
	}
	ev := state.Lifecycle(e.Rec, "restored", "to snapshot "+s.Name)
	ev.Unmapped.Sallyport.Snapshot = s.Name
	return m.journal.CommitWithEvent(ctx, &e.Stored, ev, func(r *state.Record) { r.Restoring = "" })
}

// replaceDisk gives a sandbox the disk of a snapshot.
func (m *Manager) replaceDisk(ctx context.Context, e *entry, s sandbox.Snapshot) error {
	if err := m.stopAndDetach(ctx, e.Rec); err != nil {
		return err
	}
	if err := m.keepDisk(ctx, e); err != nil {
		return err
	}
	// The old disk is kept or given up by now: there may be no room for both.
	if err := m.opt.Disks.Drop(m.dir(e.Rec.Name)); err != nil {
		return err
	}
	return m.unpackTo(ctx, m.dir(e.Rec.Name), s)
}

// unpackTo gives a folder, whose disk is detached, the disk of a snapshot.
func (m *Manager) unpackTo(ctx context.Context, folder string, s sandbox.Snapshot) error {
	from := filepath.Join(m.snapshotsDir(s.Sandbox), s.Name)
	if s.Unsealed {
		return m.opt.Disks.Copy(ctx, from, folder, m.checkDisk)
	}
	f, err := os.Open(filepath.Join(from, snapshotDisk))
	if err != nil {
		return err
	}
	defer f.Close()
	r, err := m.opt.Key.NewReader(bufio.NewReaderSize(f, 256<<10))
	if err != nil {
		return err
	}
	return m.opt.Disks.Unpack(ctx, folder, r, m.checkDisk)
}

// restoreInto gives a child that is being made the disk of a snapshot, and puts the
// snapshot's processes, if any, into the folder ram.
func (m *Manager) restoreInto(ctx context.Context, c *entry, s sandbox.Snapshot, ram string) (lost, err error) {
	if err := m.verify(s); err != nil {
		return nil, err
	}
	if lost, err = m.unsealProcesses(ctx, s, ram); err != nil {
		return nil, err
	}
	return lost, m.unpackTo(ctx, m.dir(c.Rec.Name), s)
}
