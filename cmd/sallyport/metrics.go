package main

import (
	"github.com/prometheus/client_golang/prometheus"

	"sallyport/audit"
	"sallyport/sandbox/datapath"
)

// trailMetrics are read from the log when they are asked for.
func trailMetrics(l interface{ Stats() audit.Stats }) []prometheus.Collector {
	counter := func(name, help string, get func(audit.Stats) uint64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: "sallyport", Subsystem: "audit", Name: name, Help: help},
			func() float64 { return float64(get(l.Stats())) })
	}
	return []prometheus.Collector{
		counter("events_total", "Events that are on stable storage.", func(s audit.Stats) uint64 { return s.Events }),
		counter("syncs_total", "Data syncs.", func(s audit.Stats) uint64 { return s.Syncs }),
		counter("failures_total", "Groups of events that could not be made durable.", func(s audit.Stats) uint64 { return s.Failures }),
		counter("dropped_total", "Events that a full queue refused.", func(s audit.Stats) uint64 { return s.Dropped }),
	}
}

var (
	passedPackets = prometheus.NewDesc("sallyport_datapath_passed_packets_total", "Frames that the datapath let pass.", []string{"where"}, nil)
	passedBytes   = prometheus.NewDesc("sallyport_datapath_passed_bytes_total", "Bytes of the frames that the datapath let pass.", []string{"where"}, nil)
	dropped       = prometheus.NewDesc("sallyport_datapath_dropped_packets_total", "Frames that the datapath dropped.", []string{"reason"}, nil)
)

// guardMetrics reads the datapath's counters when they are asked for.
type guardMetrics struct{ guard *datapath.Datapath }

func (guardMetrics) Describe(to chan<- *prometheus.Desc) {
	to <- passedPackets
	to <- passedBytes
	to <- dropped
}

func (g guardMetrics) Collect(to chan<- prometheus.Metric) {
	c, err := g.guard.Counters()
	if err != nil {
		to <- prometheus.NewInvalidMetric(dropped, err)
		return
	}
	for where, t := range map[string]datapath.Traffic{"sent": c.Sent, "accepted": c.Accepted, "delivered": c.Delivered, "answered": c.Answered} {
		to <- prometheus.MustNewConstMetric(passedPackets, prometheus.CounterValue, float64(t.Packets), where)
		to <- prometheus.MustNewConstMetric(passedBytes, prometheus.CounterValue, float64(t.Bytes), where)
	}
	for reason, t := range c.Dropped {
		to <- prometheus.MustNewConstMetric(dropped, prometheus.CounterValue, float64(t.Packets), reason.String())
	}
}
