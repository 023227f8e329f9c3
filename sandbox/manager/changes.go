package manager

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sallyport/memory"
	"sallyport/sandbox"
	"sallyport/sandbox/manifest"
	"sallyport/sandbox/state"
)

// roots are where a sandbox's files lie: those of its layer and its memory.
func (m *Manager) roots(ctx context.Context, rec state.Record) ([]manifest.Root, error) {
	if m.opt.Layers == nil {
		return nil, fmt.Errorf("%w: this engine does not show where a sandbox's files lie", sandbox.ErrBadSpec)
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

// Changes tells what has changed of a sandbox's files since a snapshot of it, or
// the one that it was made of, its memory included; or, without one, what of its
// image. It asks the sandbox nothing. One that does not run is started, or, where it
// cannot be, looked at as it is. What is written meanwhile may be told or not.
func (m *Manager) Changes(ctx context.Context, name, snapshot string, tell func(sandbox.Change) error) (err error) {
	rec, s, done, err := m.startOrAttach(ctx, name, snapshot)
	if err != nil {
		return err
	}
	defer done()
	defer func() {
		if err != nil {
			err = fmt.Errorf("the changes of %s: %w", name, err)
		}
	}()
	roots, err := m.roots(ctx, rec)
	if err != nil {
		return err
	}
	if snapshot == "" {
		return manifest.Compare(ctx, roots[:1], tell) // no image has a memory
	}
	if err := m.verify(s); err != nil {
		return err
	}
	then, err := m.openSnapshotDisk(ctx, rec, s)
	if err != nil {
		return err
	}
	defer then.Close()
	layer, err := m.opt.Runtime.Layer(ctx, rec.ID)
	if err != nil {
		return err
	}
	if in, ok := strings.CutPrefix(layer, m.link(rec.ID)+"/"); ok { // from the pool
		layer = filepath.Join(m.dir(rec.Name), in)
	}
	within, err := filepath.Rel(m.opt.Disks.Layer(m.dir(rec.Name)), layer)
	if err != nil {
		return err
	}
	was := fmt.Sprintf("/proc/self/fd/%d", then.Fd())
	roots[0].Then = filepath.Join(was, filepath.Base(m.opt.Disks.Layer("")), within)
	roots[1].Then = filepath.Join(was, "memory")
	return manifest.Compare(ctx, roots, tell)
}

// openSnapshotDisk opens the root of a snapshot's disk.
func (m *Manager) openSnapshotDisk(ctx context.Context, rec state.Record, s sandbox.Snapshot) (*os.File, error) {
	done, err := m.reserveStorage(rec.Spec.Owner, rec.ID, s.Size)
	if err != nil {
		return nil, err
	}
	defer done()
	dir, err := os.MkdirTemp(m.dir(rec.Name), openDiskPrefix)
	if err != nil {
		return nil, err
	}
	if err := m.unpackTo(ctx, dir, s); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return m.opt.Disks.Look(dir)
}

// openDiskPrefix is what the folders begin with that disks are looked at in. One that is
// there when the manager opens is what a crash has left.
const openDiskPrefix = "look-"

func (m *Manager) removeOpenDisks(rec state.Record) error {
	left, _ := filepath.Glob(filepath.Join(m.dir(rec.Name), openDiskPrefix+"*"))
	var errs []error
	for _, dir := range left {
		errs = append(errs, m.opt.Disks.Detach(dir), os.RemoveAll(dir))
	}
	return errors.Join(errs...)
}

// snapshotOrParents is a snapshot of a sandbox, or the one that it was made of.
func (m *Manager) snapshotOrParents(e *entry, snapshot string) (sandbox.Snapshot, error) {
	s, err := m.snapshot(e, snapshot)
	l := e.Rec.Lineage
	if l == nil || l.Snapshot != snapshot || !errors.Is(err, sandbox.ErrNoSnapshot) {
		return s, err
	}
	parent := &entry{Stored: state.Stored{Rec: state.Record{Name: l.Name, ID: l.Parent}}}
	if of, oerr := m.snapshot(parent, snapshot); oerr == nil {
		return of, nil
	}
	return s, err
}

// startOrAttach runs a sandbox, if it does not run, so that its disk is in place, and
// keeps it from being put to sleep until done. One that cannot start stays locked
// until then. Without the snapshot it does neither.
func (m *Manager) startOrAttach(ctx context.Context, name, snapshot string) (rec state.Record, s sandbox.Snapshot, done func(), err error) {
	e, err := m.lockWithMemory(ctx, name, "starting", m.memoryToWake)
	if err != nil {
		return rec, s, nil, err
	}
	if snapshot != "" {
		if s, err = m.snapshotOrParents(e, snapshot); err != nil {
			m.release(e)
			return rec, s, nil, err
		}
	}
	used := e.use()
	cause := m.start(ctx, e)
	if cause == nil {
		m.release(e)
		return e.Rec, s, used, nil
	}
	used()
	cause = fmt.Errorf("starting sandbox %s: %w", name, cause)
	if e.state.Live() {
		m.release(e)
		return rec, s, nil, cause
	}
	done = func() {
		m.releaseDisk(ctx, e)
		m.release(e)
	}
	if err := m.attachDisk(e.Rec); err != nil {
		done()
		return rec, s, nil, errors.Join(cause, err)
	}
	return e.Rec, s, done, nil
}
