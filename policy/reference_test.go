package policy

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/storage/inmem"
)

// pick returns one of the elements.
func pick[T any](random *rand.Rand, of ...T) T { return of[random.IntN(len(of))] }

// randomDocument has few rules, for few hosts: most inputs meet none to three.
func randomDocument(random *rand.Rand) Document {
	doc := Document{Credentials: []Credential{{Name: "one"}, {Name: "two"}}, Policy: Source{Cache: new(0)}}
	hosts := []string{"a.example.com", "b.example.com", "*.example.com", "10.0.0.0/8", "10.0.0.1"}
	methods := func() []string { return pick(random, nil, nil, []string{"GET"}, []string{"POST", "PUT"}) }
	paths := func() []string { return pick(random, nil, nil, []string{"/x/**"}) }
	ports := func() []uint16 { return pick(random, nil, []uint16{443}, []uint16{22, 443}) }
	sandboxes := func() Selector { return pick(random, Selector{}, Selector{}, Selector{Names: []string{"demo"}}) }
	for i := range random.IntN(5) {
		doc.Egress = append(doc.Egress, EgressRule{
			Name: fmt.Sprint("r", i), Destination: pick(random, hosts...), Methods: methods(), Paths: paths(), Ports: ports(),
			Sandboxes: sandboxes(), Plain: random.IntN(4) == 0, Action: pick(random, "", "", Deny, Approve, Tunnel),
		})
	}
	for i := range random.IntN(3) {
		doc.EgressAuth = append(doc.EgressAuth, EgressAuthRule{
			Name: fmt.Sprint("k", i), Destination: pick(random, hosts[:3]...), AuthRef: pick(random, "one", "two"),
			Methods: methods(), Paths: paths(), Sandboxes: sandboxes(),
			Inject: &Inject{Query: &QueryInject{Name: fmt.Sprint("q", i), Value: "{{ .token }}"}},
		})
	}
	return doc
}

// TestReference holds decision.rego, and what is written down when a policy is
// compiled, to testdata/reference.rego, which says the same without regard to
// what it costs.
func TestReference(t *testing.T) {
	module, err := os.ReadFile("testdata/reference.rego")
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(3, 4))
	compiled, settled, depending, several := 0, 0, 0, 0
	for range 400 {
		doc := randomDocument(random)
		p, err := Compile(t.Context(), doc, Options{})
		if err != nil {
			continue // some rules contradict each other
		}
		compiled++
		query, err := rego.New(
			rego.Query("data.sallyport.decision"),
			rego.Module("reference.rego", string(module)),
			rego.Store(inmem.NewFromASTObject(documents(p))),
			rego.GenerateJSON(func(t *ast.Term, _ *rego.EvalContext) (any, error) { return t.Value, nil }),
		).PrepareForEval(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for range 25 {
			in := Input{
				Phase:       pick(random, PhaseDNS, PhaseConnect, PhaseRequest),
				Sandbox:     Sandbox{Name: pick(random, "demo", "other")},
				Destination: Destination{Host: pick(random, "a.example.com", "b.example.com", "c.example.com", "example.org", "10.0.0.1", "10.0.0.2")},
			}
			if in.Phase != PhaseDNS {
				in.Protocol = pick(random, ProtocolTLS, ProtocolHTTP, ProtocolOther)
				in.Destination.Port = pick[uint16](random, 443, 22)
			}
			if in.Phase == PhaseRequest {
				in.Request = &Request{Method: pick(random, "GET", "POST", "DELETE"), Scheme: "https", Path: pick(random, "/", "/x/y")}
			}
			s, err := read(in)
			if err != nil {
				continue // an address is no name, and not every protocol has requests
			}
			input := whole(t, p, s)
			lookup := input.(ast.Object).Get(keyLookup).Value.(ast.Object)
			switch {
			case lookup.Get(keySettled).Value.(*ast.Array).Len() > 0:
				settled++
			case lookup.Get(keyDepends).Value.(*ast.Array).Len() > 0:
				depending++
			default:
				several++
			}
			result, err := query.Eval(context.Background(), rego.EvalParsedInput(input))
			if err != nil || len(result) != 1 {
				t.Fatalf("%v: %v, %v", in, result, err)
			}
			d := result[0].Expressions[0].Value.(ast.Object)
			field := func(name string) string { return string(d.Get(ast.StringTerm(name)).Value.(ast.String)) }
			want := Decision{Action: Action(field("action")), RuleType: field("type"), Rule: field("rule"), Reason: field("reason")}
			want.Revision = p.Revision()
			if want.Action != Deny {
				if want.Inject, err = p.injections(d.Get(keyInject).Value); err != nil {
					t.Fatal(err)
				}
				if r := p.rules[want.Rule]; r != nil {
					want.Upstream = r.upstream
				}
			}
			if want.Action == Approve {
				want.Approvals = p.approvals
			}
			want = p.floor(want, s)
			if diff := cmp.Diff(want, p.Decide(t.Context(), in)); diff != "" {
				t.Fatalf("%+v\n%+v: %s", doc, in, diff)
			}
		}
	}
	t.Logf("%d documents; inputs that are settled %d, depend on one pattern %d, or on several %d", compiled, settled, depending, several)
	if min(compiled, settled/10, depending/10, several/10) < 20 {
		t.Error("too few of some kind")
	}
}
