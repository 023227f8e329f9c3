package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sallyport/internal/durable"
)

// RemoveSnapshot removes one of a sandbox's.
func (m *Manager) RemoveSnapshot(ctx context.Context, name, snapshot string) error {
	e, err := m.existing(ctx, name)
	if err != nil {
		return err
	}
	defer m.release(e)
	if _, err := os.Lstat(filepath.Join(m.snapshotsDir(name), snapshot)); err != nil || !nameForm.MatchString(snapshot) {
		_, err := m.snapshot(e, snapshot)
		return err
	}
	return m.dropSnapshot(ctx, e, snapshot, "asked to")
}

func (m *Manager) dropSnapshot(ctx context.Context, e *entry, snapshot, why string) error {
	if e.rec.Restoring == snapshot {
		return fmt.Errorf("%w: snapshot %s is being restored: start the sandbox first", ErrState, snapshot)
	}
	dir := filepath.Join(m.snapshotsDir(e.rec.Name), snapshot)
	if err := os.Rename(dir, dir+goneSuffix); err != nil {
		return err
	}
	if err := durable.SyncDir(filepath.Dir(dir)); err != nil {
		return err
	}
	if err := m.say(ctx, e, detailed(e.rec, "snapshot removed", snapshot+": "+why)); err != nil {
		return errors.Join(err, os.Rename(dir+goneSuffix, dir))
	}
	return os.RemoveAll(dir + goneSuffix)
}

// retain removes what a new snapshot leaves no place for.
func (m *Manager) retain(ctx context.Context, e *entry, spec SnapshotSpec) error {
	have, err := m.snapshots(e.rec.Name)
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
	have = slices.DeleteFunc(have, func(s Snapshot) bool { return s.Safety != spec.safety })
	var errs []error
	for _, s := range have[:max(0, len(have)-limit)] {
		errs = append(errs, m.dropSnapshot(ctx, e, s.Name, fmt.Sprintf("the last %d are kept", limit)))
	}
	return errors.Join(errs...)
}

// tidy removes a sandbox's snapshots that have expired, and makes of what a crash
// has left of others what is on record.
func (m *Manager) tidy(ctx context.Context, e *entry) error {
	folders, err := os.ReadDir(m.snapshotsDir(e.rec.Name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, f := range folders {
		path := filepath.Join(m.snapshotsDir(e.rec.Name), f.Name())
		switch filepath.Ext(path) {
		case partSuffix:
			errs = append(errs, m.tidyPart(ctx, e, path))
		case goneSuffix:
			errs = append(errs, m.tidyGone(ctx, e, path))
		default:
			if s, err := m.readSnapshot(path); err == nil && !s.Expires.IsZero() && time.Now().After(s.Expires) && e.rec.Restoring != s.Name {
				errs = append(errs, m.dropSnapshot(ctx, e, s.Name, "it has expired"))
			}
		}
	}
	return errors.Join(errs...)
}

// tidyPart: one that is whole, and on record, is there.
func (m *Manager) tidyPart(ctx context.Context, e *entry, part string) error {
	dir := strings.TrimSuffix(part, partSuffix)
	s, err := m.readSnapshotOf(part, filepath.Base(dir))
	if err != nil || m.opt.Told == nil {
		return os.RemoveAll(part)
	}
	made, err := m.onRecord(ctx, Deed{Sandbox: s.Sandbox, ID: s.SandboxID, State: "snapshot", Detail: s.Name + ",", Since: s.Created})
	switch {
	case err != nil:
		return err
	case !made:
		return os.RemoveAll(part)
	}
	return errors.Join(os.Rename(part, dir), durable.SyncDir(filepath.Dir(dir)))
}

// tidyGone: its end is on record before any of it goes.
func (m *Manager) tidyGone(ctx context.Context, e *entry, gone string) error {
	name := strings.TrimSuffix(filepath.Base(gone), goneSuffix)
	s, err := m.readSnapshotOf(gone, name)
	if err == nil {
		ended, err := m.onRecord(ctx, Deed{Sandbox: s.Sandbox, ID: s.SandboxID, State: "snapshot removed", Detail: s.Name + ":", Since: s.Created})
		if err == nil && !ended {
			err = m.say(ctx, e, detailed(e.rec, "snapshot removed", name+": the daemon ended while it was being removed"))
		}
		if err != nil {
			return err
		}
	}
	return os.RemoveAll(gone)
}
