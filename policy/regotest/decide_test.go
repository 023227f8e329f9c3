package regotest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"sallyport/internal/test/must"
	"sallyport/policy"
	"sallyport/policy/body"
	"sallyport/policy/engine"
	"sallyport/policy/rule"

	"github.com/google/go-cmp/cmp"
	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/storage/inmem"
)

// settledTeam contributes what the floor refuses, and limits.
const settledTeam = `package sallyport.team.mixed

inject contains {"credential": "one", "inject": {"header": {"name": "x-key", "value": "{{ .token }}"}}} if input.request.path == "/x/y"

inject contains {"credential": "two"} if input.sandbox.name == "other"

allow contains {"rule": "team", "protocols": ["tls", "other"]} if input.destination.host == "c.example.com"

limit contains {"name": "team-a-day", "per": "tag:team", "every": "24h", "requests": 5} if input.sandbox.name == "demo"

limit contains {"name": "team-keys", "per": "credential", "every": "24h", "uses": 5}

limit contains {"nme": "misspelled"} if input.destination.host == "b.example.com"
`

// TestDecide holds what a test's testing.decide says to what the policy decides, on
// random documents: action, rule, credentials, and the limits with their subjects.
func TestDecide(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	seen := map[string]int{}
	for round := range 80 {
		doc := randomDocument(random)
		for i := range doc.Egress {
			if e := &doc.Egress[i]; (e.Action == "" || e.Action == policy.Approve) && random.IntN(3) == 0 {
				e.Body = pick(random, &policy.BodyView{JSON: 100}, &policy.BodyView{GraphQL: 100})
			}
		}
		for i := range doc.EgressAuth {
			if random.IntN(2) == 0 {
				doc.EgressAuth[i].Inject = nil // all in one place
			}
		}
		for i := range random.IntN(4) {
			doc.Limits = append(doc.Limits, policy.Limit{
				Name: fmt.Sprint("l", i), Every: policy.Duration(24 * 3600e9), Requests: 5,
				Per:         pick(random, "", policy.PerAll, policy.PerDestination, policy.PerCredential, "tag:team"),
				Credential:  pick(random, "", "", "one"),
				Destination: pick(random, "", "*.example.com", "a.example.com:443", "10.0.0.0/8", "2001:db8::/32"),
				Sandboxes:   pick(random, policy.Selector{}, policy.Selector{Names: []string{"demo", "x"}}, policy.Selector{Tags: map[string]string{"team": "a"}}),
			})
		}
		if round%2 == 0 {
			doc.Policy.Dir = folder(t, map[string]string{"mixed.rego": settledTeam})
		}
		p, err := engine.Compile(t.Context(), doc, engine.Options{})
		if err != nil {
			continue // some rules contradict each other
		}
		decide := testingDecide(t, doc)
		for range 40 {
			in := randomInput(random)
			s, err := rule.ParseInput(in)
			if err != nil {
				continue
			}
			d := p.Decide(t.Context(), in)
			if diff := cmp.Diff(settledText(decide(plainInput(in))), decisionText(d)); diff != "" {
				t.Fatalf("%v of %+v: %s\n%+v\n%+v", s, in, diff, d, doc)
			}
			seen[string(d.Action)+" "+d.RuleType]++
			seen["limits"] += len(d.Limits)
			if d.Unjudged != nil {
				seen["unjudged"]++
			}
		}
	}
	for _, what := range []string{"allow egress", "allow egressAuth", "allow rego", "tunnel rego", "approve egress", "deny floor", "limits", "unjudged"} {
		if seen[what] < 5 {
			t.Errorf("only %d of %s: %v", seen[what], what, seen)
		}
	}
}

// testingDecide returns data.sallyport.testing.decide under a document.
func testingDecide(t *testing.T, doc policy.Document) func(input map[string]any) map[string]any {
	t.Helper()
	made, err := engine.NewTestbed(t.Context(), doc, nil)
	must.OK(t, err)
	b, err := newBench(made)
	must.OK(t, err)
	compiler, err := b.compiler()
	must.OK(t, err)
	if compiler.Compile(b.Modules); compiler.Failed() {
		t.Fatal(compiler.Errors)
	}
	r := rego.New(rego.Query("data.sallyport.testing.decide(input)"), rego.Compiler(compiler), rego.Store(inmem.NewFromASTObject(b.Data)), rego.StrictBuiltinErrors(true))
	for _, f := range b.builtins() {
		f.Func(r)
	}
	query, err := r.PrepareForEval(t.Context())
	must.OK(t, err)
	return func(input map[string]any) map[string]any {
		result, err := query.Eval(t.Context(), rego.EvalInput(input))
		if err != nil || len(result) != 1 {
			t.Fatalf("%v: %v, %v", input, result, err)
		}
		return result[0].Expressions[0].Value.(map[string]any)
	}
}

func randomInput(random *rand.Rand) policy.Input {
	in := policy.Input{
		Phase:       pick(random, policy.PhaseDNS, policy.PhaseConnect, policy.PhaseRequest, policy.PhaseRequest, policy.PhaseRequest),
		Sandbox:     policy.Sandbox{Name: pick(random, "demo", "other"), ID: pick(random, "", "sb-1"), Tags: pick(random, nil, map[string]string{"team": "a"})},
		Destination: policy.Destination{Host: pick(random, "a.example.com", "b.example.com", "c.example.com", "10.0.0.1", "10.0.0.2", "2001:db8::1")},
	}
	if in.Phase != policy.PhaseDNS {
		in.Protocol = pick(random, policy.ProtocolTLS, policy.ProtocolTLS, policy.ProtocolHTTP, policy.ProtocolOther)
		in.Destination.Port = pick[uint16](random, 443, 22)
	}
	if in.Phase == policy.PhaseRequest {
		in.Protocol = pick(random, policy.ProtocolTLS, policy.ProtocolTLS, policy.ProtocolHTTP)
		in.Request = &policy.Request{
			Method: pick(random, "GET", "POST", "DELETE"), Scheme: map[policy.Protocol]string{policy.ProtocolTLS: "https", policy.ProtocolHTTP: "http"}[in.Protocol],
			Path: pick(random, "/", "/x/y"), Size: pick[int64](random, -1, 50, 101), QueryKeys: pick(random, nil, nil, []string{"q"}),
		}
		if random.IntN(2) == 0 {
			in.Request.Body = body.Read(policy.Need{Max: 200, JSON: true, GraphQL: true}, []byte(`{"query": "{ a }"}`))
			in.Request.Body.Size = max(in.Request.Size, 0)
		}
	}
	return in
}

// plainInput is an input as a test writes it.
func plainInput(in policy.Input) map[string]any {
	plain := map[string]any{
		"phase":       in.Phase,
		"protocol":    in.Protocol,
		"sandbox":     map[string]any{"name": in.Sandbox.Name, "id": in.Sandbox.ID, "session": "", "tags": in.Sandbox.Tags},
		"destination": map[string]any{"host": in.Destination.Host, "port": in.Destination.Port},
	}
	q := in.Request
	if q == nil {
		return plain
	}
	request := map[string]any{"method": q.Method, "scheme": q.Scheme, "path": q.Path, "size": q.Size, "query_keys": q.QueryKeys}
	if q.Body != nil {
		request["body"] = map[string]any{"json": *q.Body.JSON, "graphql": *q.Body.GraphQL}
	}
	plain["request"] = request
	return plain
}

func settledText(d map[string]any) (lines []string) {
	if strings.Contains(d["reason"].(string), "decides by the request's body") {
		return []string{"unjudged"}
	}
	lines = append(lines, fmt.Sprint(d["action"], " ", d["type"], " ", strings.TrimSpace(fmt.Sprint(d["rule"]))))
	for _, i := range d["inject"].([]any) {
		lines = append(lines, "injects "+i.(map[string]any)["credential"].(string))
	}
	for _, l := range d["limits"].([]any) {
		m := l.(map[string]any)
		lines = append(lines, fmt.Sprint("limit ", m["name"], " per ", m["per"], " of ", m["subject"]))
	}
	slices.Sort(lines[1:])
	return slices.Compact(lines)
}

func decisionText(d policy.Decision) (lines []string) {
	lines = append(lines, fmt.Sprint(d.Action, " ", d.RuleType, " ", d.Rule))
	if d.Unjudged != nil {
		return []string{"unjudged"} // by whichever of several rules
	}
	if d.Action != policy.Deny {
		for _, i := range d.Inject {
			lines = append(lines, "injects "+i.Credential)
		}
	}
	for _, l := range d.Limits {
		lines = append(lines, fmt.Sprint("limit ", l.Name, " per ", l.Per, " of ", l.Subject))
	}
	slices.Sort(lines[1:])
	return slices.Compact(lines)
}

// pick returns one of the elements.
func pick[T any](random *rand.Rand, of ...T) T { return of[random.IntN(len(of))] }

// randomDocument has few rules, for few hosts: most inputs meet none to three.
func randomDocument(random *rand.Rand) policy.Document {
	doc := policy.Document{Credentials: []policy.Credential{{Name: "one"}, {Name: "two"}}, Policy: policy.Source{Cache: new(0)}}
	hosts := []string{"a.example.com", "b.example.com", "*.example.com", "10.0.0.0/8", "10.0.0.1"}
	methods := func() []string { return pick(random, nil, nil, []string{"GET"}, []string{"POST", "PUT"}) }
	paths := func() []string { return pick(random, nil, nil, []string{"/x/**"}) }
	ports := func() []uint16 { return pick(random, nil, []uint16{443}, []uint16{22, 443}) }
	sandboxes := func() policy.Selector {
		return pick(random, policy.Selector{}, policy.Selector{}, policy.Selector{Names: []string{"demo"}})
	}
	for i := range random.IntN(5) {
		doc.Egress = append(doc.Egress, policy.EgressRule{
			Name: fmt.Sprint("r", i), Destination: pick(random, hosts...), Methods: methods(), Paths: paths(), Ports: ports(),
			Sandboxes: sandboxes(), Plain: random.IntN(4) == 0, Action: pick(random, "", "", policy.Deny, policy.Approve, policy.Tunnel),
		})
	}
	for i := range random.IntN(3) {
		doc.EgressAuth = append(doc.EgressAuth, policy.EgressAuthRule{
			Name: fmt.Sprint("k", i), Destination: pick(random, hosts[:3]...), AuthRef: pick(random, "one", "two"),
			Methods: methods(), Paths: paths(), Sandboxes: sandboxes(),
			Inject: &policy.Inject{Query: &policy.QueryInject{Name: fmt.Sprint("q", i), Value: "{{ .token }}"}},
		})
	}
	return doc
}
