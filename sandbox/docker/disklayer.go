package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"sallyport/internal/periodic"
	"sallyport/sandbox"
	"sallyport/sandbox/disk"
	"sallyport/sandbox/docker/apierror"
)

// labelLayer is the folder of the host that the container's writable layer lies
// on, where it has one of its own.
const labelLayer = "sallyport.layer"

// overlay is the storage driver whose layers have folders: one for each, with
// what is written in diff and work beside it, which the kernel wants on one file
// system (Documentation/filesystems/overlayfs.rst, "Upper and Lower").
const overlay = "overlay2"

// bindLayer puts the container's writable layer where it has to be before anything
// is written to it: the engine's folder of that layer is covered by the other,
// which begins as its copy. So the engine commits, compares and copies as ever,
// and what the container writes counts there.
func (r *Runtime) bindLayer(info container.InspectResponse) error {
	to := info.Config.Labels[labelLayer]
	if to == "" {
		return nil
	}
	of, err := engineLayerDir(info)
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(to)
	if err != nil {
		return fmt.Errorf("the sandbox's disk is not there: %w", err)
	}
	if len(entries) == 0 {
		// Once: nothing has been started yet, so these are a few small files.
		if out, err := exec.Command("cp", "-a", "--", of+"/.", to).CombinedOutput(); err != nil {
			return fmt.Errorf("beginning the sandbox's layer: %w: %s", err, strings.TrimSpace(string(out)))
		}
	}
	// The engine writes its own files anew for a container that was made again.
	for _, name := range []string{"link", "lower"} {
		if err := copySmallFile(filepath.Join(of, name), filepath.Join(to, name)); err != nil {
			return fmt.Errorf("beginning the sandbox's layer: %w", err)
		}
	}
	if err := disk.Bind(to, of); err != nil {
		return err
	}
	return r.bindEngineFiles(info.ID, to)
}

// engineFiles are those that the engine mounts writable from its own folder of a
// container (moby, container.NetworkMounts). It writes them anew at each start.
var engineFiles = []string{"hosts", "hostname"}

func (r *Runtime) engineFile(container, name string) string {
	return filepath.Join(r.root, "containers", container, name)
}

// bindEngineFiles puts files of the sandbox's disk in the place of the engine's: whatever a
// sandbox writes lies on its disk. They stand beside the layer, where nothing in the
// sandbox can make a link of them.
func (r *Runtime) bindEngineFiles(container, layer string) error {
	for _, name := range engineFiles {
		own, of := filepath.Join(layer, name), r.engineFile(container, name)
		for _, path := range []string{own, of} {
			f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o644)
			if err != nil {
				return fmt.Errorf("keeping /etc/%s on the sandbox's disk: %w", name, err)
			}
			_ = f.Close()
		}
		if err := disk.Bind(own, of); err != nil {
			return fmt.Errorf("keeping /etc/%s on the sandbox's disk: %w", name, err)
		}
	}
	return nil
}

// copySmallFile makes a small file what another is.
func copySmallFile(from, to string) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	_, err = replace(to, content, 0o644)
	return err
}

// Layered tells whether this engine keeps containers so that a Container's Layer
// can be had.
func (r *Runtime) Layered() bool { return r.driver == overlay }

// prepareLayer places the layer of a container that is about to run, and returns the
// engine's identifier of that.
func (r *Runtime) prepareLayer(ctx context.Context, ref string) (container string, err error) {
	res, err := r.client.ContainerInspect(ctx, ref, client.ContainerInspectOptions{})
	if err != nil {
		return "", apierror.Map(err)
	}
	if state := res.Container.State; state != nil && state.Running {
		return res.Container.ID, nil
	}
	if err := r.checkAccounts(res.Container); err != nil {
		return "", err
	}
	return res.Container.ID, r.bindLayer(res.Container)
}

// stopForRemoval ends a container that is about to be removed, and displaces its layer:
// the engine cannot remove a folder that is covered.
func (r *Runtime) stopForRemoval(ctx context.Context, id string) error {
	info, err := r.inspect(ctx, id)
	if err != nil {
		return err
	}
	_ = removeHandshake(filepath.Join(r.layout.handshakes(), info.ID)) // left by a restore that a crash cut short
	if info.Config.Labels[labelLayer] == "" {
		return nil
	}
	if info.State.Running {
		if _, err := r.client.ContainerKill(ctx, info.ID, client.ContainerKillOptions{Signal: "KILL"}); err != nil && !cerrdefs.IsConflict(err) {
			return apierror.Map(err)
		}
		wait := r.client.ContainerWait(ctx, info.ID, client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
		select {
		case err := <-wait.Error:
			return apierror.Map(err)
		case <-wait.Result:
		}
	}
	return r.unbindLayer(ctx, info)
}

// unbindLayer undoes place, once nothing uses the layer. The engine says that a
// container has ended a moment before it has let go of its files.
func (r *Runtime) unbindLayer(ctx context.Context, info container.InspectResponse) error {
	if info.Config == nil || info.Config.Labels[labelLayer] == "" {
		return nil
	}
	of, err := engineLayerDir(info)
	if err != nil {
		return err
	}
	points := []string{of}
	for _, name := range engineFiles {
		points = append(points, r.engineFile(info.ID, name))
	}
	ctx, cancel := context.WithTimeout(ctx, unbindTimeout)
	defer cancel()
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		var errs []error
		for _, p := range points {
			errs = append(errs, disk.Unbind(p))
		}
		if err = errors.Join(errs...); !errors.Is(err, unix.EBUSY) {
			return err
		}
		if !periodic.Sleep(ctx, pause) {
			return err
		}
	}
}

const unbindTimeout = 5 * time.Second

// unbindLayerOf displaces the layer of a container that has ended.
func (r *Runtime) unbindLayerOf(ctx context.Context, id string) error {
	info, err := r.inspect(ctx, id)
	if err != nil {
		return err
	}
	return r.unbindLayer(ctx, info)
}

// engineLayerDir is the engine's folder of the container's writable layer.
func engineLayerDir(info container.InspectResponse) (string, error) {
	if info.GraphDriver == nil || info.GraphDriver.Name != overlay {
		return "", fmt.Errorf("%w: this engine does not keep containers in %s, where their files can be had: use engine.kind: private", sandbox.ErrBadSpec, overlay)
	}
	upper := info.GraphDriver.Data["UpperDir"]
	if filepath.Base(upper) != "diff" || !filepath.IsAbs(upper) {
		return "", fmt.Errorf("the engine names %q as the container's layer", upper)
	}
	return filepath.Dir(upper), nil
}

// Layer is the folder of the host with what the container has written of its
// image's files, as overlayfs keeps it: what is removed is there as a device 0/0,
// and folders may carry trusted.overlay.* attributes
// (Documentation/filesystems/overlayfs.rst). It may be read while the container
// stands still, and written before it is started.
func (r *Runtime) Layer(ctx context.Context, id string) (string, error) {
	info, err := r.inspect(ctx, id)
	if err != nil {
		return "", err
	}
	if own := info.Config.Labels[labelLayer]; own != "" {
		return filepath.Join(own, "diff"), nil
	}
	of, err := engineLayerDir(info)
	if err != nil {
		return "", err
	}
	return filepath.Join(of, "diff"), nil
}

// origin is the image that a container is to be made of: by what its spec says, or
// the very one of the container that it is to be like.
func (r *Runtime) origin(ctx context.Context, c sandbox.Container) (string, error) {
	if c.Like == "" {
		return cmp.Or(c.Image, c.Spec.Image), nil
	}
	info, err := r.inspect(ctx, c.Like)
	return info.Image, err
}

// Layers returns where a sandbox's files lie, see manager.Layers. The engine
// keeps a container of the overlay2 driver in folders of the host, as
// overlayfs.rst has them; of other drivers nothing is known.
func (r *Runtime) Layers(ctx context.Context, id string) (upper string, lower []string, err error) {
	info, err := r.inspect(ctx, id)
	if err != nil {
		return "", nil, err
	}
	of, err := engineLayerDir(info)
	if err != nil {
		return "", nil, err
	}
	lower = filepath.SplitList(info.GraphDriver.Data["LowerDir"])
	for _, dir := range append([]string{of}, lower...) {
		if !filepath.IsAbs(dir) || strings.Contains(dir, "..") {
			return "", nil, fmt.Errorf("the engine names %q as a layer of the container", dir)
		}
	}
	if own := info.Config.Labels[labelLayer]; own != "" {
		of = own // which covers the engine's while the sandbox runs
	}
	return filepath.Join(of, "diff"), lower, nil
}
