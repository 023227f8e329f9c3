package sandbox

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

	"sallyport/internal/durable"
)

// Snapshot is what a sandbox was at a moment: its disk, with its memory store, and,
// where Memory says so, its processes. All of it lies in the sandbox's folder, sealed,
// but for what Unsealed says.
type Snapshot struct {
	Name      string    `json:"name"`
	Sandbox   string    `json:"sandbox"`
	SandboxID string    `json:"sandboxId"`
	Lineage   *Lineage  `json:"lineage,omitempty"` // of the sandbox
	Created   time.Time `json:"created"`
	Expires   time.Time `json:"expires,omitzero"` // zero: never
	Size      int64     `json:"size"`             // bytes on the host's disk
	Memory    bool      `json:"memory"`
	// Safety tells those that Restore has made.
	Safety bool `json:"safety,omitempty"`
	// Unsealed says of one that Restore has made that no sealed copy of the disk could be
	// had: it is the disk itself, as that lay there.
	Unsealed bool `json:"unsealed,omitempty"`
	// Session that it was made in, if any was.
	Session string `json:"session,omitempty"`
	// Build is of the gVisor that wrote Memory, and alone reads it.
	Build string `json:"build,omitempty"`
	// Mark is what was in force and recorded.
	Mark Mark `json:"mark"`
	// Stood is for how long the sandbox had to stand still, in nanoseconds.
	Stood time.Duration `json:"stood"`
	// Sums are the SHA-256 of the sealed files, by their names.
	Sums map[string]string `json:"sums"`
	// Flows are the connections that are in Memory.
	Flows []Flow `json:"flows,omitempty"`
	// Agent is the public key of the agent that is in Memory.
	Agent []byte `json:"agent,omitempty"`
}

// Mark is a place in what is decided and recorded.
type Mark struct {
	Policy string `json:"policy,omitempty"` // revision in force
	Audit  uint64 `json:"audit,omitempty"`  // events on record
}

// SnapshotSpec says what snapshot to make.
type SnapshotSpec struct {
	// Name is unique among the sandbox's. Default: the time.
	Name string `json:"name,omitempty"`
	// Memory has the processes in it too. The sandbox must have a session.
	Memory bool `json:"memory,omitempty"`
	// KeepLast is how many of the sandbox's there may be after this one: the oldest
	// go. Default: as many as there are.
	KeepLast int `json:"keepLast,omitempty"`
	// Expires is after how long it goes. Default: never.
	Expires Duration `json:"expires,omitempty"`

	safety bool
}

// maxSnapshots is how many a sandbox can have, and keptSafety how many of them
// that Restore has made.
const (
	maxSnapshots = 100
	keptSafety   = 3
)

// Names in a snapshot's folder. All are sealed. One that is not has its disk where a
// sandbox has it.
const (
	snapshotRecord = "record"
	snapshotDisk   = "disk"
	snapshotMemory = "memory"
	// partSuffix is of a folder that is being made, and goneSuffix of one that is
	// being removed: no snapshot's name ends so. See aside.
	partSuffix = ".part"
	goneSuffix = ".gone"
)

func (m *Manager) snapshotsDir(name string) string {
	return filepath.Join(m.dir(name), "snapshots")
}

// Snapshot keeps what a sandbox is now. One that runs stands still meanwhile, so
// that files and processes agree.
func (m *Manager) Snapshot(ctx context.Context, name string, spec SnapshotSpec) (s Snapshot, err error) {
	need := func(e *entry) int64 {
		if !spec.Memory {
			return 0
		}
		return m.memorySize(ctx, e)
	}
	_, err = m.doing(ctx, name, "making a snapshot of", need, func(e *entry) (err error) {
		s, err = m.keep(ctx, e, spec)
		return err
	})
	return s, err
}

// keep makes a snapshot, with room for the memory.
func (m *Manager) keep(ctx context.Context, e *entry, spec SnapshotSpec) (s Snapshot, err error) {
	if m.opt.Key == nil {
		return s, fmt.Errorf("%w: this manager has nothing to seal it with", ErrNoCheckpoint)
	}
	if err := m.ownDisk(e.rec); err != nil {
		return s, err
	}
	if err := m.roomy(); err != nil {
		return s, err
	}
	if spec.Name == "" {
		spec.Name = stamp("at-")
	}
	if err := m.keepable(e, spec); err != nil {
		return s, err
	}
	most := m.storage(e.rec.Name).Disk
	if spec.Memory {
		most += m.memorySize(ctx, e)
	}
	done, err := m.book(e.rec.Spec.Owner, e.rec.ID, most)
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
		s.Agent = e.rec.Agent
		if s.Build, err = m.opt.Runtime.Build(ctx); err != nil {
			return s, err
		}
		dir, done := m.scratch(e)
		defer func() { err = errors.Join(err, done()) }()
		mem = dir
		if s.Flows = e.rec.Flows; e.state == Running {
			s.Flows = m.opt.Gate.Flows(e.rec.Address)
		}
	}
	part := filepath.Join(m.snapshotsDir(e.rec.Name), s.Name+partSuffix)
	if err := os.RemoveAll(part); err != nil {
		return s, err
	}
	if err := durable.MkdirAll(part, 0o700); err != nil {
		return s, err
	}
	if err = m.capture(ctx, e, &s, part, mem); err == nil {
		err = m.place(ctx, e, s, part)
	}
	if err != nil {
		return s, errors.Join(err, os.RemoveAll(part))
	}
	return s, m.retain(ctx, e, spec)
}

// newSnapshot is one of which nothing is kept yet.
func (m *Manager) newSnapshot(e *entry, spec SnapshotSpec) Snapshot {
	return Snapshot{
		Name: spec.Name, Sandbox: e.rec.Name, SandboxID: e.rec.ID, Lineage: e.rec.Lineage, Created: now(),
		Memory: spec.Memory, Safety: spec.safety, Session: e.rec.Session, Sums: map[string]string{},
	}
}

// keepable says why such a snapshot cannot be made, or nil.
func (m *Manager) keepable(e *entry, spec SnapshotSpec) error {
	have, err := m.snapshots(e.rec.Name)
	if err != nil {
		return err
	}
	switch {
	case !nameForm.MatchString(spec.Name):
		return fmt.Errorf("%w: %q is no snapshot's name: use 1 to 63 lower-case letters, digits and hyphens", ErrBadSpec, spec.Name)
	case slices.ContainsFunc(have, func(o Snapshot) bool { return o.Name == spec.Name }):
		return fmt.Errorf("%w: there is a snapshot %s: remove it, or choose another name", ErrTaken, spec.Name)
	case spec.KeepLast < 0 || spec.Expires < 0:
		return fmt.Errorf("%w: keepLast %d, expires %v: use none below zero", ErrBadSpec, spec.KeepLast, spec.Expires)
	case spec.Memory && !e.state.live():
		return fmt.Errorf("%w: it is %s and has no processes: leave memory out", ErrState, m.info(e).State)
	case len(have) >= maxSnapshots && !spec.safety && (spec.KeepLast == 0 || spec.KeepLast >= maxSnapshots):
		return fmt.Errorf("%w: it has %d snapshots: remove some, or say keepLast", ErrState, len(have))
	case e.rec.Restoring != "":
		return fmt.Errorf("%w: it is being restored: start it first", ErrState)
	case spec.Memory:
		return m.canRemember(e)
	}
	return nil
}

// capture writes what a sandbox is into the folder part; its processes by way of the
// folder mem in RAM, unless that is "".
func (m *Manager) capture(ctx context.Context, e *entry, s *Snapshot, part, mem string) (err error) {
	s.Stood, err = m.still(ctx, e, mem, func() error {
		s.Mark = m.mark()
		return m.packSealed(ctx, m.dir(e.rec.Name), filepath.Join(part, snapshotDisk))
	})
	if err != nil {
		return err
	}
	if mem != "" {
		h := header{Build: s.Build, ID: s.SandboxID, Session: s.Session, Made: s.Created}
		if _, err := sealCheckpoint(m.opt.Key, h, mem, filepath.Join(part, snapshotMemory), m.roomy); err != nil {
			return err
		}
	}
	return m.finish(part, s)
}

func (m *Manager) mark() (now Mark) {
	if m.opt.Mark != nil {
		now = m.opt.Mark()
	}
	return now
}

// place moves a snapshot that is whole from the folder part to its own, and has it on
// record between (see aside). When it fails there is none.
func (m *Manager) place(ctx context.Context, e *entry, s Snapshot, part string) (err error) {
	what := fmt.Sprintf("%s, %d bytes, sealed", s.Name, s.Size)
	if s.Unsealed {
		what = fmt.Sprintf("%s, %d bytes, the disk itself", s.Name, s.Size)
	}
	if s.Memory {
		what += ", with its processes"
	}
	all := m.snapshotsDir(e.rec.Name)
	dir, ev := filepath.Join(all, s.Name), detailed(e.rec, "snapshot", what)
	whole := aside(dir, ev, partSuffix)
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
	if err := m.say(ctx, e, ev); err != nil {
		return err
	}
	if err := os.Rename(whole, dir); err != nil {
		return errors.Join(err, m.say(ctx, e, detailed(e.rec, "snapshot removed", s.Name+": "+err.Error())))
	}
	return durable.SyncDir(all)
}

// stamp is a snapshot's name that tells the time.
func stamp(prefix string) string {
	return prefix + strings.ReplaceAll(time.Now().UTC().Format("20060102-150405.000000"), ".", "-")
}

// finish writes the record of a snapshot whose files are there.
func (m *Manager) finish(part string, s *Snapshot) error {
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
	sealed, err := m.opt.Key.Seal(text)
	if err != nil {
		return err
	}
	return durable.WriteFile(filepath.Join(part, snapshotRecord), sealed, 0o600)
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

// packSealed seals the disk of a folder, which is frozen or detached.
func (m *Manager) packSealed(ctx context.Context, from, to string) (err error) {
	f, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w, err := m.opt.Key.NewWriter(&flushing{f: f, roomy: m.roomy})
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

// snapshot reads one of a sandbox's own: what is sealed can still be moved.
func (m *Manager) snapshot(e *entry, snapshot string) (s Snapshot, err error) {
	name := e.rec.Name
	if nameForm.MatchString(snapshot) {
		s, err = m.readSnapshot(filepath.Join(m.snapshotsDir(name), snapshot))
		if err == nil && (s.Sandbox != name || s.SandboxID != e.rec.ID) {
			return Snapshot{}, fmt.Errorf("%w: %s is of sandbox %s (%s)", ErrDamaged, snapshot, s.Sandbox, s.SandboxID)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return s, err
		}
	}
	return s, fmt.Errorf("%w: %q of sandbox %s: `sallyport sandbox snapshots %s` shows those there are", ErrNoSnapshot, snapshot, name, name)
}

// readSnapshot reads the record in a snapshot's folder.
func (m *Manager) readSnapshot(dir string) (s Snapshot, err error) {
	sealed, err := os.ReadFile(filepath.Join(dir, snapshotRecord))
	if err != nil {
		return s, err
	}
	if m.opt.Key == nil {
		return s, fmt.Errorf("%w: this manager cannot unseal it", ErrNoCheckpoint)
	}
	text, err := m.opt.Key.Open(sealed)
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if of := filepath.Base(filepath.Dir(filepath.Dir(dir))); err == nil && (s.Name != filepath.Base(dir) || s.Sandbox != of) {
		err = fmt.Errorf("it is that of %q of sandbox %q", s.Name, s.Sandbox)
	}
	if err != nil {
		return s, fmt.Errorf("%w: the record of %s: %w", ErrDamaged, dir, err)
	}
	return s, nil
}

// snapshots lists those of a sandbox by age, the oldest first. One whose record
// cannot be read is left out, and told in the log.
func (m *Manager) snapshots(name string) (list []Snapshot, err error) {
	folders, err := os.ReadDir(m.snapshotsDir(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, f := range folders {
		if !nameForm.MatchString(f.Name()) {
			continue
		}
		s, err := m.readSnapshot(filepath.Join(m.snapshotsDir(name), f.Name()))
		if err != nil {
			m.opt.Logger.Warn("a snapshot cannot be read", "sandbox", name, "snapshot", f.Name(), "error", err)
			continue
		}
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b Snapshot) int { return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name)) })
	return list, nil
}

// Snapshots lists those of a sandbox, the oldest first.
func (m *Manager) Snapshots(ctx context.Context, name string) ([]Snapshot, error) {
	if _, err := m.Visible(ctx, name); err != nil {
		return nil, err
	}
	return m.snapshots(name)
}
