package daemon

import (
	"encoding/json"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"sallyport/gateway"
	"sallyport/gateway/supervisor"
	"sallyport/internal/daemon/metrics"
	"sallyport/internal/test/must"
)

var (
	described = regexp.MustCompile(`fqName: "([^"]+)".*constLabels: \{([^}]*)\}, variableLabels: \{([^}]*)\}`)
	metric    = regexp.MustCompile(`\bsallyport_[a-z_]+(?:\{([^}]*)\})?`)
	grouped   = regexp.MustCompile(`by \(([^)]*)\)`)
	label     = regexp.MustCompile(`([a-z_]+)(?:=|!|$)`)
)

// Each metric of the dashboard in examples is one of the product's, with its labels.
func TestDashboard(t *testing.T) {
	known := metricLabels(t)
	b, err := os.ReadFile("../../examples/siem/grafana/sallyport.json")
	must.OK(t, err)
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	must.OK(t, json.Unmarshal(b, &dashboard))
	checked := 0
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			m := metric.FindStringSubmatch(target.Expr)
			if m == nil {
				t.Errorf("%s: no metric in %s", p.Title, target.Expr)
				continue
			}
			name, _, _ := strings.Cut(m[0], "{")
			labels, ok := known[strings.TrimSuffix(name, "_bucket")]
			if !ok {
				t.Errorf("%s: there is no metric %s", p.Title, name)
				continue
			}
			checked++
			used := strings.Split(m[1], ",")
			if by := grouped.FindStringSubmatch(target.Expr); by != nil {
				used = append(used, strings.Split(by[1], ", ")...)
			}
			if strings.HasSuffix(name, "_bucket") {
				labels = append(labels, "le")
			}
			for _, l := range used {
				l = label.FindStringSubmatch(l)[1]
				if l != "instance" && !slices.Contains(labels, l) { // Prometheus's own
					t.Errorf("%s: %s has no label %s", p.Title, name, l)
				}
			}
		}
	}
	if checked < 25 {
		t.Errorf("%d expressions", checked)
	}
}

// metricLabels are the labels of the metrics of the daemon and of the gateway.
func metricLabels(t *testing.T) map[string][]string {
	registry := prometheus.NewRegistry()
	type stubs struct {
		gateway.Decider
		gateway.Recorder
		gateway.Certificates
		gateway.Upstreams
		gateway.Broker
	}
	var s stubs
	if _, err := gateway.New(gateway.Options{Decider: s, Recorder: s, Certificates: s, Upstreams: s, Broker: s, Logger: slog.New(slog.DiscardHandler), Metrics: registry}); err != nil {
		t.Fatal(err)
	}
	all := []prometheus.Collector{registry, metrics.Datapath{}, metrics.Sinks{}}
	all = append(all, metrics.Log(nil)...)
	all = append(all, metrics.Seal(nil)...)
	all = append(all, (*supervisor.Supervisor)(nil).Metrics()...)
	all = append(all, new(daemon).loaderMetrics()...)
	known := map[string][]string{}
	for _, c := range all {
		to := make(chan *prometheus.Desc, 100)
		go func() { c.Describe(to); close(to) }()
		for d := range to {
			m := described.FindStringSubmatch(d.String())
			if m == nil {
				t.Fatal(d)
			}
			for _, l := range strings.Split(m[2]+","+m[3], ",") {
				l, _, _ = strings.Cut(l, "=")
				known[m[1]] = append(known[m[1]], l)
			}
		}
	}
	return known
}
