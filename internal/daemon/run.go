package daemon

import (
	"context"
	"errors"
	"net"
	"os"
	"runtime/debug"
	"time"

	systemd "github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sync/errgroup"

	"sallyport/audit/index"
	"sallyport/internal/api"
	"sallyport/internal/daemon/observe"
	"sallyport/internal/footprint"
	"sallyport/internal/periodic"
	"sallyport/sandbox/client"
)

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

// serve starts everything in the group; the control interface, and on a node of Kubernetes
// the CNI plugin's, is the last, so that a daemon that answers is up.
func (d *daemon) serve(ctx context.Context, g *errgroup.Group) error {
	if err := d.serveMetrics(ctx, g); err != nil {
		return err
	}
	if err := d.supervisor.Start(ctx, d.cfg.Document, d.rules.Policy().Revision()); err != nil {
		return err
	}
	observed := &observe.Watcher{Policy: d.rules.Policy, Event: d.changed, Record: d.auditLog.Enqueue, Logger: d.log}
	g.Go(func() error { return index.Follow(ctx, d.cfg.AuditDir(), d.cfg.AuditIndex(), d.log) })
	parts := []func(context.Context) error{
		d.supervisor.Watch, d.sealer.Run, d.retention.Run, d.approvals.Run, d.leases.Run, d.sweepLeases, observed.Run,
		d.reloadOnSignal, // a signal that has come meanwhile waits for its first turn
		d.followFiles, d.followBundle,
	}
	if h := d.host; h != nil {
		parts = append(parts, d.followSecrets, h.engine.Watch, h.manager.Watch, h.manager.WatchIdle, h.manager.WatchSpace, h.manager.FillPool)
	}
	for _, run := range parts {
		g.Go(func() error { return run(ctx) })
	}
	if err := d.serveNetwork(ctx, g); err != nil {
		return err
	}
	if err := d.recordLifecycle("started", d.rules.Policy()); err != nil {
		return err
	}
	d.startSinks()
	if err := d.serveSSH(ctx, g); err != nil {
		return err
	}
	if err := d.tellWebhooks(ctx, g); err != nil {
		return err
	}
	if err := d.serveAPI(ctx, g); err != nil {
		return err
	}
	d.servePods(ctx, g)
	g.Go(func() error { return d.watchdog(ctx) })
	g.Go(func() error { footprint.Find().Watch(ctx); return nil })
	d.notify(systemd.SdNotifyReady)
	d.log.Info("sallyport is up", "version", d.version, "policy", d.rules.Policy().Revision(), "rules", d.rules.Policy().Rules())
	return nil
}

func (d *daemon) end() error {
	d.notify(systemd.SdNotifyStopping)
	if d.node != nil {
		d.node.Taint(context.Background(), true)
	}
	// The process has these too, and closes them first of all.
	d.stopListening()
	var stops errgroup.Group
	stops.Go(d.stopSSH)
	errs := []error{d.supervisor.Stop(time.Duration(d.cfg.Gateway.Drain)), stops.Wait()}
	errs = append(errs, d.revokeLeases())
	if d.host != nil {
		errs = append(errs, d.drain())
	}
	if d.down.Load() && d.host != nil {
		errs = append(errs, d.shutdown())
	}
	ctx := context.Background()
	if by := d.downBy.Load(); by != nil {
		ctx = context.WithoutCancel(*by)
	}
	return errors.Join(append(errs, d.auditLog.Append(ctx, d.about("stopped", d.rules.Policy(), "")))...)
}

// stopListening closes this process's share of what the gateway listens on.
func (d *daemon) stopListening() {
	for _, l := range []*net.TCPListener{d.proxy, d.inbound, d.routed} {
		if l != nil {
			_ = l.Close()
		}
	}
	if n := d.network; n != nil {
		_, _, _ = n.steered.Close(), n.dnsUDP.Close(), n.dnsTCP.Close()
	}
}

func (d *daemon) status() api.Status {
	s := d.auditLog.Stats()
	st := api.Status{
		Version: d.version, PID: os.Getpid(), Revision: d.rules.Policy().Revision(), Rules: d.rules.Policy().Rules(),
		Events: s.Events, Syncs: s.Syncs, Gateway: api.Process(d.supervisor.Status()), Policy: d.loaded(), Seal: d.sealed(), Sinks: d.sinkStatus(), Leases: d.unrevoked(), Retention: d.retention.Status(),
		Observing: d.rules.Policy().Observing(time.Now()),
	}
	if d.certificate != nil {
		st.Fingerprint = api.Fingerprint(*d.certificate)
	}
	if d.ssh != nil {
		st.SSH = (*api.SSH)(d.ssh.Status())
	}
	if d.node != nil {
		st.Node = &api.Node{Name: d.cfg.Pods.Node, Cluster: d.cfg.Pods.Cluster, Tainted: d.node.Tainted()}
	}
	if d.sandboxes != nil {
		st.Sandboxes = len(d.sandboxes.List())
	}
	return st
}

// notify tells systemd, where it has started us, what the daemon's state is
// (sd_notify(3)); elsewhere it does nothing.
func (d *daemon) notify(state string) {
	if _, err := systemd.SdNotify(false, state); err != nil {
		d.log.Warn("systemd cannot be told", "state", state, "error", err)
	}
}

// watchdog tells systemd that the daemon lives until ctx is done, where the unit
// has WatchdogSec: as long as it answers on its own socket, which shows that its
// locks are free and not only that a timer runs.
func (d *daemon) watchdog(ctx context.Context) error {
	within, err := systemd.SdWatchdogEnabled(true)
	if err != nil || within == 0 {
		return err
	}
	c := client.Unix(d.cfg.Socket())
	return periodic.Run(ctx, within/3, func(time.Time) {
		asked, cancel := context.WithTimeout(ctx, within/3)
		defer cancel()
		if _, err := api.GetStatus.Do(asked, c, client.None{}); err == nil {
			d.notify(systemd.SdNotifyWatchdog)
		} else if ctx.Err() == nil {
			d.log.Error("the daemon does not answer itself, and will be restarted if that goes on", "error", err)
		}
	})
}
