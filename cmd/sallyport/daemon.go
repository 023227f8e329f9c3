package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync/atomic"
	"time"

	systemd "github.com/coreos/go-systemd/v22/daemon"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"sallyport/audit"
	"sallyport/gateway"
	"sallyport/gateway/ca"
	"sallyport/gateway/credential"
	"sallyport/gateway/credential/file"
	"sallyport/gateway/resolver"
	"sallyport/gateway/supervisor"
	"sallyport/internal/api"
	"sallyport/internal/config"
	"sallyport/internal/durable"
	"sallyport/internal/jail"
	"sallyport/internal/seal"
	"sallyport/internal/ssh"
	"sallyport/policy"
	"sallyport/policy/approval"
)

// daemon is everything that `sallyport up` runs, in the order in which it is made.
type daemon struct {
	globals *globals
	cfg     *config.Config
	log     *slog.Logger
	metrics *prometheus.Registry
	closers []func() error // in the order in which they were made

	inForce atomic.Pointer[config.Config] // what the last load said
	key     *seal.Key
	trail   *supervisor.AuditLog
	store   *file.Store
	rules   *policy.Engine
	broker  *credential.Broker

	loader // of policy and credentials, again and again

	authority *ca.Authority
	names     *resolver.Table
	clients   *gateway.ClientStore
	warden    *supervisor.Supervisor // of the process that the gateway is
	proxy     *net.TCPListener       // nil without an explicit proxy
	inbound   *net.TCPListener       // nil where nothing comes in
	exposed   *gateway.ExposureStore
	approvals *approval.Store
	ssh       *ssh.Door // nil without SSH

	house *house // nil for a gateway without sandboxes of its own

	// down is set when the daemon was asked to stop its sandboxes too.
	down   atomic.Bool
	downBy atomic.Pointer[context.Context] // of who asked
	cancel context.CancelFunc

	apiKeys     *api.Keys
	once        *api.Once
	scans       scans            // of the audit log, by the API's callers
	certificate *tls.Certificate // of the API's listener, nil without one
}

// newDaemon makes all parts. When it fails, what it made is closed again.
func newDaemon(ctx context.Context, g *globals, cfg *config.Config, log *slog.Logger, hangup <-chan os.Signal) (_ *daemon, err error) {
	d := &daemon{globals: g, cfg: cfg, log: log, metrics: prometheus.NewRegistry()}
	d.loader = newLoader(cfg, log, hangup)
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
		}
	}()
	if err := raiseDescriptors(); err != nil {
		log.Warn("the daemon may run out of open files, and then stops what it does: raise the limit, as by LimitNOFILE= in its unit", "needs", descriptors, "error", err)
	}
	for _, step := range []func(context.Context) error{
		d.claim, d.openTrail, d.openPolicy, d.openGateway, d.openHouse, d.openGatehouse, d.openSSH, d.openControl,
	} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// onClose runs f when the daemon ends, last made first.
func (d *daemon) onClose(f func() error) { d.closers = append(d.closers, f) }

func (d *daemon) close() error {
	var errs []error
	for i := len(d.closers) - 1; i >= 0; i-- {
		errs = append(errs, d.closers[i]())
	}
	return errors.Join(errs...)
}

// claim makes the folders and takes the data directory.
func (d *daemon) claim(context.Context) error {
	// What this process knows is written to no disk when it crashes, nor what those
	// know that it starts, the engine and gVisor among them. A limit of 0 would not
	// keep it from a program that takes cores, and one of 1 does (core(5),
	// do_coredump in fs/coredump.c).
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: 1, Max: 1}); err != nil {
		return fmt.Errorf("RLIMIT_CORE: %w", err)
	}
	for _, dir := range []string{d.cfg.DataDir, d.cfg.RunDir} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	release, err := lockData(d.cfg)
	if err != nil {
		return err
	}
	d.onClose(release)
	return nil
}

// descriptors is how many files the daemon makes sure that it can have open. The bounds
// of its listeners come to less than half of that: the rest is for its own work.
const descriptors = 1 << 14

func raiseDescriptors() error {
	var have unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &have); err != nil || have.Cur >= descriptors {
		return err
	}
	return unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: descriptors, Max: max(have.Max, descriptors)})
}

func (d *daemon) openTrail(context.Context) error {
	trail, err := supervisor.OpenAuditLog(auditDir(d.cfg), audit.Options{SegmentSize: d.cfg.Audit.SegmentSize, Logger: d.log})
	if err != nil {
		return err
	}
	d.trail = trail
	d.onClose(trail.Close)
	if d.key, err = openKey(d.cfg); err != nil {
		return err
	}
	d.store, err = file.New(d.cfg.DataDir, d.key)
	return err
}

func (d *daemon) openPolicy(ctx context.Context) error {
	sources, end, err := d.sources(d.cfg)
	if err != nil {
		return err
	}
	d.endSources = end
	d.onClose(func() error { d.endSources(); return nil })
	if d.attempted = d.cfg; !d.changing() {
		d.printed = d.print(d.cfg)
	}
	bundled, err := d.bundle(ctx, d.cfg, sources)
	if err != nil {
		return err
	}
	p, err := policy.Compile(ctx, d.cfg.Document, policy.Options{Logger: d.log})
	if err != nil {
		return err
	}
	if err := d.keeper.Accept(bundled); err != nil {
		return err
	}
	d.rules = policy.NewEngine(p)
	d.broker = credential.New(credential.Options{Sources: sources, Revision: p.Revision(), Bound: d.rules.Bound, AllowShort: d.rules.AllowsShort, Log: d.log})
	d.inForce.Store(d.cfg)
	d.warn(ctx, d.cfg)
	return nil
}

func (d *daemon) openGateway(context.Context) (err error) {
	if err := durable.MkdirAll(indexDir(d.cfg), 0o700); err != nil {
		return err
	}
	if d.authority, err = ca.Open(ca.Options{Dir: caDir(d.cfg), Sealer: d.key, Logger: d.log}); err != nil {
		return err
	}
	if d.names, err = resolver.OpenTable(filepath.Join(indexDir(d.cfg), "names"), resolver.TableOptions{Logger: d.log}); err != nil {
		return err
	}
	if d.approvals, err = d.openApprovals(); err != nil {
		return err
	}
	if d.exposed, err = gateway.OpenExposures(filepath.Join(indexDir(d.cfg), "exposures.json")); err != nil {
		return err
	}
	d.clients, err = gateway.OpenClients(filepath.Join(indexDir(d.cfg), "clients.json"))
	return err
}

// openGatehouse readies what the gateway's process is started with.
func (d *daemon) openGatehouse(context.Context) error {
	ids, err := jail.Lookup(d.cfg.Gateway.User)
	if err != nil {
		return fmt.Errorf("gateway.user: %w", err)
	}
	view, err := jail.OpenView(filepath.Join(d.cfg.RunDir, "gateway"), d.log)
	if err != nil {
		return err
	}
	var listeners supervisor.Listeners
	if h := d.house; h != nil {
		listeners.Transparent, listeners.DNS, listeners.DNSTCP = h.steered, h.dnsUDP, h.dnsTCP
		listeners.Mended = func() error { return h.guard.Steer(h.steered) }
	}
	if err := d.listenProxy(&listeners); err != nil {
		return err
	}
	if err := d.listenInbound(&listeners); err != nil {
		return err
	}
	ledger, err := supervisor.OpenLedger(filepath.Join(indexDir(d.cfg), "limits.json"), auditDir(d.cfg))
	if err != nil {
		return err
	}
	d.warden = supervisor.New(supervisor.Options{
		IDs: ids, View: view, Listeners: listeners,
		AuditLog: d.trail, AuditDir: auditDir(d.cfg), SegmentSize: d.cfg.Audit.SegmentSize,
		Broker: d.broker, Authority: d.authority, Names: d.names, Local: d.localAddresses,
		Identities: d.identities, Clients: d.clients.List, Approvals: d.approvals,
		Exposures: d.exposed.List, Whose: d.whose, Wake: d.wake, Dial: d.reach, Loopback: d.inside,
		Event: func(state string) *audit.Event {
			return changed(audit.Product{Name: "sallyport-gateway", Version: version}, "gateway", state)
		},
		Logger: d.log,
		Found:  d.cfg.Gateway.Found,
		Limits: ledger, Limited: func() bool { return d.rules.Policy().Limited() },
		Every: func(limit string) time.Duration { return d.rules.Policy().Every(limit) },
	})
	d.onClose(func() error { return d.warden.Stop(0) }) // of no effect after end
	return nil
}

// forget drops what the gateway keeps under the ID of a sandbox or a client.
func (d *daemon) forget(id string) error {
	err := errors.Join(d.names.Forget(id), d.approvals.Forget(id), d.exposed.Forget(id))
	if d.warden != nil { // nothing is forgotten by it before it is there
		d.warden.Forget(id)
		d.warden.Exposures()
	}
	return err
}

// heapGrowth is by how many percent the daemon's heap grows before it is collected.
// No request waits for the daemon but for its credential, once in a while: what it
// takes at rest counts for more.
const heapGrowth = 50

// run serves until ctx is done, then drains.
func (d *daemon) run(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, d.close()) }()
	ctx, d.cancel = context.WithCancel(ctx)
	defer d.cancel()
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(heapGrowth)
	}

	g, serving := errgroup.WithContext(ctx)
	if err := d.serve(serving, g); err != nil {
		d.cancel()
		return errors.Join(err, g.Wait())
	}
	err = g.Wait()
	if ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, net.ErrClosed)) {
		err = nil // it was asked to end
	}
	return errors.Join(err, d.end())
}

// serve starts everything in the group; the control interface is the last, so
// that a daemon that answers is up.
func (d *daemon) serve(ctx context.Context, g *errgroup.Group) error {
	if err := d.serveMetrics(ctx, g); err != nil {
		return err
	}
	if err := d.warden.Start(ctx, d.cfg.Document, d.rules.Policy().Revision()); err != nil {
		return err
	}
	g.Go(func() error { return d.warden.Watch(ctx) })
	g.Go(func() error { return d.approvals.Run(ctx) })
	watched := &watcher{policy: d.rules.Policy, record: d.trail.Enqueue, log: d.log}
	g.Go(func() error { return watched.run(ctx) })
	// What has come meanwhile waits for the first turn.
	g.Go(func() error { return d.reloadOnSignal(ctx) })
	g.Go(func() error { return d.followFiles(ctx) })
	g.Go(func() error { return d.followBundle(ctx) })
	if h := d.house; h != nil {
		g.Go(func() error { return h.engine.Watch(ctx) })
		g.Go(func() error { return h.sandboxes.Watch(ctx) })
		g.Go(func() error { return h.sandboxes.WatchIdle(ctx) })
		g.Go(func() error { return h.sandboxes.WatchSpace(ctx) })
		g.Go(func() error { return h.sandboxes.Fill(ctx) })
		drops := newDropLog(d.trail, d.log)
		g.Go(func() error { return drops.run(ctx) })
		g.Go(func() error {
			defer drops.flush(time.Time{}) // what came after the last tick
			return h.guard.Drops(ctx, drops.add)
		})
		if err := h.guard.Steer(h.steered); err != nil {
			return err
		}
	}
	if err := d.say("started", d.rules.Policy()); err != nil {
		return err
	}
	if err := d.serveSSH(ctx, g); err != nil {
		return err
	}
	if err := d.tellWebhooks(ctx, g); err != nil {
		return err
	}
	if err := d.serveAPI(ctx, g); err != nil {
		return err
	}
	// Reading and compiling a policy leaves twice of what then lives.
	debug.FreeOSMemory()
	g.Go(func() error { return d.watchdog(ctx) })
	d.notify(systemd.SdNotifyReady)
	d.log.Info("sallyport is up", "version", version, "policy", d.rules.Policy().Revision(), "rules", d.rules.Policy().Rules())
	return nil
}

func (d *daemon) end() error {
	d.notify(systemd.SdNotifyStopping)
	// The process has these too, and closes them first of all.
	d.stopListening()
	var stops errgroup.Group
	stops.Go(d.stopSSH)
	errs := []error{d.warden.Stop(time.Duration(d.cfg.Gateway.Drain)), stops.Wait()}
	if d.house != nil {
		errs = append(errs, d.drain())
	}
	if d.down.Load() && d.house != nil {
		errs = append(errs, d.pullDown())
	}
	ctx := context.Background()
	if by := d.downBy.Load(); by != nil {
		ctx = context.WithoutCancel(*by)
	}
	return errors.Join(append(errs, d.trail.Append(ctx, d.about("stopped", d.rules.Policy(), "")))...)
}

// stopListening closes this process's share of what the gateway listens on.
func (d *daemon) stopListening() {
	if d.proxy != nil {
		_ = d.proxy.Close()
	}
	if d.inbound != nil {
		_ = d.inbound.Close()
	}
	if h := d.house; h != nil {
		_, _, _ = h.steered.Close(), h.dnsUDP.Close(), h.dnsTCP.Close()
	}
}

func (d *daemon) status() api.Status {
	s := d.trail.Stats()
	st := api.Status{
		Version: version, PID: os.Getpid(), Revision: d.rules.Policy().Revision(), Rules: d.rules.Policy().Rules(),
		Events: s.Events, Syncs: s.Syncs, Gateway: d.warden.Status(), Policy: d.loaded(),
		Observing: d.rules.Policy().Observing(time.Now()),
	}
	if d.certificate != nil {
		st.Fingerprint = api.Fingerprint(*d.certificate)
	}
	if d.ssh != nil {
		st.SSH = d.ssh.Status()
	}
	if d.house != nil {
		st.Sandboxes = len(d.house.sandboxes.List())
	}
	return st
}
