package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sallyport/audit/auditlog"
	"sallyport/audit/retention"
	"sallyport/audit/sink"
	"sallyport/audit/tree"
)

// Log is what is written of the audit log.
func Log(stats func() auditlog.Stats) []prometheus.Collector {
	return []prometheus.Collector{
		Counter("audit_events_total", "Events that are on stable storage.", nil, func() uint64 { return stats().Events }),
		Counter("audit_syncs_total", "Data syncs.", nil, func() uint64 { return stats().Syncs }),
		Counter("audit_failures_total", "Groups of events that could not be made durable.", nil, func() uint64 { return stats().Failures }),
		Counter("audit_dropped_total", "Events that a full queue refused.", nil, func() uint64 { return stats().Dropped }),
	}
}

// Seal is how the audit log is sealed.
func Seal(status func() tree.Status) []prometheus.Collector {
	return []prometheus.Collector{
		Gauge("audit_tree_size", "Records in the audit log's tree.", func() float64 { return float64(status().Size) }),
		Gauge("audit_unanchored_records", "Records on stable storage that no checkpoint covers.", func() float64 { return float64(status().Unanchored) }),
		Gauge("audit_checkpoint_age_seconds", "Time since the newest checkpoint was signed; -1 if there is none.", func() float64 {
			at := status().Checkpoint
			if at.IsZero() {
				return -1
			}
			return time.Since(at).Seconds()
		}),
		Gauge("audit_sealing_failing", "1 while records are not sealed since that fails, else 0.", func() float64 { return Truth(status().Failure != "") }),
	}
}

// Retention is of the last look at the log.
func Retention(status func() retention.Status) []prometheus.Collector {
	return []prometheus.Collector{
		Gauge("audit_segments", "Segments of the audit log.", func() float64 { return float64(status().Segments) }),
		Gauge("audit_bytes", "Bytes that segments of the audit log take on disk.", func() float64 { return float64(status().Bytes) }),
		Gauge("audit_oldest_record_time_seconds", "When the oldest record of the audit log was written, in Unix time; 0 if there is none.", func() float64 { return Unix(status().Since) }),
		Gauge("audit_legal_holds", "Legal holds in force.", func() float64 { return float64(len(status().Holds)) }),
		Gauge("audit_held_bytes", "Bytes that would be deleted but for legal holds.", func() float64 { return float64(status().Held) }),
		Gauge("audit_unshipped_bytes", "Bytes that would be deleted but for a sink that lacks them.", func() float64 { return float64(status().Waiting) }),
		Gauge("audit_retention_failing", "1 while segments cannot be compressed or deleted, else 0.", func() float64 { return Truth(status().Failure != "") }),
		Counter("audit_deleted_records_total", "Records that were deleted.", nil, func() uint64 { return status().Deleted }),
	}
}

// sinkMetrics are the metrics of each sink.
var sinkMetrics = []struct {
	*prometheus.Desc
	kind  prometheus.ValueType
	value func(sink.Status) float64
}{
	{ofSink("sent_records_total", "Records that a sink's receiver has acknowledged."), prometheus.CounterValue, func(s sink.Status) float64 { return float64(s.Sent) }},
	{ofSink("refused_records_total", "Records that a sink's receiver refused for good."), prometheus.CounterValue, func(s sink.Status) float64 { return float64(s.Refused) }},
	{ofSink("lost_records_total", "Records that the log lost before a sink had them."), prometheus.CounterValue, func(s sink.Status) float64 { return float64(s.Lost) }},
	{ofSink("retries_total", "Attempts that failed."), prometheus.CounterValue, func(s sink.Status) float64 { return float64(s.Retries) }},
	{ofSink("waiting_records", "Records that wait for a sink."), prometheus.GaugeValue, func(s sink.Status) float64 { return float64(s.Waiting) }},
	{ofSink("waiting_bytes", "Bytes of the log that wait for a sink."), prometheus.GaugeValue, func(s sink.Status) float64 { return float64(s.WaitingBytes) }},
	{ofSink("full", "1 while more waits for a sink than its spool may hold, else 0."), prometheus.GaugeValue, func(s sink.Status) float64 { return Truth(s.Full) }},
	{ofSink("away_seconds", "Time since a sink's receiver began to take nothing, 0 while it takes records."), prometheus.GaugeValue, func(s sink.Status) float64 {
		if s.Away.IsZero() {
			return 0
		}
		return time.Since(s.Away).Seconds()
	}},
}

func ofSink(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("sallyport_audit_sink_"+name, help, []string{"sink"}, nil)
}

// Sinks are the sinks of the audit log.
type Sinks struct{ Status func() []sink.Status }

// Describe implements prometheus.Collector.
func (Sinks) Describe(to chan<- *prometheus.Desc) {
	for _, m := range sinkMetrics {
		to <- m.Desc
	}
}

// Collect implements prometheus.Collector.
func (s Sinks) Collect(to chan<- prometheus.Metric) {
	for _, of := range s.Status() {
		for _, m := range sinkMetrics {
			to <- prometheus.MustNewConstMetric(m.Desc, m.kind, m.value(of), of.Name)
		}
	}
}
