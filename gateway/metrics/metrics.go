// Package metrics has the counters of the gateway's process, for Prometheus.
package metrics

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sallyport/audit"
	"sallyport/policy"
	"sallyport/policy/limit"
)

// Metrics has labels from closed sets only: no host, path or sandbox.
type Metrics struct {
	Connections     prometheus.Gauge
	decisions       *prometheus.CounterVec // phase, action
	responses       [6]prometheus.Counter  // by class of status, the first without one
	duration        prometheus.Histogram   // seconds
	auditFailures   prometheus.Counter
	Unevaluated     prometheus.Counter
	Aborted         prometheus.Counter
	Handshakes      prometheus.Counter
	Unauthenticated prometheus.Counter
	Scrubbed        prometheus.Counter
	Forgotten       prometheus.Counter
	Strays          prometheus.Counter
	Revoked         prometheus.Counter
	Held            prometheus.Gauge
	Bodies          prometheus.Gauge // bytes
	Crowded         prometheus.Counter
	Limited         prometheus.Counter
	tokens          *prometheus.CounterVec // direction, source
	cost            prometheus.Counter
}

// New registers the counters.
func New(r prometheus.Registerer) (*Metrics, error) {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "sallyport_gateway_" + name, Help: help})
	}
	m := &Metrics{
		Connections: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "sallyport_gateway_connections", Help: "Connections of sandboxes that are open.",
		}),
		Held: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "sallyport_gateway_held", Help: "Requests and connections that wait for an operator.",
		}),
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sallyport_gateway_decisions_total", Help: "Decisions by phase and action.",
		}, []string{"phase", "action"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "sallyport_gateway_request_seconds", Help: "Time from an allowed request's head to its end.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 4, 10),
		}),
		auditFailures:   counter("audit_failures_total", "Events that could not be written or queued."),
		Unevaluated:     counter("unevaluated_total", "Decisions that the policy failed to make; each was a denial."),
		Aborted:         counter("aborted_connections_total", "Connections that ended or stalled before they said what they wanted."),
		Handshakes:      counter("handshake_failures_total", "TLS handshakes that sandboxes did not finish."),
		Unauthenticated: counter("unauthenticated_total", "Requests to the explicit proxy with a wrong name or token."),
		tokens: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sallyport_gateway_tokens_total", Help: "Tokens of LLM APIs that limits have counted, by direction (in, out) and source (reported, estimated).",
		}, []string{"direction", "source"}),
		cost:      counter("cost_total", "What these tokens cost, where a limit bounds that, in the currency of the prices."),
		Limited:   counter("limited_total", "Requests and tunnels that a limit refused or broke off."),
		Scrubbed:  counter("scrubbed_secrets_total", "Occurrences of an injected credential in responses, each overwritten."),
		Forgotten: counter("forgotten_secrets_total", "Values that are no longer looked for, since too many were injected for their sandbox."),
		Strays:    counter("stray_secrets_total", "Responses, and messages of WebSockets, that held an injected credential which their host was never sent."),
		Revoked:   counter("revoked_total", "Connections, tunnels and requests that were ended because the policy no longer allows them."),
		Bodies: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "sallyport_gateway_held_body_bytes", Help: "Room for request bodies that the policy has to see and for large heads, in bytes.",
		}),
		Crowded: counter("crowded_bodies_total", "Requests and answers that were refused because too many such bodies or large heads were under way."),
	}
	responses := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sallyport_gateway_responses_total", Help: "Responses to allowed requests by class of status.",
	}, []string{"class"})
	for i, class := range [len(m.responses)]string{"none", "1xx", "2xx", "3xx", "4xx", "5xx"} {
		m.responses[i] = responses.WithLabelValues(class)
	}
	var errs []error
	for _, c := range []prometheus.Collector{
		m.Connections, m.decisions, responses, m.duration, m.auditFailures, m.Unevaluated, m.Aborted, m.Handshakes, m.Unauthenticated, m.Scrubbed, m.Forgotten, m.Strays, m.Revoked, m.Bodies, m.Crowded, m.Limited, m.Held, m.tokens, m.cost,
	} {
		errs = append(errs, r.Register(c))
	}
	return m, errors.Join(errs...)
}

// Decided counts a decision. A policy's action is one of four whatever its Rego says.
func (m *Metrics) Decided(p policy.Phase, d policy.Decision) {
	action := policy.Deny
	switch d.Action {
	case policy.Allow, policy.Tunnel, policy.Approve:
		action = d.Action
	}
	m.decisions.WithLabelValues(string(p), string(action)).Inc()
}

// Charged counts what a limit has.
func (m *Metrics) Charged(t *audit.Tokens, cost limit.Money) {
	source := "reported"
	if t.Estimated {
		source = "estimated"
	}
	m.tokens.WithLabelValues("in", source).Add(float64(t.In))
	m.tokens.WithLabelValues("out", source).Add(float64(t.Out))
	m.cost.Add(float64(cost) / 1e9)
}

// Unrecorded counts an event that could not be written or queued.
func (m *Metrics) Unrecorded() { m.auditFailures.Inc() }

// Finished counts the end of an allowed request; status 0 is one without an answer.
func (m *Metrics) Finished(status int, took time.Duration) {
	class := status / 100
	if class < 1 || class >= len(m.responses) {
		class = 0
	}
	m.responses[class].Inc()
	m.duration.Observe(took.Seconds())
}
