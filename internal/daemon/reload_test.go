package daemon

import (
	"slices"
	"testing"

	"sallyport/internal/test/must"
	"sallyport/policy"
	"sallyport/policy/engine"
	"sallyport/sandbox"
)

// A sandbox that rules begin to select by the name it had before is told of, whosever it
// is, and none that they have selected all along.
func TestSelectedAnew(t *testing.T) {
	compile := func(names ...string) *engine.Policy {
		p, err := engine.Compile(t.Context(), policy.Document{Egress: []policy.EgressRule{{
			Destination: "a.example.com", Sandboxes: policy.Selector{Names: names},
		}}}, engine.Options{})
		must.OK(t, err)
		return p
	}
	there := []sandbox.Info{{Name: "box"}, {Name: "build"}, {Name: "deploy", Spec: sandbox.Spec{Owner: "acme"}}, {Name: "prod"}}
	before, now := compile("build", "other"), compile("build", "deploy", "prod", "absent")
	if got, want := selectedAnew(before, now, there), []string{"acme/deploy", "prod"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := selectedAnew(now, now, there); len(got) > 0 {
		t.Errorf("selected all along: %q", got)
	}
}
