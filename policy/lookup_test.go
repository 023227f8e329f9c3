package policy

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/storage/inmem"
)

// TestLookupMatchesTestingRego holds that what Go prepares for a decision is what
// testing.rego derives for a team's tests.
func TestLookupMatchesTestingRego(t *testing.T) {
	doc := Document{Egress: []EgressRule{
		{Destination: "*.com", Name: "a"},
		{Destination: "*.example.com", Name: "b", Ports: []uint16{443, 8443}},
		{Destination: "api.example.com", Name: "c", Action: Deny},
		{Destination: "api.example.com", Name: "d", Sandboxes: Selector{Names: []string{"demo", "x"}}},
		{Destination: "api.example.com", Name: "e", Sandboxes: Selector{Tags: map[string]string{"team": "a", "env": "p"}}},
		{Destination: "api.example.com", Name: "f", Sandboxes: Selector{Names: []string{"demo"}, Tags: map[string]string{"team": "a"}}},
		{Destination: "10.0.0.0/8", Name: "g"},
		{Destination: "10.1.0.0/16", Name: "h", Ports: []uint16{22}},
		{Destination: "10.1.2.3", Name: "i"},
		{Destination: "2001:db8::/32", Name: "j"},
		{Destination: "2001:db8::1", Name: "k"},
	}}
	p, err := Compile(t.Context(), doc, Options{})
	if err != nil {
		t.Fatal(err)
	}
	data, err := p.data(&team{data: map[string]any{}})
	if err != nil {
		t.Fatal(err)
	}
	module, err := os.ReadFile("testing.rego")
	if err != nil {
		t.Fatal(err)
	}
	query, err := rego.New(
		rego.Query("data.sallyport.testing.complete(input).lookup"),
		rego.Module("testing.rego", string(module)),
		rego.Store(inmem.NewFromASTObject(data)),
		rego.GenerateJSON(func(t *ast.Term, _ *rego.EvalContext) (any, error) { return t.Value, nil }),
	).PrepareForEval(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p.team = true // so that the whole input is built
	sandboxes := []Sandbox{
		{Name: "demo", Tags: map[string]string{"team": "a"}},
		{Name: "y", Tags: map[string]string{"team": "a", "env": "p"}},
		{Name: "x"},
	}
	for _, host := range []string{"api.example.com", "x.api.example.com", "example.com", "com", "10.1.2.3", "10.1.9.9", "10.9.9.9", "2001:db8::1", "2001:db8::2", "203.0.113.1"} {
		for i, sandbox := range sandboxes {
			for _, in := range []Input{
				{Phase: PhaseDNS},
				{Phase: PhaseConnect, Protocol: ProtocolOther, Destination: Destination{Port: 22}},
				{Phase: PhaseRequest, Protocol: ProtocolTLS, Destination: Destination{Port: 443}, Request: &Request{Method: "GET", Scheme: "https", Path: "/x"}},
			} {
				in.Sandbox, in.Destination.Host = sandbox, host
				s, err := read(in)
				if err != nil {
					continue // an address is no name
				}
				value, err := p.value(s)
				if err != nil {
					t.Fatal(err)
				}
				result, err := query.Eval(context.Background(), rego.EvalParsedInput(value))
				if err != nil || len(result) != 1 {
					t.Fatalf("%s: %v, %v", host, result, err)
				}
				want := keySets(t, result[0].Expressions[0].Value.(ast.Value))
				got := keySets(t, p.lookupTerm(s).Value)
				if diff := cmp.Diff(got, want); diff != "" {
					t.Errorf("%s from sandbox %d in %s: %s", host, i, in.Phase, diff)
				}
			}
		}
	}
}

// keySets reads input.lookup. The order of keys of one destination says nothing.
func keySets(t *testing.T, v ast.Value) map[string]bool {
	t.Helper()
	o := v.(ast.Object)
	set := map[string]bool{
		"moment " + o.Get(keyMoment).String(): true,
		"line " + o.Get(keyLine).String():     true,
	}
	o.Get(keyKeys).Value.(*ast.Array).Foreach(func(k *ast.Term) { set[fmt.Sprint(k)] = true })
	return set
}
