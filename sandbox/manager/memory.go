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

	"sallyport/internal/tmpfs"
	"sallyport/sandbox"
)

// Code that puts a sandbox's memory in the clear into RAM reserves the space for it before
// it begins (tmpfs.Budget), and before the sandbox is paused. It waits for space without the
// sandbox's lock: meanwhile the sandbox can be used, and a call that stops or removes it
// ends the wait. With a lock held nothing waits for space, so that the holder of space can
// wait for a lock.

// memoryWait is the longest wait for RAM.
const memoryWait = time.Minute

// memorySize is the most that a checkpoint of a sandbox's memory takes now, in bytes; 0 if
// there is no memory.
func (m *Manager) memorySize(ctx context.Context, e *entry) int64 {
	switch {
	case m.canCheckpoint(e) != nil || !e.state.Live():
		return 0
	case e.state == sandbox.Hibernated:
		return fileSize(m.checkpointPath(e))
	}
	limit := e.Rec.Spec.Memory
	n, known := m.resident(ctx, e)
	switch {
	case known && limit > 0:
		return min(sandbox.CheckpointSize(n), max(limit, n))
	case known:
		return sandbox.CheckpointSize(n)
	case limit > 0:
		return limit
	}
	return max(m.memory.Share(), sandbox.CheckpointSize(0))
}

// resident is the RAM that a sandbox takes, in bytes, if the runtime can tell.
func (m *Manager) resident(ctx context.Context, e *entry) (n int64, known bool) {
	if m.opt.Meter == nil {
		return 0, false
	}
	n, err := m.opt.Meter.Resident(ctx, e.Rec.ID)
	if err != nil {
		m.opt.Logger.Warn("how much memory a sandbox takes cannot be told; it may be as much as it may have", "sandbox", e.Rec.Name, "error", err)
	}
	return n, err == nil
}

// fileSize is the size of a sealed file, which is larger than its contents. It is 0 for a
// file that cannot be read: the code that reads it reports why.
func fileSize(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// snapshotSize is the most that the processes of a snapshot take, in bytes.
func (m *Manager) snapshotSize(e *entry, snapshot string) int64 {
	if sandbox.CheckName(snapshot) != nil {
		return 0
	}
	return fileSize(filepath.Join(m.snapshotsDir(e.Rec.Name), snapshot, snapshotMemory))
}

// wayOut is what to do if the memory will never fit, by verb.
var wayOut = map[string]string{
	"starting":             "it is hibernated as before; stop it to give its memory up",
	"waking":               "it is hibernated as before; stop it to give its memory up",
	"hibernating":          "pause or stop it instead",
	"putting to sleep":     "have it paused or stopped when it is idle",
	"making a snapshot of": "leave its memory out",
	"forking":              "stop it first, or fork a snapshot without processes",
	"restoring":            "stop it first; a snapshot whose processes are too large needs a host with more RAM",
}

// memoryNeed is the most RAM that an action on a sandbox takes, in bytes. It is called
// with the lock held.
type memoryNeed func(*entry) int64

func noMemory(*entry) int64 { return 0 }

// memoryToWake is the memoryNeed of an action that wakes the sandbox.
func (m *Manager) memoryToWake(e *entry) int64 {
	if e.state != sandbox.Hibernated || e.Rec.CheckLifetime() != nil {
		return 0
	}
	return fileSize(m.checkpointPath(e))
}

// errEnded ends a wait for RAM for a session that is over.
var errEnded = fmt.Errorf("%w: it was stopped while this waited for room in memory", sandbox.ErrState)

// lockWithMemory is existing with the RAM reserved that need asks for. It waits up to
// memoryWait for RAM, without the lock. verb is for errors.
func (m *Manager) lockWithMemory(ctx context.Context, name, verb string, need memoryNeed) (*entry, error) {
	var (
		until  = time.Now().Add(memoryWait)
		room   *tmpfs.Reservation // that was waited for
		of     string             // ID that it is for
		waited = false
		over   = func() {}
	)
	for {
		e, err := m.existing(ctx, name)
		over()
		if err != nil {
			room.Release()
			return nil, err
		}
		n := need(e)
		if n > room.Bytes() || e.Rec.ID != of {
			room.Release()
			room = nil
		}
		switch {
		case waited && e.Rec.ID != of:
			err = notFound(name) // what this waited for was removed, and this is another
		case n == 0 && waited && !e.state.Live():
			err = errEnded
		case n > 0 && room == nil:
			room, err = m.memory.Reserve(ctx, e.Rec.Spec.Owner, n, 0)
		}
		e.lease = room
		if err == nil {
			return e, nil
		}
		if errors.Is(err, sandbox.ErrMemoryBusy) && time.Now().Before(until) {
			of, waited = e.Rec.ID, true
			room, over, err = m.awaitMemory(ctx, e, n, until)
		} else {
			m.release(e)
		}
		switch {
		case errors.Is(err, sandbox.ErrTooLarge):
			return nil, fmt.Errorf("%s sandbox %s: %w: %s", verb, name, err, wayOut[verb])
		case err != nil:
			return nil, fmt.Errorf("%s sandbox %s: %w", verb, name, err)
		}
	}
}

// awaitMemory gives up a sandbox's lock and waits for RAM. If it returns no error, the
// caller has the RAM, if there was any, locks the sandbox again, calls over and looks what
// the sandbox has become. Of several calls that wait for one sandbox one stands in line for
// RAM, and the others wait for that one, since most want the same: that the sandbox wakes.
func (m *Manager) awaitMemory(ctx context.Context, e *entry, n int64, until time.Time) (room *tmpfs.Reservation, over func(), err error) {
	line, over, owner := e.waitLine, func() {}, e.Rec.Spec.Owner
	first := line == nil || line.Err() != nil
	if first {
		line, over = context.WithCancel(context.Background())
		e.waitLine, e.endWait = line, over
	}
	m.release(e)
	if first {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		defer context.AfterFunc(line, func() { cancel(errMoved) })()
		room, err = m.memory.Reserve(ctx, owner, n, time.Until(until))
	} else {
		select {
		case <-line.Done():
		case <-time.After(time.Until(until)): // the next look says how much there is
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	if err == nil {
		return room, over, nil
	}
	over()
	switch {
	case errors.Is(err, errMoved):
		err = nil
	case !errors.Is(err, sandbox.ErrMemoryBusy):
		err = fmt.Errorf("waiting for room in memory: %w", err)
	}
	return nil, over, err
}

var errMoved = errors.New("it has become another")

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
