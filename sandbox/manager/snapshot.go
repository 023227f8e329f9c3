package manager

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sallyport/audit"
	"sallyport/internal/durable"
	"sallyport/memory"
	"sallyport/sandbox"
	"sallyport/sandbox/checkpoint"
	"sallyport/sandbox/state"
)

// maxSnapshots is how many snapshots a sandbox can have. keptSafety is how many of them
// that Restore made are kept.
const (
	maxSnapshots = 100
	keptSafety   = 3
)

// Names in a snapshot's folder. The files are sealed. An unsealed snapshot has its disk
// where a sandbox has its own.
const (
	snapshotRecord = "record"
	snapshotDisk   = "disk"
	snapshotMemory = "memory"
	// partSuffix ends the name of a folder that is being made, goneSuffix that of one that
	// is being removed. No snapshot's name ends so. See pendingPath.
	partSuffix = ".part"
	goneSuffix = ".gone"
)

func (m *Manager) snapshotsDir(name string) string {
	return filepath.Join(m.dir(name), "snapshots")
}

// Snapshot keeps a copy of a sandbox as it is now. A running sandbox is paused meanwhile,
// so that its files and processes agree.
func (m *Manager) Snapshot(ctx context.Context, name string, spec sandbox.SnapshotSpec) (s sandbox.Snapshot, err error) {
	need := func(e *entry) int64 {
		if !spec.Memory {
			return 0
		}
		return m.memorySize(ctx, e)
	}
	_, err = m.withLocked(ctx, name, "making a snapshot of", need, func(e *entry) (err error) {
		s, err = m.makeSnapshot(ctx, e, keepSpec{spec, false})
		return err
	})
	return s, err
}

// keepSpec is a SnapshotSpec. safety says that Restore makes the snapshot.
type keepSpec struct {
	sandbox.SnapshotSpec
	safety bool
}

// makeSnapshot makes a snapshot. RAM for the memory is reserved.
func (m *Manager) makeSnapshot(ctx context.Context, e *entry, spec keepSpec) (s sandbox.Snapshot, err error) {
	if m.opt.Key == nil {
		return s, fmt.Errorf("%w: this manager has nothing to seal it with", sandbox.ErrNoCheckpoint)
	}
	if err := m.ownDisk(e.Rec); err != nil {
		return s, err
	}
	if err := m.checkDisk(); err != nil {
		return s, err
	}
	spec.Name = cmp.Or(spec.Name, stamp("at-"))
	if err := m.checkSnapshot(e, spec); err != nil {
		return s, err
	}
	most := m.storage(e.Rec.Name).Disk
	if spec.Memory {
		most += m.memorySize(ctx, e)
	}
	done, err := m.reserveStorage(e.Rec.Spec.Owner, e.Rec.ID, most)
	if err != nil {
		return s, err
	}
	defer done()
	s = m.newSnapshot(e, spec)
	if spec.Expires > 0 {
		s.Expires = s.Created.Add(time.Duration(spec.Expires))
	}
	mem := ""
	if spec.Memory {
		s.Agent = e.Rec.Agent
		if s.Build, err = m.opt.Runtime.Build(ctx); err != nil {
			return s, err
		}
		dir, done := m.scratchFolder(e)
		defer func() { err = errors.Join(err, done()) }()
		mem = dir
		if s.Flows = e.Rec.Flows; e.state == sandbox.Running {
			s.Flows = m.opt.Gate.Flows(e.Rec.Address)
		}
	}
	m.recordMemory(ctx, e, memory.Cause{Operation: memory.Snapshot, From: s.Name})
	part := filepath.Join(m.snapshotsDir(e.Rec.Name), s.Name+partSuffix)
	if err := os.RemoveAll(part); err != nil {
		return s, err
	}
	if err := durable.MkdirAll(part, 0o700); err != nil {
		return s, err
	}
	if err = m.capture(ctx, e, &s, part, mem); err == nil {
		err = m.publishSnapshot(ctx, e, s, part)
	}
	if err != nil {
		return s, errors.Join(err, os.RemoveAll(part))
	}
	return s, m.retain(ctx, e, spec)
}

// newSnapshot describes a snapshot that has no files yet.
func (m *Manager) newSnapshot(e *entry, spec keepSpec) sandbox.Snapshot {
	return sandbox.Snapshot{
		Name: spec.Name, Sandbox: e.Rec.Name, SandboxID: e.Rec.ID, Lineage: e.Rec.Lineage, Created: now(),
		Memory: spec.Memory, Safety: spec.safety, Session: e.Rec.Session, Sums: map[string]string{},
	}
}

// checkSnapshot returns why a snapshot cannot be made, or nil.
func (m *Manager) checkSnapshot(e *entry, spec keepSpec) error {
	have, err := m.snapshots(e.Rec.Name)
	if err != nil {
		return err
	}
	switch {
	case sandbox.CheckName(spec.Name) != nil:
		return fmt.Errorf("%w: %q is no snapshot's name: use 1 to 63 lower-case letters, digits and hyphens", sandbox.ErrBadSpec, spec.Name)
	case slices.ContainsFunc(have, func(o sandbox.Snapshot) bool { return o.Name == spec.Name }):
		return fmt.Errorf("%w: there is a snapshot %s: remove it, or choose another name", sandbox.ErrTaken, spec.Name)
	case spec.KeepLast < 0 || spec.Expires < 0:
		return fmt.Errorf("%w: keepLast %d, expires %v: use none below zero", sandbox.ErrBadSpec, spec.KeepLast, spec.Expires)
	case spec.Memory && !e.state.Live():
		return fmt.Errorf("%w: it is %s and has no processes: leave memory out", sandbox.ErrState, m.info(e).State)
	case len(have) >= maxSnapshots && !spec.safety && (spec.KeepLast == 0 || spec.KeepLast >= maxSnapshots):
		return fmt.Errorf("%w: it has %d snapshots: remove some, or say keepLast", sandbox.ErrState, len(have))
	case e.Rec.Restoring != "":
		return fmt.Errorf("%w: it is being restored: start it first", sandbox.ErrState)
	case spec.Memory:
		return m.canCheckpoint(e)
	}
	return nil
}

// capture writes a sandbox's disk into the folder part, and its processes by way of the
// folder mem in RAM. mem is "": no processes.
func (m *Manager) capture(ctx context.Context, e *entry, s *sandbox.Snapshot, part, mem string) (err error) {
	s.PausedFor, err = m.withFrozen(ctx, e, mem, func() error {
		s.Mark = m.mark()
		return m.packSealed(ctx, m.dir(e.Rec.Name), filepath.Join(part, snapshotDisk))
	})
	if err != nil {
		return err
	}
	if mem != "" {
		h := checkpoint.Header{Build: s.Build, ID: s.SandboxID, Session: s.Session, Made: s.Created}
		if _, err := checkpoint.Seal(m.opt.Key, h, mem, filepath.Join(part, snapshotMemory), m.checkDisk); err != nil {
			return err
		}
	}
	return m.writeSnapshotRecord(part, s)
}

func (m *Manager) mark() (now sandbox.Mark) {
	if m.opt.Mark != nil {
		now = m.opt.Mark()
	}
	return now
}

// publishSnapshot moves a whole snapshot from the folder part to its place, and records it
// on the way (see pendingPath). When it fails, there is no snapshot.
func (m *Manager) publishSnapshot(ctx context.Context, e *entry, s sandbox.Snapshot, part string) (err error) {
	what := fmt.Sprintf("%s, %d bytes, sealed", s.Name, s.Size)
	if s.Unsealed {
		what = fmt.Sprintf("%s, %d bytes, the disk itself", s.Name, s.Size)
	}
	if s.Memory {
		what += ", with its processes"
	}
	all := m.snapshotsDir(e.Rec.Name)
	dir, ev := filepath.Join(all, s.Name), state.Lifecycle(e.Rec, "snapshot", what)
	ev.Unmapped.Sallyport.Snapshot = s.Name
	whole := pendingPath(dir, ev, partSuffix)
	if err := os.Rename(part, whole); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(whole))
		}
	}()
	if err := durable.SyncDir(all); err != nil {
		return err
	}
	if err := m.journal.Emit(ctx, &e.Stored, ev); err != nil {
		return err
	}
	if err := os.Rename(whole, dir); err != nil {
		gone := state.Lifecycle(e.Rec, "snapshot removed", s.Name+": "+err.Error())
		gone.Unmapped.Sallyport.Snapshot = s.Name
		return errors.Join(err, m.journal.Emit(ctx, &e.Stored, gone))
	}
	return durable.SyncDir(all)
}

// stamp is a name for a snapshot that tells the time.
func stamp(prefix string) string {
	return prefix + strings.ReplaceAll(time.Now().UTC().Format("20060102-150405.000000"), ".", "-")
}

// writeSnapshotRecord writes the record of a snapshot whose files are there.
func (m *Manager) writeSnapshotRecord(part string, s *sandbox.Snapshot) error {
	files, err := os.ReadDir(part)
	if err != nil {
		return err
	}
	for _, f := range files {
		sum, n, err := sumOf(filepath.Join(part, f.Name()))
		if err != nil {
			return err
		}
		s.Sums[f.Name()] = sum
		s.Size += n
	}
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return durable.WriteSealed(filepath.Join(part, snapshotRecord), m.opt.Key, text)
}

func sumOf(path string) (sum string, n int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	h := sha256.New()
	if n, err = io.Copy(h, f); err != nil {
		return "", 0, err
	}
	return hex.EncodeToString(h.Sum(nil)), n, nil
}

// packSealed seals the disk of a folder. The disk is frozen or detached.
func (m *Manager) packSealed(ctx context.Context, from, to string) (err error) {
	f, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w, err := m.opt.Key.NewWriter(checkpoint.NewWriter(f, m.checkDisk))
	if err != nil {
		return err
	}
	if err := m.opt.Disks.Pack(ctx, from, w); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return f.Sync()
}

// snapshot reads a snapshot of a sandbox. It checks whose it is, since sealed files can be
// moved.
func (m *Manager) snapshot(e *entry, snapshot string) (s sandbox.Snapshot, err error) {
	name := e.Rec.Name
	if sandbox.CheckName(snapshot) == nil {
		s, err = m.readSnapshot(filepath.Join(m.snapshotsDir(name), snapshot))
		if err == nil && (s.Sandbox != name || s.SandboxID != e.Rec.ID) {
			return sandbox.Snapshot{}, fmt.Errorf("%w: %s is of sandbox %s (%s)", sandbox.ErrDamaged, snapshot, s.Sandbox, s.SandboxID)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return s, err
		}
	}
	return s, fmt.Errorf("%w: %q of sandbox %s: `sallyport sandbox snapshots %s` shows those there are", sandbox.ErrNoSnapshot, snapshot, name, name)
}

// readSnapshot reads the record in a snapshot's folder.
func (m *Manager) readSnapshot(dir string) (s sandbox.Snapshot, err error) {
	sealed, err := os.ReadFile(filepath.Join(dir, snapshotRecord))
	if err != nil {
		return s, err
	}
	if m.opt.Key == nil {
		return s, fmt.Errorf("%w: this manager cannot unseal it", sandbox.ErrNoCheckpoint)
	}
	text, err := m.opt.Key.Open(sealed)
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if of := filepath.Base(filepath.Dir(filepath.Dir(dir))); err == nil && (s.Name != filepath.Base(dir) || s.Sandbox != of) {
		err = fmt.Errorf("it is that of %q of sandbox %q", s.Name, s.Sandbox)
	}
	if err != nil {
		return s, fmt.Errorf("%w: the record of %s: %w", sandbox.ErrDamaged, dir, err)
	}
	return s, nil
}

// snapshots lists a sandbox's snapshots, the oldest first. A snapshot whose record cannot
// be read is left out and logged.
func (m *Manager) snapshots(name string) (list []sandbox.Snapshot, err error) {
	folders, err := os.ReadDir(m.snapshotsDir(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, f := range folders {
		if sandbox.CheckName(f.Name()) != nil {
			continue
		}
		s, err := m.readSnapshot(filepath.Join(m.snapshotsDir(name), f.Name()))
		if err != nil {
			m.opt.Logger.Warn("a snapshot cannot be read", "sandbox", name, "snapshot", f.Name(), "error", err)
			continue
		}
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b sandbox.Snapshot) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
	})
	return list, nil
}

// Snapshots lists a sandbox's snapshots, the oldest first.
func (m *Manager) Snapshots(ctx context.Context, name string) ([]sandbox.Snapshot, error) {
	if _, err := m.Visible(ctx, name); err != nil {
		return nil, err
	}
	return m.snapshots(name)
}

// RemoveSnapshot removes a snapshot of a sandbox.
func (m *Manager) RemoveSnapshot(ctx context.Context, name, snapshot string) error {
	e, err := m.existing(ctx, name)
	if err != nil {
		return err
	}
	defer m.release(e)
	if _, err := os.Lstat(filepath.Join(m.snapshotsDir(name), snapshot)); err != nil || sandbox.CheckName(snapshot) != nil {
		_, err := m.snapshot(e, snapshot)
		return err
	}
	return m.dropSnapshot(ctx, e, snapshot, "asked to")
}

func (m *Manager) dropSnapshot(ctx context.Context, e *entry, snapshot, why string) error {
	if e.Rec.Restoring == snapshot {
		return fmt.Errorf("%w: snapshot %s is being restored: start the sandbox first", sandbox.ErrState, snapshot)
	}
	return m.removeWithEvent(ctx, e, filepath.Join(m.snapshotsDir(e.Rec.Name), snapshot), snapshot, why)
}

// removeWithEvent removes a snapshot from the folder from, once its end is recorded.
func (m *Manager) removeWithEvent(ctx context.Context, e *entry, from, snapshot, why string) error {
	dir := m.snapshotsDir(e.Rec.Name)
	ev := state.Lifecycle(e.Rec, "snapshot removed", snapshot+": "+why)
	ev.Unmapped.Sallyport.Snapshot = snapshot
	gone := pendingPath(filepath.Join(dir, snapshot), ev, goneSuffix)
	if err := os.Rename(from, gone); err != nil {
		return err
	}
	if err := durable.SyncDir(dir); err != nil {
		return err
	}
	if err := m.journal.Emit(ctx, &e.Stored, ev); err != nil {
		return errors.Join(err, os.Rename(gone, from))
	}
	return os.RemoveAll(gone)
}

// pendingPath is the place of a snapshot while an event about it is recorded. The name
// holds the event's ID: after a crash, the log can be asked whether it has the event.
func pendingPath(dir string, ev *audit.Event, suffix string) string {
	return dir + "." + ev.ID() + suffix
}

// parsePending returns the snapshot that a pending path is of, and whether the log has its
// event.
func (m *Manager) parsePending(ctx context.Context, path string) (snapshot string, told bool, err error) {
	name := strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
	snapshot, id, named := strings.Cut(name, ".")
	if named {
		told, err = m.journal.Has(ctx, id)
	}
	return snapshot, told, err
}

// retain removes the oldest snapshots, beyond the number that is kept.
func (m *Manager) retain(ctx context.Context, e *entry, spec keepSpec) error {
	have, err := m.snapshots(e.Rec.Name)
	if err != nil {
		return err
	}
	limit := spec.KeepLast
	if spec.safety {
		limit = keptSafety
	}
	if limit == 0 {
		return nil
	}
	have = slices.DeleteFunc(have, func(s sandbox.Snapshot) bool { return s.Safety != spec.safety })
	var errs []error
	for _, s := range have[:max(0, len(have)-limit)] {
		errs = append(errs, m.dropSnapshot(ctx, e, s.Name, fmt.Sprintf("the last %d are kept", limit)))
	}
	return errors.Join(errs...)
}

// tidySnapshots removes expired snapshots, and finishes what a crash cut short as the log
// has it.
func (m *Manager) tidySnapshots(ctx context.Context, e *entry) error {
	folders, err := os.ReadDir(m.snapshotsDir(e.Rec.Name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, f := range folders {
		path := filepath.Join(m.snapshotsDir(e.Rec.Name), f.Name())
		switch filepath.Ext(path) {
		case partSuffix:
			errs = append(errs, m.tidyPart(ctx, path))
		case goneSuffix:
			errs = append(errs, m.tidyGone(ctx, e, path))
		default:
			if s, err := m.readSnapshot(path); err == nil && !s.Expires.IsZero() && time.Now().After(s.Expires) && e.Rec.Restoring != s.Name {
				errs = append(errs, m.dropSnapshot(ctx, e, s.Name, "it has expired"))
			}
		}
	}
	return errors.Join(errs...)
}

// tidyPart puts a snapshot in its place if the log has it, and removes it otherwise.
func (m *Manager) tidyPart(ctx context.Context, part string) error {
	snapshot, made, err := m.parsePending(ctx, part)
	switch {
	case err != nil:
		return err
	case !made:
		return os.RemoveAll(part)
	}
	dir := filepath.Dir(part)
	return errors.Join(os.Rename(part, filepath.Join(dir, snapshot)), durable.SyncDir(dir))
}

// tidyGone removes a snapshot if the log has its end, and puts it back otherwise.
func (m *Manager) tidyGone(ctx context.Context, e *entry, gone string) error {
	snapshot, ended, err := m.parsePending(ctx, gone)
	switch {
	case err != nil:
		return err
	case !ended:
		return m.removeWithEvent(ctx, e, gone, snapshot, "the daemon ended while it was being removed")
	}
	return os.RemoveAll(gone)
}
