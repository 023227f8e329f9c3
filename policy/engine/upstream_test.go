package engine_test

import (
	"strings"
	"testing"

	"sallyport/policy"
)

// TestUpstreamOfTheDestination: a rule without upstream reaches its destination as
// another rule for the same destination says.
func TestUpstreamOfTheDestination(t *testing.T) {
	p := under(t, `
credentials: [{name: key}]
egressAuth:
- {name: auth, destination: api.example.com, paths: ["/v1/**"], authRef: key, upstream: {addresses: [10.0.0.1]}}
egress:
- {name: ask, destination: api.example.com, paths: ["/v1/danger"], action: approve}
- {name: ask-all, destination: "*.example.com", paths: ["/v1/all"], action: approve}
- {name: wide, destination: "*.example.net", upstream: {addresses: [10.0.0.2]}}
- {name: narrow, destination: a.example.net}
- {name: team-a, destination: git.example.org, sandboxes: {tags: {team: a}}, upstream: {addresses: [10.0.0.3]}}
- {name: team-b, destination: git.example.org, sandboxes: {tags: {team: b}}, upstream: {addresses: [10.0.0.4]}}
- {name: all, destination: git.example.org, paths: ["/all"]}
- {name: port, destination: "ports.example.org:8443", upstream: {addresses: [10.0.0.5]}}
- {name: other-port, destination: "ports.example.org:443"}
`, `allow contains {"rule": "rego"} if input.destination.host == "git.example.org"`)
	team := func(name string, in policy.Input) policy.Input {
		in.Sandbox.Tags = map[string]string{"team": name}
		return in
	}
	for _, tt := range []struct {
		rule, want string
		in         policy.Input
	}{
		{"ask", "10.0.0.1", request("GET", "api.example.com", "/v1/danger")},
		{"auth", "10.0.0.1", request("GET", "api.example.com", "/v1/x")},
		{"ask-all", "10.0.0.1", request("GET", "api.example.com", "/v1/all")},
		{"ask-all", "", request("GET", "other.example.com", "/v1/all")},
		{"narrow", "", request("GET", "a.example.net", "/")}, // an exact rule says how the exact name is reached
		{"wide", "10.0.0.2", request("GET", "b.example.net", "/")},
		{"all", "10.0.0.3", team("a", request("GET", "git.example.org", "/all"))},
		{"all", "10.0.0.4", team("b", request("GET", "git.example.org", "/all"))},
		{"all", "", team("c", request("GET", "git.example.org", "/all"))},
		{"rego", "", team("c", request("GET", "git.example.org", "/rego"))},
		{"other-port", "", request("GET", "ports.example.org", "/")},
	} {
		d := p.Decide(t.Context(), tt.in)
		got := ""
		if d.Upstream != nil {
			got = strings.Join(d.Upstream.Addresses, " ")
		}
		if d.Rule != tt.rule || got != tt.want {
			t.Errorf("%s%s of %v: rule %q by way of %q, want %q by way of %q: %s",
				tt.in.Destination.Host, tt.in.Request.Path, tt.in.Sandbox.Tags, d.Rule, got, tt.rule, tt.want, d.Reason)
		}
	}
}
