package daemon

import (
	"iter"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sallyport/audit"
	"sallyport/audit/tree"
	"sallyport/internal/api"
)

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

// sealMetrics are read from the sealer when they are asked for.
func sealMetrics(s *tree.Sealer) []prometheus.Collector {
	gauge := func(name, help string, get func(tree.Status) float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "sallyport", Subsystem: "audit", Name: name, Help: help},
			func() float64 { return get(s.Status()) })
	}
	return []prometheus.Collector{
		gauge("tree_size", "Records in the audit log's tree.", func(s tree.Status) float64 { return float64(s.Size) }),
		gauge("unanchored_records", "Records on stable storage that no checkpoint covers.", func(s tree.Status) float64 { return float64(s.Unanchored) }),
		gauge("checkpoint_age_seconds", "Time since the newest checkpoint was signed; -1 if there is none.", func(s tree.Status) float64 {
			if s.Checkpoint.IsZero() {
				return -1
			}
			return time.Since(s.Checkpoint).Seconds()
		}),
		gauge("sealing_failing", "1 while records are not sealed since that fails, else 0.", func(s tree.Status) float64 { return truth(s.Failure != "") }),
	}
}

// withoutCheckpoints leaves out what comes every ten seconds and concerns nobody who waits
// for an event.
func withoutCheckpoints(all iter.Seq2[*audit.Event, error]) iter.Seq2[*audit.Event, error] {
	return func(yield func(*audit.Event, error) bool) {
		for e, err := range all {
			if e != nil && e.Unmapped.Sallyport.State == tree.State {
				continue
			}
			if !yield(e, err) {
				return
			}
		}
	}
}
