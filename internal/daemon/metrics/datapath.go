package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"sallyport/sandbox/datapath"
)

var (
	passedPackets = prometheus.NewDesc("sallyport_datapath_passed_packets_total", "Frames that the datapath let pass.", []string{"where"}, nil)
	passedBytes   = prometheus.NewDesc("sallyport_datapath_passed_bytes_total", "Bytes of the frames that the datapath let pass.", []string{"where"}, nil)
	dropped       = prometheus.NewDesc("sallyport_datapath_dropped_packets_total", "Frames that the datapath dropped.", []string{"reason"}, nil)
)

// Datapath is the datapath's counters.
type Datapath struct{ Guard *datapath.Datapath }

// Describe implements prometheus.Collector.
func (Datapath) Describe(to chan<- *prometheus.Desc) {
	to <- passedPackets
	to <- passedBytes
	to <- dropped
}

// Collect implements prometheus.Collector.
func (g Datapath) Collect(to chan<- prometheus.Metric) {
	c, err := g.Guard.Counters()
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
