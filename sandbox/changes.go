package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"sallyport/internal/durable"
	"sallyport/memory"
	"sallyport/sandbox/manifest"
)

// Layers says where a sandbox's files lie on the host.
type Layers interface {
	// Layers returns the folder of what the sandbox has changed of its image, and
	// those of the image, the uppermost first.
	Layers(ctx context.Context, id string) (upper string, lower []string, err error)
}

// ErrNotNoted: there is no such snapshot, or none that notes what files were.
var ErrNotNoted = errors.New("no snapshot of that name notes the sandbox's files")

// Change is what has become of one file: its path may hold any bytes.
type Change = manifest.Change

// noteName is the file in a snapshot's folder that notes what files were.
const noteName = "files"

// snapshotDir is the folder of what is kept of one snapshot.
func (m *Manager) snapshotDir(name, snapshot string) string {
	return filepath.Join(m.dir(name), "snapshots", snapshot)
}

// roots are where a sandbox's files lie: those of its layer and its memory.
func (m *Manager) roots(ctx context.Context, rec record) ([]manifest.Root, error) {
	if m.opt.Layers == nil {
		return nil, fmt.Errorf("%w: this engine does not show where a sandbox's files lie", ErrBadSpec)
	}
	upper, lower, err := m.opt.Layers.Layers(ctx, rec.ID)
	if err != nil {
		return nil, err
	}
	return []manifest.Root{
		{At: "/", Folder: upper, Lower: lower},
		{At: "/memory", Folder: memory.Dir(m.dir(rec.Name))},
	}, nil
}

// takeStock writes down what the files of a sandbox are, for a snapshot of it; the
// caller holds the entry's lock, and keeps the sandbox from writing meanwhile if
// snapshot and note are to agree.
func (m *Manager) takeStock(ctx context.Context, rec record, snapshot string) error {
	roots, err := m.roots(ctx, rec)
	if err != nil {
		return err
	}
	dir := m.snapshotDir(rec.Name, snapshot)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, "."+noteName+"-*")
	if err != nil {
		return err
	}
	err = manifest.Take(ctx, f, roots...)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, noteName))
	}
	if err != nil {
		return errors.Join(fmt.Errorf("noting the files of %s: %w", rec.Name, err), os.Remove(f.Name()))
	}
	return durable.SyncDir(dir)
}

// Changes tells what has changed of a sandbox's files since a snapshot of it,
// its memory included, or, without one, what of its image. It asks the sandbox
// nothing, and starts it if need be, since only then its layer is in place. What
// is written meanwhile may be told or not.
func (m *Manager) Changes(ctx context.Context, name, snapshot string, tell func(Change) error) error {
	if snapshot != "" && CheckName(snapshot) != nil {
		return fmt.Errorf("%w: %q", ErrNotNoted, snapshot)
	}
	rec, err := m.placed(ctx, name)
	if err != nil {
		return err
	}
	roots, err := m.roots(ctx, rec)
	if err != nil {
		return fmt.Errorf("the changes of %s: %w", name, err)
	}
	var since io.Reader
	if snapshot == "" {
		roots = roots[:1] // no image has a memory
	} else {
		f, err := os.Open(filepath.Join(m.snapshotDir(name, snapshot), noteName))
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%w: %q", ErrNotNoted, snapshot)
		}
		if err != nil {
			return err
		}
		defer f.Close()
		since = f
	}
	if err := manifest.Compare(ctx, since, roots, tell); err != nil {
		return fmt.Errorf("the changes of %s: %w", name, err)
	}
	return nil
}

// placed runs a sandbox, if it does not run, so that its layer is in place.
func (m *Manager) placed(ctx context.Context, name string) (record, error) {
	e, err := m.existing(ctx, name)
	if err != nil {
		return record{}, err
	}
	defer m.release(e)
	if err := m.start(ctx, e); err != nil {
		return record{}, fmt.Errorf("starting sandbox %s: %w", name, err)
	}
	return e.rec, nil
}
