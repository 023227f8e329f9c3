package daemon

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"sallyport/audit/auditlog"
	"sallyport/gateway/supervisor"
	"sallyport/internal/api"
	"sallyport/internal/tmpfs"
	"sallyport/sandbox"
	"sallyport/sandbox/agent/channel"
	"sallyport/sandbox/datapath"
	"sallyport/sandbox/disk"
	"sallyport/sandbox/docker"
	"sallyport/sandbox/fsjail"
	"sallyport/sandbox/manager"
)

// sandboxes are what this daemon vouches for, however they come to be.
type sandboxes interface {
	api.Sandboxes
	// Identities returns those that run by their addresses. It must not be changed.
	Identities() map[netip.Addr]sandbox.Info
	Start(ctx context.Context, name string) (sandbox.Info, error)
	// Connect connects to a port inside of a sandbox, as a program in it would.
	Connect(ctx context.Context, name, host string, port uint16) (sandbox.Conn, error)
}

// sandboxHost makes and runs sandboxes on this host.
type sandboxHost struct {
	engine  *docker.Engine
	manager *manager.Manager
}

// openSandboxes guards the bridge before anything can be on it.
func (d *daemon) openSandboxes(ctx context.Context) error {
	if d.cfg.Engine.Kind == "none" {
		return nil
	}
	if err := d.openNetwork(ctx); err != nil {
		return err
	}
	if d.cfg.Engine.Kind == "pods" {
		return d.openPods(ctx)
	}
	return d.openHost(ctx)
}

func (d *daemon) openHost(ctx context.Context) error {
	h := &sandboxHost{}
	agents, err := channel.OpenKey(filepath.Join(d.cfg.DataDir, "agent.key"), d.key)
	if err != nil {
		return err
	}
	runtime, err := d.openRuntime(ctx, h, channel.Public(agents))
	if err != nil {
		return err
	}
	var disks manager.Disks
	size := int64(d.cfg.Sandbox.Disk)
	if runtime.Layered() {
		disks = disk.Disks{}
	} else {
		d.log.Warn("nothing bounds what sandboxes write: this engine does not keep containers in overlay2; use engine.kind: private")
		size = 0
	}
	if err := tmpfs.Mount(d.cfg.SleepDir()); err != nil {
		return err
	}
	space, reserve, perTenant, err := openSpace(d.cfg)
	if err != nil {
		return err
	}
	h.manager, err = manager.Open(ctx, manager.Options{
		Dir:    d.cfg.SandboxesDir(),
		Subnet: d.cfg.Network.Subnet,
		Defaults: sandbox.Spec{
			Image: d.cfg.Sandbox.Image, Runtime: d.cfg.Sandbox.Runtime, Pids: d.cfg.Sandbox.Pids,
			CPUs: d.cfg.Sandbox.CPUs, Memory: int64(d.cfg.Sandbox.Memory), Disk: size,
		},
		Pool:      d.cfg.Sandbox.Pool.Size,
		Runtime:   runtime,
		Disks:     disks,
		Network:   d.network.guard,
		Authority: d.authority,
		Secrets:   d.broker,
		Recorder:  d.auditLog,
		Recorded:  d.recorded,
		Logger:    d.log,
		Agent:     channel.Options{Key: agents, Dial: datapath.Dial},
		Space:     space,
		Reserve:   reserve,
		Images:    h.engine.Images(),
		Login:     d.registryLogin,
		Forget:    d.forget,
		Publish:   d.publish,
		RAM:       d.cfg.SleepDir(),
		Key:       d.key,
		Inherit: func(parent, child string) error {
			return errors.Join(d.names.Copy(parent, child), d.saved.Copy(parent, child))
		},
		Mark:         d.mark,
		Placeholders: d.given,
		Memories:     d.memories,
		Stores:       d.stores,
		Meter:        runtime,
		Gate:         d.gate(),
		Layers:       runtime,
		Jail:         fsjail.Open,
		PerOwner:     d.cfg.Sandbox.PerTenant, OwnerImages: d.cfg.Sandbox.TenantImages, StoragePerOwner: perTenant,
	})
	if err != nil {
		return err
	}
	d.host, d.sandboxes = h, h.manager
	d.onClose(h.manager.Close)
	return nil
}

func (d *daemon) openRuntime(ctx context.Context, h *sandboxHost, hostKey []byte) (_ *docker.Runtime, err error) {
	net4 := d.cfg.Network
	runsc := findRunsc(d.cfg)
	if runsc == "" {
		return nil, errors.New("gVisor's runsc is not installed: `make setup` builds it, or set engine.runsc")
	}
	engine := docker.EngineConfig{
		DataDir: d.cfg.DataDir, RunDir: d.cfg.RunDir, Runsc: runsc,
		Bridge: net4.Bridge, Pins: d.datapathConfig().Pins, Log: d.log,
	}
	if d.cfg.Engine.Kind == "existing" {
		h.engine, err = docker.Connect(ctx, d.cfg.Engine.Host, engine)
	} else {
		h.engine, err = docker.StartEngine(ctx, engine)
	}
	if err != nil {
		return nil, err
	}
	d.onClose(h.engine.Close)
	runtime, err := docker.New(ctx, h.engine, docker.Config{
		Bridge: net4.Bridge, Subnet: net4.Subnet, Gateway: d.datapathConfig().Gateway(),
		Agent: findAgent(), Dir: filepath.Join(d.cfg.DataDir, "runtime"),
		Image: d.cfg.Sandbox.Image, Runtime: d.cfg.Sandbox.Runtime, Pids: d.cfg.Sandbox.Pids, HostKey: hostKey, Log: d.log,
	})
	if err != nil {
		return nil, err
	}
	if tarball := findTarball(d.cfg); tarball != "" {
		if err := h.engine.Images().Ensure(ctx, d.cfg.Sandbox.Image, tarball); err != nil {
			return nil, err
		}
	}
	return runtime, nil
}

// recorded reports whether the audit log has an event, by its ID.
func (d *daemon) recorded(ctx context.Context, id string) (bool, error) {
	return auditlog.Has(ctx, d.cfg.AuditDir(), id)
}

// mark is what a snapshot notes of the policy and of the audit.
func (d *daemon) mark() sandbox.Mark {
	return sandbox.Mark{Policy: d.rules.Policy().Revision(), Audit: d.auditLog.Stats().Events}
}

// publish tells the gateway who has an address.
func (d *daemon) publish(a netip.Addr, i sandbox.Info) {
	switch {
	case d.supervisor == nil: // it will be told all of them
	case i.ID == "":
		d.supervisor.Identity(a, nil)
		select {
		case d.leases.nudge <- struct{}{}:
		default:
		}
	default:
		s := identity(i)
		d.supervisor.Identity(a, &s)
	}
}

// drain empties the pool of sandboxes: nobody could take one of it, and the next
// daemon fills its own.
func (d *daemon) drain() error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return d.host.manager.DrainPool(ctx)
}

// shutdown stops the sandboxes and the private engine and takes the datapath
// off the host. Files, memory and audit stay.
func (d *daemon) shutdown() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	h := d.host
	// Each may take its whole grace period, so that one after the other many
	// would not fit.
	var stops errgroup.Group
	stops.SetLimit(stopsAtOnce)
	for _, i := range h.manager.List() {
		if i.State == sandbox.Running || i.State == sandbox.Paused { // what is in RAM
			stops.Go(func() error { _, err := h.manager.Stop(ctx, i.Name); return err })
		}
	}
	if err := errors.Join(stops.Wait(), h.engine.Stop(ctx), tmpfs.Unmount(d.cfg.SleepDir())); err != nil {
		return err // the guard stays while anything may run
	}
	return datapath.Remove(d.datapathConfig())
}

const stopsAtOnce = 16

// gate holds the connections of sandboxes that sleep: in the gateway's process as
// long as that lives, and by their addresses beyond it.
type gate struct {
	supervisor func() *supervisor.Supervisor // nil before there is one
	log        *slog.Logger
}

var _ manager.Gate = gate{}

func (d *daemon) gate() gate {
	return gate{func() *supervisor.Supervisor { return d.supervisor }, d.log}
}

func (g gate) Sleep(ctx context.Context, a netip.Addr) []sandbox.Flow {
	// Before and after: a connection that is reset may not have been told so by the
	// time that the sandbox sleeps, and one that is new may come in between.
	flows, err := datapath.Flows(a)
	if w := g.supervisor(); w != nil {
		w.Sleep(ctx, a)
	}
	later, lerr := datapath.Flows(a)
	for _, f := range later {
		if !slices.Contains(flows, f) {
			flows = append(flows, f)
		}
	}
	if err = errors.Join(err, lerr); err != nil {
		g.log.Warn("a sandbox's connections are not known and may hang when it wakes", "address", a, "error", err)
	}
	return flows
}

func (g gate) Wake(a netip.Addr, flows []sandbox.Flow) {
	if w := g.supervisor(); w != nil {
		w.Wake(a)
	}
	// A segment can be lost, while the sandbox's network comes up for one.
	for _, after := range []time.Duration{0, 200 * time.Millisecond, 600 * time.Millisecond} {
		time.AfterFunc(after, func() {
			if err := datapath.ProbeFlows(flows); err != nil {
				g.log.Warn("a sandbox's connections of before may hang", "address", a, "error", err)
			}
		})
	}
}

func (g gate) Flows(a netip.Addr) []sandbox.Flow {
	flows, err := datapath.Flows(a)
	if err != nil {
		g.log.Warn("a sandbox's connections are not known and may hang in what is made of it", "address", a, "error", err)
	}
	return flows
}

func (g gate) End(a netip.Addr) {
	if w := g.supervisor(); w != nil {
		w.End(a)
	}
}
