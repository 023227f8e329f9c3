package engine_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"sallyport/internal/test/must"
	"sallyport/policy"
	"sallyport/policy/engine"
	"sallyport/policy/finding"
	"sallyport/policy/validate"
)

// TestUselessRulesAreUseless removes each rule that is reported as shadowed or
// repeated, and holds that no request is decided otherwise.
func TestUselessRulesAreUseless(t *testing.T) {
	dice := rand.New(rand.NewPCG(3, 4))
	pick := func(list ...string) string { return list[dice.IntN(len(list))] }
	some := func(lists ...[]string) []string { return lists[dice.IntN(len(lists))] }
	hosts := []string{"a.example.com", "b.example.com", "a.b.example.com"}
	random := func() policy.Document {
		var doc policy.Document
		for i := range 2 + dice.IntN(4) {
			e := policy.EgressRule{
				Name:        fmt.Sprintf("r%d", i),
				Destination: pick("a.example.com", "*.example.com", "*.b.example.com", "b.example.com:443"),
				Methods:     some(nil, nil, []string{"GET"}, []string{"GET", "PUT"}),
				Paths:       some(nil, nil, []string{"/a/**"}, []string{"/a/*"}, []string{"/**"}),
				Action:      policy.Action(pick("", "", "deny", "approve", "tunnel")),
				Plain:       dice.IntN(4) == 0,
			}
			if !strings.Contains(e.Destination, ":") && dice.IntN(3) == 0 {
				e.Ports = []uint16{443}
			}
			if e.Action == policy.Tunnel {
				e.Methods, e.Paths = nil, nil
			}
			switch dice.IntN(4) {
			case 0:
				e.Sandboxes.Names = []string{"x"}
			case 1:
				e.Sandboxes.Tags = map[string]string{"team": "a"}
			}
			doc.Egress = append(doc.Egress, e)
		}
		if dice.IntN(3) == 0 {
			doc.Credentials = []policy.Credential{{Name: "key"}}
			doc.EgressAuth = []policy.EgressAuthRule{{Name: "auth", Destination: "a.example.com", AuthRef: "key", Methods: some(nil, []string{"GET"})}}
		}
		return doc
	}
	var inputs []policy.Input
	for _, host := range hosts {
		for _, sandbox := range []policy.Sandbox{{Name: "x"}, {Name: "y", Tags: map[string]string{"team": "a"}}, {Name: "x", Tags: map[string]string{"team": "a"}}, {Name: "z"}} {
			for _, port := range []uint16{443, 80} {
				to := policy.Destination{Host: host, Port: port}
				inputs = append(inputs, policy.Input{Phase: policy.PhaseConnect, Sandbox: sandbox, Destination: to, Protocol: policy.ProtocolOther})
				for _, method := range []string{"GET", "PUT"} {
					for _, path := range []string{"/", "/a/b", "/a/b/c"} {
						in := policy.Input{Phase: policy.PhaseRequest, Sandbox: sandbox, Destination: to, Protocol: policy.ProtocolTLS, Request: &policy.Request{Method: method, Scheme: "https", Path: path, Size: -1}}
						inputs = append(inputs, in)
					}
				}
			}
		}
	}
	removed := map[finding.Kind]int{}
	for range 300 {
		doc := random()
		findings := validate.Document(doc)
		if finding.JoinErrors(findings) != nil {
			continue
		}
		for _, f := range findings {
			var i int
			if n, _ := fmt.Sscanf(f.Path, "egress[%d]", &i); n != 1 || f.Kind != finding.Shadowed && f.Kind != finding.Repeated {
				continue
			}
			removed[f.Kind]++
			without := doc
			without.Egress = slices.Delete(slices.Clone(doc.Egress), i, i+1)
			with, err := engine.Compile(t.Context(), doc, engine.Options{})
			must.OK(t, err)
			other, err := engine.Compile(t.Context(), without, engine.Options{})
			must.OK(t, err)
			for _, in := range inputs {
				a, b := with.Decide(t.Context(), in), other.Decide(t.Context(), in)
				if a.Action != b.Action {
					t.Fatalf("%v: with it %v is %s, without it %s\n%+v", f, in, a.Action, b.Action, doc.Egress)
				}
			}
		}
	}
	if removed[finding.Shadowed] < 20 || removed[finding.Repeated] < 20 {
		t.Errorf("too few rules were removed: %v", removed)
	}
}
