package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"sallyport/sandbox"
	"sallyport/sandbox/docker/apierror"
	"sallyport/sandbox/docker/image"
	"sallyport/sandbox/docker/trust"
)

const createTimeout = 60 * time.Second

// Labels of our containers.
const (
	labelID   = "sallyport.id"
	labelName = "sallyport.name"
	labelUser = "sallyport.user" // that the image wants commands to run as
	labelMake = "sallyport.make" // one call of Create
)

// Config is what a Runtime needs to know of its surroundings.
type Config struct {
	Bridge  string       // existing device; the engine's network is named after it
	Subnet  netip.Prefix // of the sandboxes, IPv4
	Gateway netip.Addr   // the bridge's address, which is also the resolver's
	Agent   string       // path of the sallyport-agent binary
	Dir     string       // where files that are mounted into containers are kept
	Image   string       // for a Spec that names none
	Runtime string       // for a Spec that names none: runsc or runc
	Pids    int64        // processes, for a Spec that says nothing
	HostKey []byte       // public, that agents know the host by; see wire.KeyFile
	Log     *slog.Logger
}

// Runtime runs sandboxes as containers of one engine. It implements
// manager.Runtime.
type Runtime struct {
	cfg    Config
	client *client.Client
	images image.Store
	// bare says that the engine's runc has no start shim, and so is not used.
	bare bool
	// driver is how the engine keeps images and containers, and root is where.
	driver, root string
	// layout is that of the engine's start shims.
	layout layout
	build  build

	views imageCache // of images

	mu       sync.Mutex
	running  map[string]bool // IDs of sandboxes whose end Exits reports
	stopping map[string]int  // IDs that we are ending, and how many times over
}

// New returns a Runtime on the engine, having made the engine's network.
func New(ctx context.Context, e *Engine, cfg Config) (*Runtime, error) {
	r := &Runtime{cfg: cfg, client: e.Client(), images: e.Images(), layout: e.layout, running: map[string]bool{}, stopping: map[string]int{}}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("preparing the runtime: %w", err)
	}
	if _, err := replace(r.resolvConf(), fmt.Appendf(nil, resolvConf, cfg.Gateway), 0o644); err != nil {
		return nil, fmt.Errorf("preparing the runtime: %w", err)
	}
	if _, err := replace(r.hostKey(), cfg.HostKey, 0o444); err != nil {
		return nil, fmt.Errorf("preparing the runtime: %w", err)
	}
	if info, err := os.Stat(cfg.Agent); err != nil || info.Mode()&0o111 == 0 {
		return nil, fmt.Errorf("no agent at %s: run `make build`", cfg.Agent)
	}
	if err := r.network(ctx); err != nil {
		return nil, apierror.Map(err)
	}
	info, err := r.client.Info(ctx, client.InfoOptions{})
	if err != nil {
		return nil, apierror.Map(fmt.Errorf("asking for the engine's storage: %w", err))
	}
	r.driver, r.root = info.Info.Driver, info.Info.DockerRootDir
	return r, nil
}

// resolvConf is a sandbox's resolv.conf(5). A question is lost when the gateway's process
// or the daemon dies, and is to be asked again when the next one is there: in a second
// and not in five, five times. musl takes the timeout for that of all attempts together,
// and the word wherever it stands in a line (resolvconf.c); others skip an option that
// they do not know.
const resolvConf = `# Written by sallyport: names are answered by the gateway.
nameserver %s
options timeout:1 attempts:5
options musl-timeout:5
`

func (r *Runtime) resolvConf() string { return filepath.Join(r.cfg.Dir, "resolv.conf") }

func (r *Runtime) hostKey() string { return filepath.Join(r.cfg.Dir, "host.pub") }

func containerName(id string) string { return "sallyport-" + id }

// Create makes the container, says what image it is made of, and leaves nothing behind
// when it fails.
func (r *Runtime) Create(ctx context.Context, c sandbox.Container) (sandbox.Image, error) {
	if r.bare && c.Spec.Runtime == sandbox.RunC {
		return sandbox.Image{}, fmt.Errorf("%w: this engine's runc would start a sandbox unguarded: use %s, or engine.kind: private", sandbox.ErrBadSpec, sandbox.GVisor)
	}
	ref, err := r.origin(ctx, c)
	if err != nil {
		return sandbox.Image{}, err
	}
	// The memory of a sandbox that is like another one may know the volumes that an
	// earlier version gave that.
	img, err := r.images.Resolve(ctx, cmp.Or(ref, r.cfg.Image), r.Layered() && c.Like == "")
	if err != nil {
		return sandbox.Image{}, err
	}
	mac, err := r.hardwareAddr(ctx, c)
	if err != nil {
		return sandbox.Image{}, err
	}
	var root *trust.Root
	var env map[string]string
	if len(c.Trust) > 0 {
		if root, err = trust.NewRoot(c.Trust, img.Env); err != nil {
			return sandbox.Image{}, err
		}
		env = root.Env
	}
	attempt := uuid.NewString()
	opts := r.options(c, img, mac, env)
	opts.Config.Labels[labelMake] = attempt
	// The engine finishes a request that its client has given up, after we have
	// looked for what it left; so this one is seen through.
	patient, cancel := context.WithTimeout(context.WithoutCancel(ctx), createTimeout)
	defer cancel()
	made, err := r.client.ContainerCreate(patient, opts)
	if err == nil {
		err = ctx.Err()
	}
	seen := r.views.of(img.ID)
	if begun, _ := os.ReadDir(c.Layer); len(begun) > 0 {
		seen = new(imageCache).of("") // it is no longer the image that it began as
	}
	if err == nil && c.Layer != "" {
		_, err = r.prepareLayer(patient, made.ID)
	}
	if err == nil && c.Like == "" {
		err = r.furnish(ctx, newImageFiles(r.client, made.ID, seen), root, img.Folders)
	}
	if err != nil {
		err = errors.Join(err, r.undo(ctx, attempt))
		return sandbox.Image{}, apierror.Map(fmt.Errorf("creating sandbox %q: %w", c.Name, err))
	}
	return img.Image, nil
}

// furnish writes what a container needs besides its image's files, before it starts.
func (r *Runtime) furnish(ctx context.Context, f *imageFiles, root *trust.Root, folders []string) error {
	if root != nil {
		if err := root.Plant(ctx, f, r.cfg.Log.With("container", f.id)); err != nil {
			return err
		}
	}
	if root == nil && len(folders) == 0 {
		return nil
	}
	return f.commit(ctx, folders)
}

// undo removes what one call of Create has made. It goes by a label of that
// call and not by name, under which an older container may live, and by no
// answer of the engine's, which may never have come.
func (r *Runtime) undo(ctx context.Context, attempt string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer cancel()
	list, err := r.client.ContainerList(ctx, client.ContainerListOptions{
		All:     true,
		Filters: client.Filters{}.Add("label", labelMake+"="+attempt),
	})
	if err != nil {
		return fmt.Errorf("removing what was made: %w", err)
	}
	for _, c := range list.Items {
		if err := r.unbindLayerOf(ctx, c.Labels[labelID]); err != nil {
			return fmt.Errorf("removing what was made: %w", err)
		}
		_, err := r.client.ContainerRemove(ctx, c.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		if err != nil {
			return fmt.Errorf("removing what was made: %w", err)
		}
	}
	return nil
}

// Start starts the container. A container that runs already is left as it is. Where it
// does not start, what stands in the way of its mounts is moved aside: see mend.
func (r *Runtime) Start(ctx context.Context, id string) (sandbox.Status, error) {
	// A daemon that ended in the middle of a restore may have left its handshake.
	st, err := r.startAs(ctx, id, removeHandshake)
	if err == nil || !blockedByFiles(err) {
		return st, err
	}
	info, ierr := r.inspect(ctx, id)
	if ierr != nil || info.State.Running {
		return st, err
	}
	moved, merr := clearMountPoints(info)
	if merr != nil || len(moved) == 0 {
		return st, errors.Join(err, merr)
	}
	r.cfg.Log.Warn("moved aside what kept a sandbox from starting", "sandbox", id, "paths", moved)
	return r.startAs(ctx, id, removeHandshake)
}

// startAs runs the container as its handshake for the start shim says, which f writes.
func (r *Runtime) startAs(ctx context.Context, id string, f func(handshake string) error) (sandbox.Status, error) {
	container, err := r.prepareLayer(ctx, containerName(id))
	if err == nil {
		err = f(filepath.Join(r.layout.handshakes(), container))
	}
	if err != nil {
		return sandbox.Status{}, fmt.Errorf("starting sandbox %s: %w", id, err)
	}
	if err := r.startContainer(ctx, id); err != nil {
		return sandbox.Status{}, apierror.Map(fmt.Errorf("starting sandbox %s: %w", id, err))
	}
	r.mu.Lock()
	r.running[id] = true
	r.mu.Unlock()
	return r.Status(ctx, id)
}

// Update gives a container that does not run other limits. Its files, and where they lie,
// are as before.
func (r *Runtime) Update(ctx context.Context, id string, limits sandbox.Spec) error {
	pids := cmp.Or(limits.Pids, r.cfg.Pids)
	_, err := r.client.ContainerUpdate(ctx, containerName(id), client.ContainerUpdateOptions{Resources: &container.Resources{
		NanoCPUs: int64(limits.CPUs * 1e9), Memory: limits.Memory, MemorySwap: limits.Memory, PidsLimit: &pids,
	}})
	if err != nil {
		return apierror.Map(fmt.Errorf("giving sandbox %s other limits: %w", id, err))
	}
	return nil
}

// Stop asks the container's processes to end and ends them by force after
// grace, which the engine counts in whole seconds.
func (r *Runtime) Stop(ctx context.Context, id string, grace time.Duration) (err error) {
	end := r.ending(id)
	defer func() { end(err) }()
	seconds := int(math.Ceil(max(0, grace).Seconds()))
	_, err = r.client.ContainerStop(ctx, containerName(id), client.ContainerStopOptions{Timeout: &seconds})
	if err != nil {
		return apierror.Map(fmt.Errorf("stopping sandbox %s: %w", id, err))
	}
	return r.unbindLayerOf(ctx, id)
}

// Remove ends the container and deletes its files. Mounted folders stay.
func (r *Runtime) Remove(ctx context.Context, id string) (err error) {
	end := r.ending(id)
	defer func() { end(err) }()
	if err := r.stopForRemoval(ctx, id); err != nil {
		return fmt.Errorf("removing sandbox %s: %w", id, err)
	}
	_, err = r.client.ContainerRemove(ctx, containerName(id), client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	if err != nil {
		return apierror.Map(fmt.Errorf("removing sandbox %s: %w", id, err))
	}
	return nil
}

// Status says how the container is.
func (r *Runtime) Status(ctx context.Context, id string) (sandbox.Status, error) {
	info, err := r.inspect(ctx, id)
	if err != nil {
		return sandbox.Status{}, err
	}
	s := sandbox.Status{
		Running: info.State.Running,
		Paused:  info.State.Paused,
		Exit:    info.State.ExitCode,
		Error:   info.State.Error,
	}
	// A time in another form is not known: the zero Time.
	s.Started, _ = time.Parse(time.RFC3339Nano, info.State.StartedAt)
	if s.Running {
		s.PID = info.State.Pid
		s.Link, err = hostVeth(s.PID, r.cfg.Bridge)
	}
	return s, err
}

func (r *Runtime) inspect(ctx context.Context, id string) (container.InspectResponse, error) {
	res, err := r.client.ContainerInspect(ctx, containerName(id), client.ContainerInspectOptions{})
	if err != nil {
		return res.Container, apierror.Map(fmt.Errorf("inspecting sandbox %s: %w", id, err))
	}
	if res.Container.State == nil || res.Container.Config == nil {
		return res.Container, fmt.Errorf("inspecting sandbox %s: the engine's answer has no state", id)
	}
	return res.Container, nil
}

// ending tells Exits that the sandbox ends by us. The returned function is
// called with what became of it: a sandbox that lives on is watched as before.
func (r *Runtime) ending(id string) func(error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	watched := r.running[id]
	delete(r.running, id)
	r.stopping[id]++
	return func(err error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.stopping[id]--; r.stopping[id] == 0 {
			delete(r.stopping, id)
		}
		if err != nil && watched {
			r.running[id] = true
		}
	}
}

// hostname makes a name that the kernel and the engine accept.
func hostname(name string) string {
	const limit = 63 // of a label, RFC 1035
	return strings.Trim(name[:min(len(name), limit)], "-._")
}
