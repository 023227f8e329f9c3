package docker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/moby/api/types/container"
	"golang.org/x/sys/unix"

	"sallyport/sandbox/docker/process"
)

// A page of a tmpfs is charged to the process that writes it first
// (cgroup-v1/memory.rst, 2.3; admin-guide/cgroup-v2.rst, "Memory Ownership"), and
// gVisor writes its memory itself, in the container's cgroup: one with more than half
// of what it may have would be killed for its own checkpoint. So the cgroup's limit is
// raised by as much as is about to be written, until that is removed.

// reclaimTimeout is for how long the kernel may take to give back what was removed.
const reclaimTimeout = 2 * time.Second

// memoryCgroup is the memory controller's folder of a container's cgroup.
type memoryCgroup struct {
	dir    string
	second bool // of the second version of cgroups
}

// findMemoryCgroup is that of a container whose first process is pid. It has the
// container's identifier in its path with either of the engine's drivers: that of
// another process, which has got the number since the engine said it, is not touched.
func findMemoryCgroup(pid int, container string) (memoryCgroup, error) {
	path, second, err := cgroupFile(pid, "memory", "memory.limit_in_bytes", "memory.max")
	if err == nil && !strings.Contains(path, container) {
		err = fmt.Errorf("process %d is in %s, and not the container's", pid, filepath.Dir(path))
	}
	return memoryCgroup{filepath.Dir(path), second}, err
}

// limit has the container have at most so many bytes.
func (g memoryCgroup) limit(bytes int64) error {
	text := []byte(strconv.FormatInt(bytes, 10))
	if g.second {
		return os.WriteFile(filepath.Join(g.dir, "memory.max"), text, 0)
	}
	// That of memory and swap is never below that of memory (cgroup-v1/memory.rst,
	// 2.4), and where the kernel counts no swap there is none.
	files := []string{"memory.memsw.limit_in_bytes", "memory.limit_in_bytes"}
	if have, err := g.read("memory.limit_in_bytes"); err != nil {
		return err
	} else if bytes < have {
		files[0], files[1] = files[1], files[0]
	}
	for _, f := range files {
		err := os.WriteFile(filepath.Join(g.dir, f), text, 0)
		if errors.Is(err, os.ErrNotExist) && strings.Contains(f, "memsw") {
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// limited is what limit has set.
func (g memoryCgroup) limited() (int64, error) {
	if g.second {
		return g.read("memory.max")
	}
	return g.read("memory.limit_in_bytes")
}

func (g memoryCgroup) read(file string) (int64, error) {
	text, err := os.ReadFile(filepath.Join(g.dir, file))
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
}

// raiseMemoryLimit has a container have at most so many bytes, until Confine.
func raiseMemoryLimit(info container.InspectResponse, bytes int64) error {
	g, err := findMemoryCgroup(info.State.Pid, info.ID)
	if err != nil {
		return err
	}
	return g.limit(bytes)
}

// RestoreMemoryLimit gives a container back the limit of memory that Checkpoint has raised. One
// that has taken more meanwhile than it may have ends, as it would have then. While
// its memory is being written down it keeps the higher one, and that is an error.
func (r *Runtime) RestoreMemoryLimit(ctx context.Context, id string) error {
	info, err := r.inspect(ctx, id)
	if err != nil || !info.State.Running || info.HostConfig == nil || info.HostConfig.Memory == 0 {
		return err
	}
	if err := r.lowerMemoryLimit(id, info); err != nil {
		return fmt.Errorf("limiting the memory of sandbox %s: %w", id, err)
	}
	return nil
}

func (r *Runtime) lowerMemoryLimit(id string, info container.InspectResponse) error {
	limit := info.HostConfig.Memory
	process, err := unix.PidfdOpen(info.State.Pid, 0) // before its group is looked for: it is who is in that, or has ended
	if err != nil {
		return os.NewSyscallError("pidfd_open", err)
	}
	defer unix.Close(process)
	g, err := findMemoryCgroup(info.State.Pid, info.ID)
	if err != nil {
		return err
	}
	have, err := g.limited()
	if err != nil {
		return err
	}
	if have <= limit {
		return nil
	}
	// A copy that an earlier process of ours has begun goes on, also into files that have
	// been removed since.
	if writer := checkpointWriter(info.ID); writer != 0 {
		return fmt.Errorf("process %d writes it down", writer)
	}
	for deadline := time.Now().Add(reclaimTimeout); ; time.Sleep(10 * time.Millisecond) {
		late := time.Now().After(deadline)
		if g.second && !late {
			// This version kills at once whoever has more.
			if n, err := g.read("memory.current"); err == nil && n > limit {
				continue
			}
		}
		if err := g.limit(limit); !errors.Is(err, unix.EBUSY) {
			return err
		}
		if late {
			r.cfg.Log.Warn("a sandbox has taken more memory than it may have, and is ended", "sandbox", id)
			return os.NewSyscallError("pidfd_send_signal", unix.PidfdSendSignal(process, unix.SIGKILL, nil, 0))
		}
	}
}

// checkpointWriter is a process that has the runtime write a container's memory down, or 0.
func checkpointWriter(container string) int {
	for pid, words := range process.Commands() {
		if slices.Contains(words, "checkpoint") && slices.Contains(words, container) {
			return pid
		}
	}
	return 0
}
