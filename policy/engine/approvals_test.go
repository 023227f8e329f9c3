package engine_test

import (
	"strings"
	"testing"
	"time"

	"sallyport/internal/test/must"
	"sallyport/policy"
	"sallyport/policy/engine"
)

// A decision that needs approval says how it waits; what is left out is filled
// in, and what cannot be is refused with what to write.
func TestApprovals(t *testing.T) {
	ask := policy.Document{Egress: []policy.EgressRule{{Destination: "pay.example.com", Action: policy.Approve}}}
	for _, tt := range []struct {
		name string
		in   policy.Approvals
		want policy.Approvals
		says string
	}{
		{"defaults", policy.Approvals{}, policy.Approvals{Answer: "hold", Timeout: policy.Duration(5 * time.Minute), Body: 1 << 20}, ""},
		{"all", policy.Approvals{Answer: "poll", Timeout: policy.Duration(time.Second), Body: 16 << 20}, policy.Approvals{Answer: "poll", Timeout: policy.Duration(time.Second), Body: 16 << 20}, ""},
		{"answer", policy.Approvals{Answer: "holt"}, policy.Approvals{}, `approvals.answer: "holt" is neither hold nor poll; did you mean hold?`},
		{"short", policy.Approvals{Timeout: 1}, policy.Approvals{}, "approvals.timeout: "},
		{"long", policy.Approvals{Timeout: policy.Duration(2 * time.Hour)}, policy.Approvals{}, "approvals.timeout: 2h0m0s is not from 1s to 1h"},
		{"large", policy.Approvals{Body: 17 << 20}, policy.Approvals{}, "approvals.body: 17MiB is more than 16MiB"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			doc := ask
			doc.Approvals = tt.in
			p, err := engine.Compile(t.Context(), doc, engine.Options{})
			if tt.says != "" {
				if err == nil || !strings.Contains(err.Error(), tt.says) {
					t.Errorf("got %v, want %s", err, tt.says)
				}
				return
			}
			must.OK(t, err)
			in := policy.Input{
				Phase: policy.PhaseRequest, Destination: policy.Destination{Host: "pay.example.com", Port: 443}, Protocol: policy.ProtocolTLS,
				Request: &policy.Request{Method: "POST", Scheme: "https", Path: "/", Size: -1},
			}
			d := p.Decide(t.Context(), in)
			if d.Action != policy.Approve || d.Approvals == nil || *d.Approvals != tt.want {
				t.Errorf("got %s %+v, want %+v", d.Action, d.Approvals, tt.want)
			}
		})
	}
}
