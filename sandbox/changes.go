package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sallyport/memory"
	"sallyport/sandbox/manifest"
)

// Layers says where a sandbox's files lie on the host.
type Layers interface {
	// Layers returns the folder of what the sandbox has changed of its image, and
	// those of the image, the uppermost first.
	Layers(ctx context.Context, id string) (upper string, lower []string, err error)
}

// Change is what has become of one file: its path may hold any bytes.
type Change = manifest.Change

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

// Changes tells what has changed of a sandbox's files since a snapshot of it, or
// the one that it was made of, its memory included; or, without one, what of its
// image. It asks the sandbox nothing. One that does not run is started, or, where it
// cannot be, looked at as it is. What is written meanwhile may be told or not.
func (m *Manager) Changes(ctx context.Context, name, snapshot string, tell func(Change) error) (err error) {
	rec, s, done, err := m.placed(ctx, name, snapshot)
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
	then, err := m.lookAt(ctx, rec, s)
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
	for i, at := range []string{filepath.Join(filepath.Base(m.opt.Disks.Layer("")), within), "memory"} {
		if err := compareTrees(ctx, roots[i], then, at, tell); err != nil {
			return err
		}
	}
	return nil
}

// compareTrees tells what has changed of a root since it was what a disk has at a path.
func compareTrees(ctx context.Context, r manifest.Root, disk *os.File, at string, tell func(Change) error) error {
	was, err := os.Open(filepath.Join(fmt.Sprintf("/proc/self/fd/%d", disk.Fd()), at))
	if err != nil {
		return err
	}
	defer was.Close()
	is, err := os.Open(r.Folder)
	if err != nil {
		return err
	}
	defer is.Close()
	then, now := readTree(ctx, was), readTree(ctx, is)
	defer then.Close()
	defer now.Close()
	r.Then, r.Now = then, now
	return manifest.Compare(ctx, []manifest.Root{r}, tell)
}

// lookAt opens the root of a snapshot's disk.
func (m *Manager) lookAt(ctx context.Context, rec record, s Snapshot) (*os.File, error) {
	done, err := m.book(rec.Spec.Owner, rec.ID, s.Size)
	if err != nil {
		return nil, err
	}
	defer done()
	dir, err := os.MkdirTemp(m.dir(rec.Name), lookMark)
	if err != nil {
		return nil, err
	}
	if err := m.unpackTo(ctx, dir, s); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return m.opt.Disks.Look(dir)
}

// lookMark is what the folders begin with that disks are looked at in. One that is
// there when the manager opens is what a crash has left.
const lookMark = "look-"

func (m *Manager) unlook(rec record) error {
	left, _ := filepath.Glob(filepath.Join(m.dir(rec.Name), lookMark+"*"))
	var errs []error
	for _, dir := range left {
		errs = append(errs, m.opt.Disks.Detach(dir), os.RemoveAll(dir))
	}
	return errors.Join(errs...)
}

// since is a snapshot of a sandbox, or the one that it was made of.
func (m *Manager) since(e *entry, snapshot string) (Snapshot, error) {
	s, err := m.snapshot(e, snapshot)
	l := e.rec.Lineage
	if l == nil || l.Snapshot != snapshot || !errors.Is(err, ErrNoSnapshot) {
		return s, err
	}
	parent := &entry{rec: record{Name: l.Name, ID: l.Parent}}
	if of, oerr := m.snapshot(parent, snapshot); oerr == nil {
		return of, nil
	}
	return s, err
}

// placed runs a sandbox, if it does not run, so that its disk is in place, and
// keeps it from being put to sleep until done. One that cannot start stays locked
// until then. Without the snapshot it does neither.
func (m *Manager) placed(ctx context.Context, name, snapshot string) (rec record, s Snapshot, done func(), err error) {
	e, err := m.spacious(ctx, name, "starting", m.toWake)
	if err != nil {
		return rec, s, nil, err
	}
	if snapshot != "" {
		if s, err = m.since(e, snapshot); err != nil {
			m.release(e)
			return rec, s, nil, err
		}
	}
	used := e.use()
	cause := m.start(ctx, e)
	if cause == nil {
		m.release(e)
		return e.rec, s, used, nil
	}
	used()
	cause = fmt.Errorf("starting sandbox %s: %w", name, cause)
	if e.state.live() {
		m.release(e)
		return rec, s, nil, cause
	}
	done = func() {
		m.letGo(ctx, e)
		m.release(e)
	}
	if err := m.attachDisk(e.rec); err != nil {
		done()
		return rec, s, nil, errors.Join(cause, err)
	}
	return e.rec, s, done, nil
}
