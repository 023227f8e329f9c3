package docker

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"sallyport/sandbox"
	"sallyport/sandbox/docker/apierror"
)

// checkpointTimeout is for how long memory may be written: it is the disk's or
// the RAM's speed that bounds it, so this is for what hangs.
const checkpointTimeout = 5 * time.Minute

// Pause stops the container's processes where they are. One that is paused
// already is left as it is.
func (r *Runtime) Pause(ctx context.Context, id string) error {
	info, err := r.inspect(ctx, id)
	if err != nil || info.State.Paused {
		return err
	}
	if _, err := r.client.ContainerPause(ctx, info.ID, client.ContainerPauseOptions{}); err != nil {
		return apierror.Map(fmt.Errorf("pausing sandbox %s: %w", id, err))
	}
	return nil
}

// Resume lets them go on.
func (r *Runtime) Resume(ctx context.Context, id string) error {
	info, err := r.inspect(ctx, id)
	if err != nil || !info.State.Paused {
		return err
	}
	if _, err := r.client.ContainerUnpause(ctx, info.ID, client.ContainerUnpauseOptions{}); err != nil {
		return apierror.Map(fmt.Errorf("resuming sandbox %s: %w", id, err))
	}
	return nil
}

// Checkpoint has gVisor itself write into dir, which must be in RAM: what it
// writes is in the clear. The engine's own checkpoints go through containerd's
// store, which is on a disk, and cannot be had of a container that was started
// before the engine was ("invalid task checkpoint option" of Engine 20.10). The
// engine sees a container that has ended.
func (r *Runtime) Checkpoint(ctx context.Context, id, dir string, room int64, leaveRunning bool, whole func()) (err error) {
	info, err := r.inspect(ctx, id)
	if err != nil {
		return err
	}
	if info.HostConfig == nil || info.HostConfig.Runtime != sandbox.GVisor {
		return fmt.Errorf("%w: it runs with %s, and only gVisor (%s) writes memory down: pause or stop it", sandbox.ErrNoCheckpoint, runtimeOf(info), sandbox.GVisor)
	}
	if !info.State.Running {
		return fmt.Errorf("writing the memory of sandbox %s: it is not running", id)
	}
	root, err := stateDir(info.State.Pid)
	if err != nil {
		return fmt.Errorf("writing the memory of sandbox %s: %w", id, err)
	}
	// The caller may go away: half a checkpoint would be of use to nobody.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), checkpointTimeout)
	defer cancel()
	n, err := resident(info.State.Pid)
	if err == nil && n > room {
		return fmt.Errorf("%w: it takes %d bytes, and room was made for %d: it has grown meanwhile: try again", sandbox.ErrMemoryBusy, n, room)
	}
	if limit := info.HostConfig.Memory; limit > 0 {
		if err == nil {
			err = raiseMemoryLimit(info, limit+sandbox.CheckpointSize(n))
		}
		if err != nil {
			return fmt.Errorf("making room for the memory of sandbox %s: %w", id, err)
		}
	}
	part := dir + ".part"
	args := []string{"--root", root, "checkpoint", "--image-path", part, "--compression=none"}
	if leaveRunning {
		args = append(args, "--leave-running")
	} else {
		// Of what began before nothing is to be heard any more: it has ended, or goes on
		// in what is written.
		n, err := newHandshake(filepath.Join(r.layout.handshakes(), info.ID))
		if err != nil {
			return fmt.Errorf("writing the memory of sandbox %s: %w", id, err)
		}
		n.close()
		end := r.ending(id)
		defer func() { end(err) }()
	}
	if err := r.runCheckpoint(ctx, part, dir, append(args, info.ID)...); err != nil {
		return fmt.Errorf("writing the memory of sandbox %s: %w", id, err)
	}
	if whole != nil {
		whole()
	}
	if leaveRunning {
		return nil
	}
	wait := r.client.ContainerWait(ctx, info.ID, client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
	select {
	case <-wait.Result:
		return nil
	case err := <-wait.Error:
		return apierror.Map(fmt.Errorf("waiting for the end of sandbox %s: %w", id, err))
	}
}

// Restore starts the container with the memory in dir. The start shim does it, as the
// runtime that the engine calls: so a restore needs the same pin as a
// start, and the memory goes by no other folder. The engine's work before it asks for the
// start takes longer than most memory does to be filled in.
func (r *Runtime) Restore(ctx context.Context, id, dir string, fill func() error) (sandbox.Status, error) {
	if strings.ContainsAny(dir, "\n\\") || !filepath.IsAbs(dir) {
		return sandbox.Status{}, fmt.Errorf("restoring sandbox %s: %q is no folder for its memory", id, dir)
	}
	if fill == nil {
		fill = func() error { return nil }
	}
	var n *restoreHandshake
	filled := make(chan error, 1)
	st, err := r.startAs(ctx, id, func(at string) (err error) {
		if n, err = newHandshake(at); err != nil {
			return err
		}
		go func() {
			err, at := fill(), dir
			if err != nil {
				at = ""
			}
			if serr := n.publish(at); err == nil {
				err = serr
			}
			filled <- err
		}()
		return nil
	})
	if n == nil {
		return st, err
	}
	defer n.close()
	if err != nil {
		err = errors.Join(err, n.revoke())
	}
	if ferr := <-filled; ferr != nil {
		err = ferr // the start has failed for that, if it came so far
	}
	if err == nil {
		n.remove()
	}
	return st, err
}

// CancelRestore has a Restore not begin any more of which nobody hears, as the engine has
// died, or the process that asked for it.
func (r *Runtime) CancelRestore(ctx context.Context, id string) (known bool, err error) {
	info, err := r.inspect(ctx, id)
	if err != nil {
		return false, err
	}
	n, err := openHandshake(filepath.Join(r.layout.handshakes(), info.ID))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer n.close()
	return true, n.revoke()
}

// runCheckpoint runs the engine's runtime, which is the start shim, and renames what it has
// written when that is whole. Both go on where this process ends: the runtime has
// told the sandbox to write, which ends for it, and half a checkpoint must be told
// from a whole one by the next process of ours.
func (r *Runtime) runCheckpoint(ctx context.Context, part, dir string, args ...string) error {
	const script = `part=$1 dir=$2; shift 2; "$@" && mv -T -- "$part" "$dir"`
	words := append([]string{"-c", script, "sh", part, dir, filepath.Join(r.layout.bin(), "runsc")}, args...)
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, "/bin/sh", words...)
	cmd.Env = r.layout.environment()
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	if err != nil {
		lines := bytes.Split(bytes.TrimSpace(said.Bytes()), []byte{'\n'})
		err = fmt.Errorf("runsc: %w: %s", err, lines[len(lines)-1])
	}
	return err
}

// stateDir is where the runtime keeps what it knows of the container whose first
// process is pid. It is the engine's to say (EXEC-ROOT/runtime-runc/moby in
// Engine 20.10), and it says so to gVisor's sandbox on its command line.
func stateDir(pid int) (string, error) {
	line, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if err != nil {
		return "", err
	}
	for word := range bytes.SplitSeq(line, []byte{0}) {
		if root, ok := strings.CutPrefix(string(word), "--root="); ok && filepath.IsAbs(root) {
			return root, nil
		}
	}
	return "", errors.New("its process is not gVisor's")
}

func runtimeOf(info container.InspectResponse) string {
	if info.HostConfig == nil {
		return "an unknown runtime"
	}
	return info.HostConfig.Runtime
}

// build remembers what a file's build is until the file is another.
type build struct {
	mu   sync.Mutex
	seen os.FileInfo
	name string
}

// Build names the build of gVisor: what it calls its version, and the digest of
// the program, since two builds of one version need not read each other's
// checkpoints.
func (r *Runtime) Build(ctx context.Context) (string, error) {
	b := &r.build
	b.mu.Lock()
	defer b.mu.Unlock()
	info, err := os.Stat(r.layout.Runsc)
	if err != nil {
		return "", fmt.Errorf("finding gVisor's build: %w", err)
	}
	if b.seen != nil && os.SameFile(b.seen, info) && b.seen.Size() == info.Size() && b.seen.ModTime().Equal(info.ModTime()) {
		return b.name, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, r.layout.Runsc, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("finding gVisor's build: %w", err)
	}
	line, _, _ := strings.Cut(string(out), "\n")
	version := strings.TrimSpace(strings.TrimPrefix(line, "runsc version"))
	if version == "" {
		return "", errors.New("finding gVisor's build: runsc has no version")
	}
	f, err := os.Open(r.layout.Runsc)
	if err != nil {
		return "", fmt.Errorf("finding gVisor's build: %w", err)
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", fmt.Errorf("finding gVisor's build: %w", err)
	}
	b.seen, b.name = info, version+" "+hex.EncodeToString(sum.Sum(nil)[:8])
	return b.name, nil
}
