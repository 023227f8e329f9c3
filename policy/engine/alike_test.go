package engine_test

import (
	"testing"

	"sallyport/policy"
	"sallyport/policy/engine"
)

// TestDenyOfAlikePaths: what denies, or asks a person, is about what some server takes for
// the same path; what allows is not.
func TestDenyOfAlikePaths(t *testing.T) {
	p := compile(t, `
egress:
- {name: all, destination: deny.example.com}
- {name: no, destination: deny.example.com, action: deny, paths: ["/admin/keys", "/Ops/", "/k/**/x-y", "/t/*/"]}
- {name: every, destination: approve.example.com}
- {name: ask, destination: approve.example.com, action: approve, paths: ["/admin/keys", "/Ops/", "/k/**/x-y", "/t/*/"]}
- {name: some, destination: allow.example.com, paths: ["/admin/keys", "/Ops/", "/k/**/x-y", "/t/*/"]}
expose:
- {name: in, ports: [8000]}
- {name: out, action: deny, ports: [8000], paths: ["/admin/keys", "/Ops/", "/k/**/x-y", "/t/*/"]}
`, engine.Options{})
	for _, tt := range []struct {
		path        string
		exact, like bool
	}{
		{"/admin/keys", true, true},
		{"/ADMIN/Keys", false, true},
		{"/admin/keys/", false, true},
		{"/admin./keys", false, true},
		{"/admin /keys. .", false, true},
		{"/\uff41dmin/keys", false, true},
		{"/\uff21dmin/\u212aeys", false, true},
		{"/admin%2Fkeys", false, true}, // some server decodes it
		{"/admin/keys?x", false, true}, // some server ends it there
		{"/Ops/", true, true},
		{"/ops", false, true},
		{"/k/a/b/x-y", true, true},
		{"/k/a/b/X\uff0dY/", false, true},
		{"/t/a/", true, true},
		{"/t/a", false, false},
		{"/admin", false, false},
		{"/admin/key", false, false},
		{"/admin/keys/a", false, false},
		{"/admin/keysx", false, false},
		{"/adminx/keys", false, false},
		{"/a.dmin/keys", false, false},
	} {
		ask := func(host string) policy.Action {
			return p.Decide(t.Context(), policy.Input{Phase: policy.PhaseRequest, Sandbox: policy.Sandbox{Name: "demo"}, Destination: policy.Destination{Host: host, Port: 443},
				Protocol: policy.ProtocolTLS, Request: &policy.Request{Method: "GET", Scheme: "https", Path: tt.path}}).Action
		}
		is := func(yes bool, a, b policy.Action) policy.Action {
			if yes {
				return a
			}
			return b
		}
		if got, want := ask("deny.example.com"), is(tt.like, policy.Deny, policy.Allow); got != want {
			t.Errorf("%q under a deny: %s, want %s", tt.path, got, want)
		}
		if got, want := ask("approve.example.com"), is(tt.like, policy.Approve, policy.Allow); got != want {
			t.Errorf("%q under an approve: %s, want %s", tt.path, got, want)
		}
		if got, want := ask("allow.example.com"), is(tt.exact, policy.Allow, policy.Deny); got != want {
			t.Errorf("%q under an allow: %s, want %s", tt.path, got, want)
		}
		in := policy.Input{Phase: policy.PhaseInbound, Sandbox: policy.Sandbox{Name: "demo"}, Destination: policy.Destination{Host: "demo", Port: 8000},
			Protocol: policy.ProtocolHTTP, Request: &policy.Request{Method: "GET", Scheme: "http", Path: tt.path}}
		if got, want := p.Decide(t.Context(), in).Action, is(tt.like, policy.Deny, policy.Allow); got != want {
			t.Errorf("%q on the way in: %s, want %s", tt.path, got, want)
		}
	}
}
