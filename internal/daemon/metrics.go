package daemon

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"golang.org/x/sync/errgroup"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/internal/connlimit"
	"sallyport/sandbox/datapath"
)

func (d *daemon) serveMetrics(ctx context.Context, g *errgroup.Group) error {
	if d.cfg.Metrics.Listen == "off" {
		return nil
	}
	d.metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	d.metrics.MustRegister(trailMetrics(d.auditLog)...)
	d.metrics.MustRegister(sealMetrics(d.sealer)...)
	d.metrics.MustRegister(retentionMetrics(d.retention)...)
	d.metrics.MustRegister(d.supervisor.Metrics()...)
	d.metrics.MustRegister(d.loaderMetrics()...)
	d.metrics.MustRegister(sinkMetrics{d.sinks.Set})
	d.metrics.MustRegister(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{
		Namespace: "sallyport_gateway",
		PidFn:     func() (int, error) { return d.supervisor.Status().PID, nil },
	}))
	if d.network != nil {
		d.metrics.MustRegister(guardMetrics{d.network.guard})
	}
	l, err := d.listen("metrics", d.cfg.Metrics.Listen)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(&gathered{from: prometheus.Gatherers{d.metrics, d.supervisor}}, promhttp.HandlerOpts{
		ErrorHandling: promhttp.ContinueOnError, // the process may end at any time
	}))
	limit := connlimit.New(scrapersAll, scrapersEach, d.crowded("metrics"))
	serveHTTP(ctx, g, limit.Listener(l), &http.Server{
		ReadHeaderTimeout: scrapeWithin, ReadTimeout: scrapeWithin, WriteTimeout: scrapeWithin, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10,
		Handler: named(d.cfg.Metrics.Listen, mux), ErrorLog: slog.NewLogLogger(d.log.Handler(), slog.LevelDebug),
	})
	return nil
}

// Bounds of connections to the metrics listener, which asks for no key.
const (
	scrapersAll  = 512
	scrapersEach = 256              // of one source
	scrapeWithin = 10 * time.Second // a request, and likewise its answer
	scrapeEvery  = time.Second / 10 // the metrics are gathered anew
)

// named has h answer only where Host is an address, localhost, this host's own name or
// the name in listen. Any other name is one that somebody else has pointed here: a web
// page could read what is answered, as one of its own origin (DNS rebinding).
func named(listen string, h http.Handler) http.Handler {
	own, _ := os.Hostname()
	configured, _, _ := net.SplitHostPort(listen)
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
		h.ServeHTTP(w, r)
	})
}

// gathered keeps what was gathered for scrapeEvery: however many ask, the daemon and
// the gateway's process gather once in that time.
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
	if time.Since(g.at) > scrapeEvery {
		g.last, g.err = g.from.Gather()
		g.at = time.Now()
	}
	return g.last, g.err
}

// crowded records that a listener has more connections than it keeps which have not
// shown whose they are: the oldest of them begin to be closed.
func (d *daemon) crowded(listener string) func(source string) {
	return func(source string) {
		e := d.changed("listener/"+listener, "connections to the "+listener+" listener", "crowded")
		e.SeverityID = audit.SeverityMedium
		e.Detail = "too many of them have not shown whose they are: the oldest are closed. The last came from " + source
		if err := d.auditLog.Enqueue(e); err != nil {
			d.log.Error("an event was lost", "event", e.ID(), "error", err)
		}
	}
}

// trailMetrics are read from the log when they are asked for.
func trailMetrics(l interface{ Stats() auditlog.Stats }) []prometheus.Collector {
	counter := func(name, help string, get func(auditlog.Stats) uint64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: "sallyport", Subsystem: "audit", Name: name, Help: help},
			func() float64 { return float64(get(l.Stats())) })
	}
	return []prometheus.Collector{
		counter("events_total", "Events that are on stable storage.", func(s auditlog.Stats) uint64 { return s.Events }),
		counter("syncs_total", "Data syncs.", func(s auditlog.Stats) uint64 { return s.Syncs }),
		counter("failures_total", "Groups of events that could not be made durable.", func(s auditlog.Stats) uint64 { return s.Failures }),
		counter("dropped_total", "Events that a full queue refused.", func(s auditlog.Stats) uint64 { return s.Dropped }),
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

// truth is a metric's 1 or 0.
func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
