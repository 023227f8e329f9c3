package engine_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"sallyport/policy"
	"sallyport/policy/engine"
)

// TestInherit: a fork has a credential where the rule says so, and what its parent
// has is denied to it, whatever else allows it.
func TestInherit(t *testing.T) {
	until := time.Now().Add(time.Hour)
	doc := policy.Document{
		Credentials: []policy.Credential{{Name: "key"}, {Name: "other"}},
		Egress: []policy.EgressRule{
			{Name: "docs", Destination: "docs.example.com"},
			{Name: "wide", Destination: "*.example.com"},
			{Name: "asked", Destination: "asked.example.com", Action: policy.Approve},
		},
		EgressAuth: []policy.EgressAuthRule{
			{Name: "own", Destination: "own.example.com", AuthRef: "key"},
			{Name: "passed-on", Destination: "shared.example.com", AuthRef: "key", Inherit: true},
			{Name: "asked-with", Destination: "asked.example.com", AuthRef: "key"},
			{Name: "forks", Destination: "forks.example.com", AuthRef: "other", Inherit: true, Sandboxes: policy.Selector{Tags: map[string]string{policy.TagFork: "true"}}},
		},
		Observe: []policy.Observation{{Sandboxes: policy.Selector{Names: []string{"watched"}}, Until: until}},
	}
	p := compiled(t, doc)
	for _, tt := range []struct {
		host         string
		parent, fork policy.Action
	}{
		{"docs.example.com", "allow", "allow"},
		{"own.example.com", "allow", "deny"},
		{"shared.example.com", "allow", "allow"},
		{"asked.example.com", "approve", "deny"},
		{"forks.example.com", "allow", "allow"}, // without its credential to the parent: the wide rule's
	} {
		for _, name := range []string{"a", "watched"} {
			parent := by(name, request("GET", tt.host, "/"))
			parent.Sandbox.Tags = map[string]string{"team": "red"}
			fork := by(name, request("GET", tt.host, "/"))
			fork.Sandbox.Tags = map[string]string{"team": "red", policy.TagFork: "true"}
			want := tt.parent
			if name == "watched" && want == "approve" {
				want = "allow"
			}
			if d := p.Decide(t.Context(), parent); d.Action != want {
				t.Errorf("%s, of the parent: %s by %s, want %s", tt.host, d.Action, d.Rule, want)
			}
			d := p.Decide(t.Context(), fork)
			if d.Action != tt.fork {
				t.Errorf("%s, of the fork %s: %s by %s %s, want %s", tt.host, name, d.Action, d.RuleType, d.Rule, tt.fork)
			}
			if d.Action == policy.Deny && (len(d.Inject) > 0 || !strings.Contains(d.Reason, "inherit: true")) {
				t.Errorf("%s, of the fork: %+v", tt.host, d)
			}
		}
	}
	// Before there is a request too, so that nothing of it leaves.
	in := policy.Input{Phase: policy.PhaseConnect, Destination: policy.Destination{Host: "own.example.com", Port: 443}, Protocol: policy.ProtocolTLS}
	in.Sandbox.Tags = map[string]string{policy.TagFork: ""}
	if d := p.Decide(t.Context(), in); d.Action != policy.Deny {
		t.Errorf("connecting: %s", d.Action)
	}
	e := p.Explain(t.Context(), in)
	if len(e.Near) == 0 || !strings.Contains(strings.Join(e.Near[0].Failed, " ")+strings.Join(e.Near[len(e.Near)-1].Failed, " "), "fork") {
		t.Errorf("explained as %+v", e.Near)
	}
}

// A sandbox and all forks of it, of forks too, have one counter of a limit: who may
// fork cannot make room by that.
func TestForksShareLimits(t *testing.T) {
	p := compile(t, `
egress: [{destination: api.example.com}]
limits:
- {name: each, every: 1h, requests: 10}
- {name: at-once, per: sandbox, concurrent: 2}
`, engine.Options{})
	in := request("GET", "api.example.com", "/")
	want := applied(p.Decide(t.Context(), in))
	for _, id := range []string{"child", "grandchild"} {
		fork := in
		fork.Sandbox.ID, fork.Sandbox.Name = id, id
		fork.Sandbox.Tags = map[string]string{policy.TagFork: "true", policy.TagLineage: in.Sandbox.ID}
		if got := applied(p.Decide(t.Context(), fork)); !slices.Equal(got, want) {
			t.Errorf("%s has %q, want %q as the first", id, got, want)
		}
	}
	other := in
	other.Sandbox.ID = "other"
	if got := applied(p.Decide(t.Context(), other)); slices.Equal(got, want) {
		t.Errorf("another sandbox has the same: %q", got)
	}
}
