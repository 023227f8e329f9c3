package manager

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"sallyport/internal/terminal"
	"sallyport/sandbox"
	"sallyport/sandbox/checkpoint"
	"sallyport/sandbox/state"
)

// makeDisk makes and attaches the sandbox's disk, if its spec has one, and returns the
// folder of its layer.
func (m *Manager) makeDisk(rec state.Record) (layer string, err error) {
	if rec.Spec.Disk == 0 {
		return "", nil
	}
	if m.opt.Disks == nil {
		return "", fmt.Errorf("%w: this engine gives sandboxes no disk of their own: leave disk out, or use engine.kind: private", sandbox.ErrBadSpec)
	}
	return m.opt.Disks.Make(m.dir(rec.Name), rec.Spec.Disk)
}

func (m *Manager) attachDisk(rec state.Record) error {
	if m.opt.Disks == nil {
		return nil
	}
	return m.opt.Disks.Attach(m.dir(rec.Name))
}

// settleDisk takes back the room that attachDisk made, which keeps the next start
// possible. On a full disk it takes what there is.
func (m *Manager) settleDisk(rec state.Record) {
	if m.opt.Disks == nil {
		return
	}
	if err := m.opt.Disks.Settle(m.dir(rec.Name)); err != nil {
		m.opt.Logger.Warn("a sandbox's disk is full", "sandbox", rec.Name, "error", err)
	}
}

// detachDisk unmounts the disk of a sandbox that does not run: hundreds of sleeping
// sandboxes have no mounts.
func (m *Manager) detachDisk(rec state.Record) error {
	if m.opt.Disks == nil {
		return nil
	}
	return m.opt.Disks.Detach(m.dir(rec.Name))
}

// ownDisk returns why the sandbox has no disk of its own to snapshot, fork or restore, or
// nil.
func (m *Manager) ownDisk(rec state.Record) error {
	if m.opt.Disks == nil || rec.Spec.Disk == 0 {
		return fmt.Errorf("%w: sandbox %s has no disk of its own, which is what snapshots and forks are of: use engine.kind: private", sandbox.ErrBadSpec, rec.Name)
	}
	return nil
}

// stopAndDetach stops a container without a session, if it runs, and detaches its disk.
func (m *Manager) stopAndDetach(ctx context.Context, rec state.Record) error {
	if err := m.opt.Runtime.Stop(ctx, rec.ID, 0); err != nil && !errors.Is(err, sandbox.ErrNotFound) {
		return err
	}
	return m.detachDisk(rec)
}

// releaseDisk is stopAndDetach after a sandbox was made or looked at. If it fails, the
// next reconcile tries again.
func (m *Manager) releaseDisk(ctx context.Context, e *entry) {
	if err := m.stopAndDetach(context.WithoutCancel(ctx), e.Rec); err != nil {
		e.fresh = true
		m.opt.Logger.Warn("the disk of a sandbox that does not run stays attached for now", "sandbox", e.Rec.Name, "error", err)
	}
}

// releaseFreshDisk detaches the disk of a sandbox that was made and not started. Most are
// started at once.
func (m *Manager) releaseFreshDisk(ctx context.Context, e *entry) error {
	if !e.exists || !e.fresh || e.state != sandbox.Stopped {
		return nil
	}
	if err := m.stopAndDetach(ctx, e.Rec); err != nil {
		return err
	}
	e.fresh = false
	return nil
}

// emptyTree removes the contents of a folder. os.RemoveAll would open a file for each
// level, and a sandbox can nest more levels than this process may open files.
func emptyTree(ctx context.Context, dir string) error {
	return run(ctx, nil, "find", dir, "-mindepth", "1", "-delete")
}

// removeTree removes a folder with its contents, if it exists.
func removeTree(ctx context.Context, dir string) error {
	if _, err := os.Lstat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return errors.Join(emptyTree(ctx, dir), os.RemoveAll(dir))
}

// most is the address space of a program that reads a sandbox's files, in KiB as for
// ulimit. Such programs hold the names of a whole folder, and a sandbox can make tens of
// millions. A million long names take half of it.
const most = 1 << 20

// run runs a program of the host's on a sandbox's files. Its error ends with the last line
// of the program's standard error.
func run(ctx context.Context, out io.Writer, name string, args ...string) error {
	var said tail
	words := append([]string{"-c", `ulimit -v "$1" && shift && exec "$@"`, "sh", strconv.Itoa(most), name}, args...)
	cmd := exec.CommandContext(ctx, "/bin/sh", words...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}
	cmd.Stdout, cmd.Stderr = out, &said
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("%s: %w", name, context.Cause(ctx))
		}
		return fmt.Errorf("%s: %w: %s", name, err, said.line())
	}
	return nil
}

// tail keeps the end of what is written to it: a program may print a line for each of a
// sandbox's files.
type tail struct{ text []byte }

const tailSize = 4 << 10 // bytes

func (t *tail) Write(p []byte) (int, error) {
	t.text = append(t.text, p[max(0, len(p)-tailSize):]...)
	t.text = t.text[max(0, len(t.text)-tailSize):]
	return len(p), nil
}

// line is the end of the last line, escaped for a terminal. The line can hold the long
// path of a nested file.
func (t *tail) line() string {
	const most = 300 // bytes
	text := strings.TrimSpace(string(t.text))
	text = text[strings.LastIndexByte(text, '\n')+1:]
	if over := len(text) - most; over > 0 {
		text = "…" + text[over:]
	}
	return terminal.Escape(text)
}

// withFrozen pauses a running sandbox and freezes its disk while f reads the disk. If dir
// is not "", the processes are first written into that folder in RAM, for which memory is
// reserved, so that files and processes agree. It returns how long the sandbox was paused.
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
