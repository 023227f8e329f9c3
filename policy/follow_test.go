package policy_test

import (
	"testing"

	"sallyport/policy"
)

// Whoever follows an engine is told when the new policy decides already.
func TestFollow(t *testing.T) {
	first, err := policy.Compile(t.Context(), policy.Document{}, policy.Options{})
	if err != nil {
		t.Fatal(err)
	}
	second, err := policy.Compile(t.Context(), policy.Document{Egress: []policy.EgressRule{{Destination: "api.example.com"}}}, policy.Options{})
	if err != nil {
		t.Fatal(err)
	}
	e := policy.NewEngine(first)
	var told []string
	e.Follow(func() { told = append(told, e.Revision()) })
	if e.Revision() != first.Revision() {
		t.Errorf("revision %s", e.Revision())
	}
	e.Swap(second)
	if len(told) != 1 || told[0] != second.Revision() {
		t.Errorf("told %q, want %q", told, second.Revision())
	}
	if r := new(policy.Engine).Revision(); r != "" {
		t.Errorf("an empty engine has the revision %q", r)
	}
}
