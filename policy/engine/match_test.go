package engine

import (
	"context"
	"maps"
	"os"
	"slices"
	"testing"

	"sallyport/policy"
	"sallyport/policy/rule"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/storage/inmem"
)

// TestMatchesAreThoseOfTestingRego holds that the rules that Go finds for a decision are
// those that testing.rego finds for a team's tests.
func TestMatchesAreThoseOfTestingRego(t *testing.T) {
	doc := policy.Document{Egress: []policy.EgressRule{
		{Destination: "*.com", Name: "a"},
		{Destination: "*.example.com", Name: "b", Ports: []uint16{443, 8443}},
		{Destination: "api.example.com", Name: "c", Action: policy.Deny},
		{Destination: "api.example.com", Name: "d", Sandboxes: policy.Selector{Names: []string{"demo", "x"}}},
		{Destination: "api.example.com", Name: "e", Sandboxes: policy.Selector{Tags: map[string]string{"team": "a", "env": "p"}}},
		{Destination: "api.example.com", Name: "f", Sandboxes: policy.Selector{Names: []string{"demo"}, Tags: map[string]string{"team": "a"}}},
		{Destination: "10.0.0.0/8", Name: "g"},
		{Destination: "10.1.0.0/16", Name: "h", Ports: []uint16{22}},
		{Destination: "10.1.2.3", Name: "i"},
		{Destination: "2001:db8::/32", Name: "j"},
		{Destination: "2001:db8::1", Name: "k"},
		{Destination: "api.example.com", Name: "l", Methods: []string{"GET"}},
		{Destination: "api.example.com", Name: "m", Plain: true},
		{Destination: "x.api.example.com", Name: "p", Methods: []string{"GET"}, Action: policy.Approve},
		{Destination: "*.api.example.com", Name: "q", Action: policy.Tunnel},
		{Destination: "10.9.9.9", Name: "r", Paths: []string{"/admin"}, Action: policy.Deny},
	}, EgressAuth: []policy.EgressAuthRule{
		{Destination: "api.example.com", Name: "n", AuthRef: "key", Paths: []string{"/x"}},
		{Destination: "*.example.com", Name: "o", AuthRef: "key", Ports: []uint16{8443, 443}, Inject: &policy.Inject{Query: &policy.QueryInject{Name: "k", Value: "{{ .token }}"}}},
	}, Credentials: []policy.Credential{{Name: "key"}}}
	p, err := Compile(t.Context(), doc, Options{})
	if err != nil {
		t.Fatal(err)
	}
	module, err := os.ReadFile("testing.rego")
	if err != nil {
		t.Fatal(err)
	}
	query, err := rego.New(
		rego.Query("data.sallyport.testing.complete(input).rules"),
		rego.Module("testing.rego", string(module)),
		rego.Store(inmem.NewFromASTObject(documents(p))),
		rego.GenerateJSON(func(t *ast.Term, _ *rego.EvalContext) (any, error) { return t.Value, nil }),
	).PrepareForEval(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	sandboxes := []policy.Sandbox{
		{Name: "demo", Tags: map[string]string{"team": "a"}},
		{Name: "y", Tags: map[string]string{"team": "a", "env": "p"}},
		{Name: "x"},
	}
	for _, host := range []string{"api.example.com", "x.api.example.com", "example.com", "com", "10.1.2.3", "10.1.9.9", "10.9.9.9", "2001:db8::1", "2001:db8::2", "203.0.113.1"} {
		for i, sandbox := range sandboxes {
			for _, in := range []policy.Input{
				{Phase: policy.PhaseDNS},
				{Phase: policy.PhaseConnect, Protocol: policy.ProtocolOther, Destination: policy.Destination{Port: 22}},
				{Phase: policy.PhaseConnect, Protocol: policy.ProtocolTLS, Destination: policy.Destination{Port: 443}},
				{Phase: policy.PhaseRequest, Protocol: policy.ProtocolTLS, Destination: policy.Destination{Port: 443}, Request: &policy.Request{Method: "GET", Scheme: "https", Path: "/x"}},
				{Phase: policy.PhaseRequest, Protocol: policy.ProtocolTLS, Destination: policy.Destination{Port: 443}, Request: &policy.Request{Method: "POST", Scheme: "https", Path: "/y"}},
			} {
				in.Sandbox, in.Destination.Host = sandbox, host
				s, err := rule.ParseInput(in)
				if err != nil {
					continue // an address is no name
				}
				input := whole(t, p, s)
				result, err := query.Eval(context.Background(), rego.EvalParsedInput(input))
				if err != nil || len(result) != 1 {
					t.Fatalf("%s: %v, %v", host, result, err)
				}
				want := groups(result[0].Expressions[0].Value.(ast.Value))
				got := groups(input.(ast.Object).Get(keyRules).Value)
				if diff := gocmp.Diff(got, want); diff != "" {
					t.Errorf("%s from sandbox %d in %s: %s", host, i, in.Phase, diff)
				}
				for does := range got {
					seen[does] = true
				}
			}
		}
	}
	if len(seen) != rule.EffectCount-1 {
		t.Errorf("only %v are there", slices.Sorted(maps.Keys(seen)))
	}
}

// groups reads input.rules. The order of rules for one destination says nothing.
func groups(v ast.Value) map[string][]string {
	all := map[string][]string{}
	v.(ast.Object).Foreach(func(does, list *ast.Term) {
		var texts []string
		list.Value.(*ast.Array).Foreach(func(r *ast.Term) { texts = append(texts, r.String()) })
		slices.Sort(texts)
		all[does.String()] = texts
	})
	return all
}
