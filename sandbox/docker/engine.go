// Package docker runs sandboxes on a Docker Engine with gVisor.
//
// An [Engine] is by default a private one, beside whatever the user has and
// touching none of it: own sockets, own data, no iptables, no forwarding. Its
// processes outlive the daemon, and the next daemon takes them over. Its runtimes are
// start shims: scripts that refuse to start a container while nothing polices the
// bridge. A [Runtime] implements manager.Runtime on an engine.
//
// The package does not protect from root on the host, nor does runc, where it
// is chosen, protect the host's kernel as gVisor does.
package docker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/moby/moby/client"
	"golang.org/x/sync/errgroup"

	"sallyport/internal/periodic"
	"sallyport/sandbox"
	"sallyport/sandbox/docker/apierror"
	"sallyport/sandbox/docker/image"
	"sallyport/sandbox/docker/process"
)

const (
	readyTimeout = 60 * time.Second
	haltGrace    = 15 * time.Second
	trimInterval = 10 * time.Second
	// A part that lived this long starts its backoff anew when it dies.
	steady = 30 * time.Second
)

// EngineConfig says where a private engine lives and which bridge it serves.
type EngineConfig struct {
	DataDir string // holds engine/ (images, containers) and logs/
	RunDir  string // holds sockets; on a file system that a reboot empties
	Runsc   string // path of gVisor's runsc
	Bridge  string // device that containers join
	Pins    string // folder that holds bridge-<ifindex> while the bridge is guarded
	Log     *slog.Logger
}

// Engine is a connection to a Docker Engine. A private one it also keeps running.
type Engine struct {
	host   string
	client *client.Client
	log    *slog.Logger
	parts  []*part  // in the order in which they start; none for an existing engine
	dirs   []string // of a private engine, below which its parts mount
	layout layout   // holds the start shim that its runtime runsc is
}

// part is a process of the engine and how to know that it answers.
type part struct {
	process.Process
	ready func(context.Context) error
	clean func() error // removes what would keep it from starting
}

// Connect returns the engine at host (unix:///path/to/socket), which somebody
// else keeps. Its runtime runsc must be the start shim that Connect writes below
// cfg.DataDir: an engine without it could start a sandbox after a reboot before
// anything guards the bridge. Its runc has no start shim.
func Connect(ctx context.Context, host string, cfg EngineConfig) (*Engine, error) {
	l := layout(cfg)
	if _, err := l.write(); err != nil {
		return nil, fmt.Errorf("preparing the engine's start shim: %w", err)
	}
	e, err := newEngine(host, l)
	if err != nil {
		return nil, err
	}
	info, err := e.client.Info(ctx, client.InfoOptions{})
	if err != nil {
		e.client.Close()
		return nil, apierror.Map(fmt.Errorf("connecting to the engine at %s: %w", host, err))
	}
	shim := filepath.Join(l.bin(), "runsc")
	if have := info.Info.Runtimes["runsc"].Path; have != shim {
		e.client.Close()
		return nil, fmt.Errorf(`the engine at %s has no guarded runtime: put {"runtimes": {"runsc": {"path": %q}}, "experimental": true} into its daemon.json and restart it, or use engine.kind: private`, host, shim)
	}
	return e, nil
}

func newEngine(host string, l layout) (*Engine, error) {
	cli, err := client.New(client.WithHost(host))
	if err != nil {
		return nil, fmt.Errorf("engine host %q: %w", host, err)
	}
	return &Engine{host: host, client: cli, log: l.Log, layout: l}, nil
}

// StartEngine takes the private engine over if it runs, else starts it, and
// returns when it answers. Call Watch to keep it running.
func StartEngine(ctx context.Context, cfg EngineConfig) (*Engine, error) {
	l := layout(cfg)
	changed, err := l.write()
	if err != nil {
		return nil, fmt.Errorf("preparing the engine: %w", err)
	}
	e, err := newEngine("unix://"+l.dockerSocket(), l)
	if err != nil {
		return nil, err
	}
	containerd, err := l.containerd()
	if err != nil {
		return nil, err
	}
	dockerd, err := l.dockerd()
	if err != nil {
		return nil, err
	}
	containerd.ready = func(ctx context.Context) error { return dial(ctx, l.containerdSocket()) }
	dockerd.ready = e.ping
	e.parts = []*part{containerd, dockerd}
	e.dirs = []string{l.run(), l.dir()}
	for _, p := range e.parts {
		if err := e.ensureRunning(ctx, p, changed); err != nil {
			e.client.Close()
			return nil, fmt.Errorf("%w: %w", sandbox.ErrEngine, err)
		}
	}
	return e, nil
}

// ensureRunning makes the part run: as it is if it runs, but anew if its configuration
// has changed. Containers live through that.
func (e *Engine) ensureRunning(ctx context.Context, p *part, changed bool) error {
	running, err := p.Adopt()
	if err != nil {
		return err
	}
	if running && changed {
		e.log.Info("restarting for a new configuration", "process", p.Name)
		if err := p.Halt(ctx, haltGrace); err != nil {
			return err
		}
		running = false
	}
	if !running {
		if err := p.launch(); err != nil {
			return err
		}
	}
	return p.await(ctx)
}

func (p *part) launch() error {
	if err := p.clean(); err != nil {
		return err
	}
	return p.Start()
}

// await returns when the part answers.
func (p *part) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for {
		err := p.ready(ctx)
		if err == nil {
			return nil
		}
		if !p.Alive() {
			return fmt.Errorf("%s ended at its start, see %s: %s", p.Name, p.Log, p.LastLogLine())
		}
		if !periodic.Sleep(ctx, 20*time.Millisecond) {
			return fmt.Errorf("%s does not answer, see %s: %w", p.Name, p.Log, err)
		}
	}
}

// Client is the engine's API. It is closed by Close or Stop.
func (e *Engine) Client() *client.Client { return e.client }

// Images are those that the engine's containers are made of.
func (e *Engine) Images() image.Store { return image.NewStore(e.client) }

// Host is the engine's address: unix:///path/to/socket.
func (e *Engine) Host() string { return e.host }

// Watch restarts what dies of a private engine, with growing pauses, and keeps
// its logs bounded, until ctx is done.
func (e *Engine) Watch(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, p := range e.parts {
		g.Go(func() error { return e.supervise(ctx, p) })
	}
	g.Go(func() error { return e.trimLogs(ctx) })
	return g.Wait()
}

func (e *Engine) supervise(ctx context.Context, p *part) error {
	const first, last = 100 * time.Millisecond, 10 * time.Second
	pause, since := first, time.Now()
	for {
		err := p.Wait(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if time.Since(since) > steady {
			pause = first
		}
		if !periodic.Sleep(ctx, pause) {
			return nil
		}
		pause, since = min(2*pause, last), time.Now()
		switch err := p.launch(); {
		case errors.Is(err, process.ErrRetired):
			return nil
		case err != nil:
			e.log.Error("cannot restart a part of the engine", "process", p.Name, "error", err)
		default:
			e.log.Warn("restarted a part of the engine that had ended", "process", p.Name)
		}
	}
}

func (e *Engine) trimLogs(ctx context.Context) error {
	return periodic.Run(ctx, trimInterval, func(time.Time) {
		for _, p := range e.parts {
			if err := p.TrimLog(); err != nil {
				e.log.Warn("cannot bound a log of the engine", "process", p.Name, "error", err)
			}
		}
	})
}

// Close lets go of the engine and leaves it running.
func (e *Engine) Close() error { return e.client.Close() }

// Stop ends a private engine, and Watch with it. Containers are left as they
// are: stop them before. An existing engine is only let go of.
func (e *Engine) Stop(ctx context.Context) error {
	defer e.client.Close()
	for _, p := range e.parts {
		p.Retire()
	}
	var errs []error
	for i := len(e.parts) - 1; i >= 0; i-- {
		errs = append(errs, e.parts[i].Halt(ctx, haltGrace))
	}
	if errors.Join(errs...) == nil {
		for _, dir := range e.dirs {
			errs = append(errs, unmountBelow(dir))
		}
	}
	return errors.Join(errs...)
}

func (e *Engine) ping(ctx context.Context) error {
	_, err := e.client.Ping(ctx, client.PingOptions{})
	return err
}

func dial(ctx context.Context, socket string) error {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return err
	}
	return conn.Close()
}

// program finds an executable of the engine, also for a caller whose PATH has
// no sbin.
func program(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return filepath.Abs(path)
	}
	for _, dir := range []string{"/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/local/bin", "/usr/bin"} {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", fmt.Errorf("%w: %s is not installed: apt-get install docker.io", sandbox.ErrEngine, name)
}
