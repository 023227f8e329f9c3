package engine_test

import (
	"testing"

	"sallyport/internal/test/must"
	"sallyport/policy"
	"sallyport/policy/engine"
)

// A follower of an engine is told when the new policy decides already.
func TestFollow(t *testing.T) {
	first, err := engine.Compile(t.Context(), policy.Document{}, engine.Options{})
	must.OK(t, err)
	second, err := engine.Compile(t.Context(), policy.Document{Egress: []policy.EgressRule{{Destination: "api.example.com"}}}, engine.Options{})
	must.OK(t, err)
	e := engine.NewEngine(first)
	var told []string
	e.OnSwap(func() { told = append(told, e.Revision()) })
	if e.Revision() != first.Revision() {
		t.Errorf("revision %s", e.Revision())
	}
	e.Swap(second)
	if len(told) != 1 || told[0] != second.Revision() {
		t.Errorf("told %q, want %q", told, second.Revision())
	}
	if r := new(engine.Engine).Revision(); r != "" {
		t.Errorf("an empty engine has the revision %q", r)
	}
}
