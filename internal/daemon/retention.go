package daemon

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sallyport/audit/retention"
	"sallyport/internal/config"
)

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

// retentionMetrics are of the last look at the log.
func retentionMetrics(k *retention.Keeper) []prometheus.Collector {
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "sallyport", Subsystem: "audit", Name: name, Help: help}
	}
	gauge := func(name, help string, get func(retention.Status) float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts(opts(name, help)), func() float64 { return get(k.Status()) })
	}
	return []prometheus.Collector{
		gauge("segments", "Segments of the audit log.", func(s retention.Status) float64 { return float64(s.Segments) }),
		gauge("bytes", "Bytes that segments of the audit log take on disk.", func(s retention.Status) float64 { return float64(s.Bytes) }),
		gauge("oldest_record_time_seconds", "When the oldest record of the audit log was written, in Unix time; 0 if there is none.", func(s retention.Status) float64 {
			if s.Since.IsZero() {
				return 0
			}
			return float64(s.Since.UnixMilli()) / 1000
		}),
		gauge("legal_holds", "Legal holds in force.", func(s retention.Status) float64 { return float64(len(s.Holds)) }),
		gauge("held_bytes", "Bytes that would be deleted but for legal holds.", func(s retention.Status) float64 { return float64(s.Held) }),
		gauge("unshipped_bytes", "Bytes that would be deleted but for a sink that lacks them.", func(s retention.Status) float64 { return float64(s.Waiting) }),
		gauge("retention_failing", "1 while segments cannot be compressed or deleted, else 0.", func(s retention.Status) float64 { return truth(s.Failure != "") }),
		prometheus.NewCounterFunc(prometheus.CounterOpts(opts("deleted_records_total", "Records that were deleted.")), func() float64 { return float64(k.Status().Deleted) }),
	}
}
