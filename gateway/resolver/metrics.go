package resolver

import "github.com/prometheus/client_golang/prometheus"

// outcome is what became of a question, a closed set.
type outcome string

const (
	outcomeSynthetic   outcome = "synthetic"
	outcomeRefused     outcome = "refused"
	outcomeEmpty       outcome = "empty" // no data of that type
	outcomeLocal       outcome = "local"
	outcomeLimited     outcome = "limited"
	outcomeMalformed   outcome = "malformed"
	outcomeUnsupported outcome = "unsupported"
	outcomeUnknown     outcome = "unknown" // not from a sandbox, or too many connections
)

type metrics struct {
	queries *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{queries: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sallyport_dns_queries_total",
		Help: "Questions to the sandboxes' resolver by outcome.",
	}, []string{"outcome"})}
	if r != nil {
		r.MustRegister(m.queries)
	}
	return m
}

func (m *metrics) count(o outcome) { m.queries.WithLabelValues(string(o)).Inc() }
