package gateway

import (
	"bytes"
	"context"
	"log/slog"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"sallyport/gateway/metrics"
	"sallyport/internal/test/must"
	"sallyport/policy"
	"sallyport/policy/engine"
)

// failing is a policy that cannot be evaluated.
type failing struct{}

func (failing) Decide(context.Context, policy.Input) policy.Decision {
	return policy.Decision{Action: policy.Allow, Reason: "see the log", Err: engine.ErrUndecided}
}

// A request that cannot be evaluated is denied, and is an error of the policy's only while
// somebody waits for it.
func TestDecisionThatNobodyWaitsFor(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		gone   bool
		reason string
		logged bool
	}{
		{"awaited", false, "see the log", true},
		{"client gone", true, "the sandbox went away", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, err := metrics.New(prometheus.NewRegistry())
			must.OK(t, err)
			var log bytes.Buffer
			g := &Gateway{Options: Options{Decider: failing{}, Logger: slog.New(slog.NewTextHandler(&log, nil))}, metrics: m}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if tt.gone {
				cancel()
			}
			d := g.decide(ctx, policy.Input{})
			if d.Action != policy.Deny || d.Reason != tt.reason {
				t.Errorf("got %s, %q", d.Action, d.Reason)
			}
			if logged := log.Len() > 0; logged != tt.logged {
				t.Errorf("logged %q", log.String())
			}
		})
	}
}
