package docker

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"sallyport/internal/periodic"
	"sallyport/sandbox/docker/process"
)

// staleShimTimeout is for how long containerd may take to see that a shim has ended.
const staleShimTimeout = 10 * time.Second

// startContainer starts a container. Where gVisor's process was killed while it was paused,
// or containerd while it ended, containerd's shim or its note of the task stays, and
// no start is let past it ("id already in use", "already exists" of Engine 20.10): the
// shim is ended, since the engine says that the container has, and the rest waited for.
func (r *Runtime) startContainer(ctx context.Context, id string) error {
	start := func() error {
		_, err := r.client.ContainerStart(ctx, containerName(id), client.ContainerStartOptions{})
		return err
	}
	err := start()
	if !inUse(err) || r.layout.RunDir == "" {
		return err
	}
	info, ierr := r.inspect(ctx, id)
	if ierr != nil || info.State.Running {
		return err
	}
	if killStaleShim(info.ID, r.layout.containerdSocket()) {
		r.cfg.Log.Warn("ended what was left of a sandbox's last run", "sandbox", id)
	}
	for deadline := time.Now().Add(staleShimTimeout); inUse(err) && time.Now().Before(deadline); {
		if !periodic.Sleep(ctx, 100*time.Millisecond) {
			return err
		}
		err = start()
	}
	return err
}

// inUse knows errors that the engine gives no type: the second is of a containerd
// that was killed and has not yet seen that the task has ended.
func inUse(err error) bool {
	if err == nil {
		return false
	}
	s := err.Error()
	return strings.Contains(s, "id already in use") || strings.Contains(s, "task ") && strings.Contains(s, ": already exists")
}

// killStaleShim kills the shim of a container of the containerd at a socket, if there is
// one.
func killStaleShim(container, socket string) (found bool) {
	for pid, words := range process.Commands() {
		has := func(option, value string) bool {
			i := slices.Index(words, option)
			return i >= 0 && i+1 < len(words) && words[i+1] == value
		}
		if !strings.HasPrefix(filepath.Base(words[0]), "containerd-shim") || !has("-id", container) || !has("-address", socket) {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		if slices.Equal(process.Command(pid), words) { // and none that took its number
			found = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil || found
		}
		_ = unix.Close(fd)
	}
	return found
}
