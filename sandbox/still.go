package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// scratchMark is in the names of folders in RAM that last no longer than a call.
const scratchMark = ".call-"

// scratch names a folder in RAM that is not there yet, for which there is room. done
// removes it.
func (m *Manager) scratch(e *entry) (dir string, done func() error) {
	name := e.rec.ID + scratchMark + newID()
	e.room.Use(name)
	m.mu.Lock()
	m.scratches[name] = true
	m.mu.Unlock()
	dir = filepath.Join(m.opt.RAM, name)
	return dir, func() error {
		err := errors.Join(e.drop(dir), e.drop(dir+".part"))
		m.confine(e)
		m.mu.Lock()
		delete(m.scratches, name)
		m.mu.Unlock()
		return err
	}
}

// confine undoes what a checkpoint has done to the limit of a sandbox that runs on.
// Where it fails, whoever looks after the sandbox next tries again. What lies in RAM
// of it still counts as its own: it would be ended for that, and keeps what was added
// for it.
func (m *Manager) confine(e *entry) {
	if !e.loose || e.state != Running && e.state != Paused {
		return
	}
	left, _ := os.ReadDir(m.opt.RAM) // where there is none, nothing is written down
	if slices.ContainsFunc(left, func(f os.DirEntry) bool { return strings.HasPrefix(f.Name(), e.rec.ID) }) {
		m.opt.Logger.Warn("a sandbox may have more memory than it should, until what was written of it is removed", "sandbox", e.rec.Name)
		return
	}
	e.freeing.Wait() // likewise what has been removed: a second for a few gigabytes
	ctx, cancel := context.WithTimeout(context.Background(), confineTimeout)
	defer cancel()
	if err := m.opt.Runtime.Confine(ctx, e.rec.ID); err != nil {
		m.opt.Logger.Error("a sandbox may have more memory than it should", "sandbox", e.rec.Name, "error", err)
		return
	}
	e.loose = false
}

const confineTimeout = 10 * time.Second

// sweep removes the memory that an earlier process of ours has left in RAM. What
// wrote it may have lived on, so that it is looked for again and again.
func (m *Manager) sweep() error {
	if m.opt.RAM == "" {
		return nil
	}
	entries, err := os.ReadDir(m.opt.RAM)
	if err != nil {
		return err
	}
	var errs []error
	for _, f := range entries {
		if !strings.Contains(f.Name(), scratchMark) {
			continue
		}
		m.mu.Lock()
		used := m.scratches[strings.TrimSuffix(f.Name(), ".part")]
		m.mu.Unlock()
		if !used {
			errs = append(errs, os.RemoveAll(filepath.Join(m.opt.RAM, f.Name())))
		}
	}
	return errors.Join(errs...)
}

// canRemember says why a sandbox's processes cannot be written down, or nil.
func (m *Manager) canRemember(e *entry) error {
	switch {
	case e.rec.Spec.Runtime != GVisor:
		return fmt.Errorf("%w: it runs with %s, and only gVisor (%s) writes memory down", ErrNoCheckpoint, e.rec.Spec.Runtime, GVisor)
	case m.opt.RAM == "" || m.opt.Key == nil:
		return fmt.Errorf("%w: this manager has no folder in memory", ErrNoCheckpoint)
	}
	return nil
}

// still has a sandbox stand still, with its disk frozen, while f reads that. Where dir
// is not "", its processes are written there as they are at that moment, so that both
// agree, for which there is room. It returns for how long the sandbox stood.
func (m *Manager) still(ctx context.Context, e *entry, dir string, f func() error) (stood time.Duration, err error) {
	patient := context.WithoutCancel(ctx)
	id := e.rec.ID
	if e.state == Running {
		began := time.Now()
		// If we end here, the next process finds it paused and lets it go on.
		defer func() {
			err = errors.Join(err, m.opt.Runtime.Resume(patient, id))
			stood = time.Since(began)
		}()
		if err := m.opt.Runtime.Pause(ctx, id); err != nil {
			return 0, err
		}
	}
	switch {
	case dir == "":
	case e.state == Hibernated:
		build, err := m.opt.Runtime.Build(ctx)
		if err != nil {
			return 0, err
		}
		if err := unsealCheckpoint(m.opt.Key, m.checkpointPath(e), dir, checkHeader(e.rec, build)); err != nil {
			return 0, fmt.Errorf("reading its memory: %w", err)
		}
	default:
		e.loose = true
		if err := m.opt.Runtime.Checkpoint(ctx, id, dir, e.room.Left(), true, nil); err != nil {
			return 0, err
		}
	}
	if err := e.room.Correct(); err != nil {
		return 0, err
	}
	thaw, err := m.opt.Disks.Freeze(m.dir(e.rec.Name))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, thaw()) }()
	return 0, f()
}
