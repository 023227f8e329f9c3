package manager

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sallyport/sandbox"
	"sallyport/sandbox/checkpoint"
)

// scratchMark is in the names of folders in RAM that last no longer than a call.
const scratchMark = ".call-"

// scratchFolder names a folder in RAM that does not exist yet, for which memory is
// reserved. done removes it.
func (m *Manager) scratchFolder(e *entry) (dir string, done func() error) {
	name := e.Rec.ID + scratchMark + newID()
	e.lease.AddFolder(name)
	m.mu.Lock()
	m.scratches[name] = true
	m.mu.Unlock()
	dir = filepath.Join(m.opt.RAM, name)
	return dir, func() error {
		err := errors.Join(e.removeLater(dir), e.removeLater(dir+".part"))
		m.restoreMemoryLimit(e)
		m.mu.Lock()
		delete(m.scratches, name)
		m.mu.Unlock()
		return err
	}
}

// restoreMemoryLimit undoes what a checkpoint did to the memory limit of a sandbox that
// runs on. Where it fails, the next reconcile tries again. Files in RAM still count as the
// sandbox's own memory: with the limit back, the kernel would kill it for them. So the
// limit stays raised until they are gone.
func (m *Manager) restoreMemoryLimit(e *entry) {
	if !e.loose || e.state != sandbox.Running && e.state != sandbox.Paused {
		return
	}
	left, _ := os.ReadDir(m.opt.RAM) // where there is none, nothing is written down
	if slices.ContainsFunc(left, func(f os.DirEntry) bool { return strings.HasPrefix(f.Name(), e.Rec.ID) }) {
		m.opt.Logger.Warn("a sandbox may have more memory than it should, until what was written of it is removed", "sandbox", e.Rec.Name)
		return
	}
	e.freeing.Wait() // likewise what has been removed: a second for a few gigabytes
	ctx, cancel := context.WithTimeout(context.Background(), confineTimeout)
	defer cancel()
	if err := m.opt.Runtime.RestoreMemoryLimit(ctx, e.Rec.ID); err != nil {
		m.opt.Logger.Error("a sandbox may have more memory than it should", "sandbox", e.Rec.Name, "error", err)
		return
	}
	e.loose = false
}

const confineTimeout = 10 * time.Second

// sweep removes memory that an earlier process left in RAM. The program that writes it may
// have lived on, so each reconcile looks again.
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

// canCheckpoint says why the memory of a sandbox's processes cannot be written, or nil.
func (m *Manager) canCheckpoint(e *entry) error {
	switch {
	case e.Rec.Spec.Runtime != sandbox.GVisor:
		return fmt.Errorf("%w: it runs with %s, and only gVisor (%s) writes memory down", sandbox.ErrNoCheckpoint, e.Rec.Spec.Runtime, sandbox.GVisor)
	case m.opt.RAM == "" || m.opt.Key == nil:
		return fmt.Errorf("%w: this manager has no folder in memory", sandbox.ErrNoCheckpoint)
	}
	return nil
}

// withFrozen pauses a running sandbox and freezes its disk while f reads the disk. If dir
// is not "", the processes are first written into that folder in RAM, for which memory is
// reserved, as they are at that moment, so that both agree. It returns how long the
// sandbox was paused.
func (m *Manager) withFrozen(ctx context.Context, e *entry, dir string, f func() error) (pausedFor time.Duration, err error) {
	patient := context.WithoutCancel(ctx)
	id := e.Rec.ID
	if e.state == sandbox.Running {
		began := time.Now()
		// If the daemon ends here, the next one finds the sandbox paused and resumes it.
		defer func() {
			err = errors.Join(err, m.opt.Runtime.Resume(patient, id))
			pausedFor = time.Since(began)
		}()
		if err := m.opt.Runtime.Pause(ctx, id); err != nil {
			return 0, err
		}
	}
	switch {
	case dir == "":
	case e.state == sandbox.Hibernated:
		build, err := m.opt.Runtime.Build(ctx)
		if err != nil {
			return 0, err
		}
		if err := checkpoint.Unseal(m.opt.Key, m.checkpointPath(e), dir, checkpoint.Match(e.Rec.ID, e.Rec.Session, build)); err != nil {
			return 0, fmt.Errorf("reading its memory: %w", err)
		}
	default:
		e.loose = true
		if err := m.opt.Runtime.Checkpoint(ctx, id, dir, e.lease.Left(), true, nil); err != nil {
			return 0, err
		}
	}
	if err := e.lease.Settle(); err != nil {
		return 0, err
	}
	thaw, err := m.opt.Disks.Freeze(m.dir(e.Rec.Name))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, thaw()) }()
	return 0, f()
}
