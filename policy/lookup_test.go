package policy

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
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
		{Destination: "api.example.com", Name: "l", Methods: []string{"GET"}},
		{Destination: "api.example.com", Name: "m", Plain: true},
	}, EgressAuth: []EgressAuthRule{
		{Destination: "api.example.com", Name: "n", AuthRef: "key", Paths: []string{"/x"}},
		{Destination: "*.example.com", Name: "o", AuthRef: "key", Ports: []uint16{8443, 443}, Inject: &Inject{Query: &QueryInject{Name: "k", Value: "{{ .token }}"}}},
	}, Credentials: []Credential{{Name: "key"}}}
	p, err := Compile(t.Context(), doc, Options{})
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
		rego.Store(inmem.NewFromASTObject(documents(p))),
		rego.GenerateJSON(func(t *ast.Term, _ *rego.EvalContext) (any, error) { return t.Value, nil }),
	).PrepareForEval(t.Context())
	if err != nil {
		t.Fatal(err)
	}
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
				input := whole(t, p, s)
				result, err := query.Eval(context.Background(), rego.EvalParsedInput(input))
				if err != nil || len(result) != 1 {
					t.Fatalf("%s: %v, %v", host, result, err)
				}
				want := keySets(t, p, result[0].Expressions[0].Value.(ast.Value))
				got := keySets(t, p, input.(ast.Object).Get(keyLookup).Value)
				if diff := gocmp.Diff(got, want); diff != "" {
					t.Errorf("%s from sandbox %d in %s: %s", host, i, in.Phase, diff)
				}
			}
		}
	}
}

// keySets reads input.lookup. The order of keys of one destination says nothing.
func keySets(t *testing.T, p *Policy, v ast.Value) map[string]bool {
	t.Helper()
	o := v.(ast.Object)
	set := map[string]bool{
		"moment " + o.Get(keyMoment).String(): true,
		"line " + o.Get(keyLine).String():     true,
	}
	o.Get(keyKeys).Value.(*ast.Array).Foreach(func(k *ast.Term) { set[fmt.Sprint(k)] = true })
	type rule struct {
		rank              int
		destination, text string
	}
	var rules []rule
	o.Get(keyRules).Value.(*ast.Array).Foreach(func(t *ast.Term) {
		item := t.Value.(*ast.Array)
		by := item.Elem(2).Value.(*ast.Array)
		rank, _ := by.Elem(0).Value.(ast.Number).Int()
		// Whether another rule may authorise the same request, testing.rego does not know as well.
		effects := strings.ReplaceAll(item.Elem(1).String(), "3.5", "3")
		name := string(by.Elem(2).Value.(ast.String))
		rules = append(rules, rule{rank, p.rules[name].destination.key(), fmt.Sprint(item.Elem(0), effects, by.Slice(1, -1))})
	})
	slices.SortFunc(rules, func(a, b rule) int { return cmp.Compare(a.rank, b.rank) })
	var destinations []string
	for _, r := range rules {
		set["rule "+r.text] = true
		destinations = append(destinations, r.destination)
	}
	set["destinations "+strings.Join(slices.Compact(destinations), " ")] = true
	return set
}
