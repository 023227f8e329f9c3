package supervisor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"sallyport/gateway/workerapi"
	"sallyport/internal/ipc"
	"sallyport/internal/supervise"
)

// gatherWithin bounds how long a scrape waits for the process.
const gatherWithin = 2 * time.Second

// workerPrefixes begin the names of metrics that a worker may have; supervisorPrefix those
// among them that are the supervisor's.
var (
	workerPrefixes   = []string{workerapi.MetricsPrefix, "sallyport_dns_", "sallyport_upstream_"}
	supervisorPrefix = workerapi.MetricsPrefix + "process_"
)

// Gather implements prometheus.Gatherer with the worker's metrics, which start from zero
// with each worker. Without a worker there are none.
func (s *Supervisor) Gather() ([]*dto.MetricFamily, error) {
	peer := s.peer()
	if peer == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), gatherWithin)
	defer cancel()
	var got workerapi.GatherReply
	if err := peer.Call(ctx, workerapi.MethodGather, ipc.None{}, &got); err != nil {
		return nil, fmt.Errorf("asking the gateway's process for its metrics: %w", err)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(got.Text))
	if err != nil {
		return nil, fmt.Errorf("metrics of the gateway's process: %w", err)
	}
	var all []*dto.MetricFamily
	for name, f := range families {
		if strings.HasPrefix(name, supervisorPrefix) || !slices.ContainsFunc(workerPrefixes, func(p string) bool { return strings.HasPrefix(name, p) }) {
			continue
		}
		all = append(all, f)
	}
	slices.SortFunc(all, func(a, b *dto.MetricFamily) int { return strings.Compare(a.GetName(), b.GetName()) })
	return all, nil
}

// Metrics are the supervisor's own.
func (s *Supervisor) Metrics() []prometheus.Collector {
	gauge := func(name, help string, get func(supervise.Status) float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: supervisorPrefix + name, Help: help}, func() float64 { return get(s.Status()) })
	}
	return []prometheus.Collector{
		gauge("up", "1 while there is a process that serves.", func(s supervise.Status) float64 {
			if s.PID == 0 {
				return 0
			}
			return 1
		}),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: supervisorPrefix + "restarts_total", Help: "Processes that were started after another one's end."},
			func() float64 { return float64(s.Status().Restarts) }),
	}
}
