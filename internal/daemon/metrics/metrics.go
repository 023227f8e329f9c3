// Package metrics serves the daemon's metrics to Prometheus, and makes them of what the
// daemon's parts say of themselves when they are asked.
//
// Labels are from closed sets, and the names of sinks: none is a host, a path or a sandbox.
package metrics

import (
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
)

// every is how often the metrics are gathered anew: however many ask, the daemon and the
// gateway's process gather once in that time.
const every = time.Second / 10

// Handler serves what is gathered. It answers only where Host is an address, localhost,
// this host's own name or the name in listen. Any other name is one that somebody else has
// pointed here: a web page could read what is answered, as one of its own origin (DNS
// rebinding).
func Handler(from prometheus.Gatherer, listen string) http.Handler {
	own, _ := os.Hostname()
	configured, _, _ := net.SplitHostPort(listen)
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(&gathered{from: from}, promhttp.HandlerOpts{
		ErrorHandling: promhttp.ContinueOnError, // the process may end at any time
	}))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
		host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
		_, err := netip.ParseAddr(host)
		known := err == nil || strings.EqualFold(host, "localhost") || own != "" && strings.EqualFold(host, own) || configured != "" && strings.EqualFold(host, configured)
		if !known {
			http.Error(w, "metrics are not served under this Host: use an address or this host's own name, or write the name into metrics.listen", http.StatusMisdirectedRequest)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// gathered keeps what was gathered for a moment.
type gathered struct {
	from prometheus.Gatherer

	mu   sync.Mutex
	at   time.Time
	last []*dto.MetricFamily
	err  error
}

func (g *gathered) Gather() ([]*dto.MetricFamily, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if time.Since(g.at) > every {
		g.last, g.err = g.from.Gather()
		g.at = time.Now()
	}
	return g.last, g.err
}

// Gauge is read when it is asked for.
func Gauge(name, help string, value func() float64) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "sallyport_" + name, Help: help}, value)
}

// Counter is read when it is asked for.
func Counter(name, help string, labels prometheus.Labels, value func() uint64) prometheus.Collector {
	return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "sallyport_" + name, Help: help, ConstLabels: labels},
		func() float64 { return float64(value()) })
}

// Truth is 1 or 0.
func Truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// Unix is a time in seconds since 1970, 0 without one.
func Unix(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}
