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

	"sallyport/audit"
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
	return m.bury(ctx, e, filepath.Join(m.snapshotsDir(e.rec.Name), snapshot), snapshot, why)
}

// bury removes a snapshot from the folder where it lies, once its end is on record.
func (m *Manager) bury(ctx context.Context, e *entry, from, snapshot, why string) error {
	dir := m.snapshotsDir(e.rec.Name)
	ev := detailed(e.rec, "snapshot removed", snapshot+": "+why)
	gone := aside(filepath.Join(dir, snapshot), ev, goneSuffix)
	if err := os.Rename(from, gone); err != nil {
		return err
	}
	if err := durable.SyncDir(dir); err != nil {
		return err
	}
	if err := m.say(ctx, e, ev); err != nil {
		return errors.Join(err, os.Rename(gone, from))
	}
	return os.RemoveAll(gone)
}

// aside is where a snapshot is between two states of it that the log tells apart:
// the name has the ID of the event, so that after a crash the log can be asked for
// that.
func aside(dir string, ev *audit.Event, suffix string) string { return dir + "." + ev.ID() + suffix }

// asideOf is which snapshot a folder is that was set aside, and whether the log has
// the event.
func (m *Manager) asideOf(ctx context.Context, path string) (snapshot string, told bool, err error) {
	name := strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
	snapshot, id, named := strings.Cut(name, ".")
	if named {
		told, err = m.recorded(ctx, id)
	}
	return snapshot, told, err
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
			errs = append(errs, m.tidyPart(ctx, path))
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
func (m *Manager) tidyPart(ctx context.Context, part string) error {
	snapshot, made, err := m.asideOf(ctx, part)
	switch {
	case err != nil:
		return err
	case !made:
		return os.RemoveAll(part)
	}
	dir := filepath.Dir(part)
	return errors.Join(os.Rename(part, filepath.Join(dir, snapshot)), durable.SyncDir(dir))
}

// tidyGone: its end is on record before any of it goes.
func (m *Manager) tidyGone(ctx context.Context, e *entry, gone string) error {
	snapshot, ended, err := m.asideOf(ctx, gone)
	switch {
	case err != nil:
		return err
	case !ended:
		return m.bury(ctx, e, gone, snapshot, "the daemon ended while it was being removed")
	}
	return os.RemoveAll(gone)
}
