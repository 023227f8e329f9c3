package daemon

import (
	"context"
	"time"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/audit/retention"
	"sallyport/audit/tree"
	"sallyport/gateway/credential/exchange"
	"sallyport/gateway/credential/file"
	"sallyport/gateway/supervisor"
	"sallyport/internal/api"
	"sallyport/internal/config"
	"sallyport/internal/daemon/events"
	"sallyport/internal/seal"
	"sallyport/policy/engine"
)

func (d *daemon) openAuditLog(context.Context) error {
	log, err := supervisor.OpenAuditLog(d.cfg.AuditDir(), auditlog.Options{
		SegmentSize: d.cfg.Audit.SegmentSize, Cluster: d.cfg.Pods.Cluster, Node: d.cfg.Pods.Node, Logger: d.log,
	}, func() uint64 { return tree.Sealed(d.cfg.AuditDir()) })
	if err != nil {
		return err
	}
	d.auditLog = log
	d.onClose(log.Close)
	d.onClose(d.endSinks)
	if d.key, err = seal.Open(d.cfg.KeyFile, d.cfg.DataDir); err != nil {
		return err
	}
	d.events = &events.Reader{Dir: d.cfg.AuditDir(), Index: d.cfg.AuditIndex()}
	d.openSealer()
	d.openRetention()
	d.store, err = file.New(d.cfg.DataDir, d.key)
	d.logins = exchange.NewKeeper(logins{d})
	return err
}

// openSealer makes what signs checkpoints of the audit log. It is closed before the log,
// and after everything else that writes it, so that the last checkpoint covers that.
func (d *daemon) openSealer() {
	d.sealer = tree.NewSealer(tree.Options{
		Dir: d.cfg.AuditDir(), Log: d.auditLog, Key: d.key, Logger: d.log, Seen: d.auditLog.Seen, Settled: d.auditLog.Settle,
	})
	d.onClose(func() error {
		d.auditLog.Flush()
		return d.sealer.Close()
	})
}

// sealed is how the audit log is sealed.
func (d *daemon) sealed() *api.Seal {
	s := d.sealer.Status()
	return &api.Seal{
		Log: s.Log, Size: s.Size, Covered: s.Covered, Checkpoint: s.Checkpoint, Unanchored: s.Unanchored,
		Failure: s.Failure, Since: s.Since, Failures: s.Failures,
	}
}

// openRetention makes what compresses the audit log, and deletes what is not kept.
func (d *daemon) openRetention() {
	d.retention = retention.NewKeeper(retention.Options{
		Dir: d.cfg.AuditDir(), Log: d.auditLog, Covered: func() uint64 { return d.sealer.Status().Saved }, Sinks: shipped{d}, Logger: d.log,
	}, retentionPolicy(d.cfg))
}

func retentionPolicy(cfg *config.Config) retention.Policy {
	r := cfg.Audit.Retention
	return retention.Policy{Keep: time.Duration(r.Keep), Bytes: int64(r.Bytes), Plain: r.Compress != nil && !*r.Compress}
}

// shipped are the sinks, which are opened after the log.
type shipped struct{ d *daemon }

func (s shipped) Shipped() (last uint64, sink string) { return s.d.sinks.Shipped() }

// recordLifecycle records a change of the daemon's own state, with the policy it comes with.
func (d *daemon) recordLifecycle(state string, p *engine.Policy) error {
	return d.auditLog.Append(context.Background(), d.about(state, p, ""))
}

// record is for what is so whether it can be recorded or not.
func (d *daemon) record(e *audit.Event) {
	if err := d.auditLog.Append(context.Background(), e); err != nil {
		d.log.Error("an event was lost", "message", e.Message, "error", err)
	}
}

// enqueue records soon, or says in the log that an event was lost.
func (d *daemon) enqueue(e *audit.Event) {
	if err := d.auditLog.Enqueue(e); err != nil {
		d.log.Error("an event was lost", "message", e.Message, "error", err)
	}
}

// about is the event of a change of the daemon's own state.
func (d *daemon) about(state string, p *engine.Policy, detail string) *audit.Event {
	e := d.changed("sallyport", "sallyport", state)
	e.Policy = audit.Revision(p.Revision())
	e.Detail = detail
	return e
}

// changed is the event of a part of the daemon's that is in another state now.
func (d *daemon) changed(subject, what, state string) *audit.Event {
	return changed(subject, what, state, d.version)
}

func changed(subject, what, state, version string) *audit.Event {
	e := audit.Change(subject, state)
	e.Message = what + " " + state
	if e.App != nil {
		e.App.Version = version
	}
	return e
}
