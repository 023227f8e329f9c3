package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sallyport/internal/test/must"
	"sallyport/policy"
	"sallyport/policy/rule"

	"github.com/google/go-cmp/cmp"
	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/rego"
)

// everyKind has a rule of every kind, several of them for a.example.com.
var everyKind = policy.Document{
	Egress: []policy.EgressRule{
		{Name: "wide", Destination: "*.example.com", Ports: []uint16{443, 22}},
		{Name: "plain", Destination: "b.example.com", Plain: true, Methods: []string{"GET"}},
		{Name: "no-admin", Destination: "*.example.com", Paths: []string{"/admin/**"}, Action: policy.Deny},
		{Name: "ask", Destination: "a.example.com", Methods: []string{"DELETE"}, Action: policy.Approve},
		{Name: "raw", Destination: "c.example.com", Action: policy.Tunnel},
		{Name: "net", Destination: "10.0.0.0/8", Ports: []uint16{5432}},
	},
	EgressAuth: []policy.EgressAuthRule{
		{Name: "key", Destination: "a.example.com", AuthRef: "key", Methods: []string{"GET", "DELETE"}},
		{Name: "spare", Destination: "a.example.com", AuthRef: "spare", Paths: []string{"/x"}, Inject: &policy.Inject{Query: &policy.QueryInject{Name: "k", Value: "{{ .token }}"}}},
	},
	Credentials: []policy.Credential{{Name: "key"}, {Name: "spare"}},
	Policy:      policy.Source{Cache: new(0)}, // what is asked about here is evaluated
}

// manyRules uses `with` and functions, and more rules than an evalCache lists.
func manyRules() string {
	var b strings.Builder
	b.WriteString(`package sallyport.team.x

deny contains "PUT" if {
	not denied
	denied with input.destination.host as "d.example.com"
	not denied
}

deny contains sprintf("%d of %s", [n, input.destination.host]) if {
	n := sum([value(i) | some i in numbers.range(1, 40)]) + count(input.rules)
	n == 861 # 820, 40 and one key
	r39 == 40
}

denied if {
	startswith(input.destination.host, "d.")
	startswith(input.request.method, "P")
}

value(x) := x + r0 if x > 0

approve contains "ask" if input.request.path == "/ask"
allow contains {"rule": "mine"} if input.destination.host == "elsewhere.example.org"
inject contains {"credential": "spare"} if input.request.path == "/more"

r0 := 1 if input.phase
`)
	for i := 1; i < 40; i++ {
		fmt.Fprintf(&b, "\nr%d := r%d + 1 if input.phase\n", i, i-1)
	}
	return b.String()
}

// TestEvaluatorIsOPA holds that what Decide decides is what OPA's own prepared
// query makes of data.sallyport.decision, reason and all.
func TestEvaluatorIsOPA(t *testing.T) {
	dir := t.TempDir()
	must.OK(t, os.WriteFile(filepath.Join(dir, "p.rego"), []byte(manyRules()), 0o600))
	teams := everyKind
	teams.Policy.Dir = dir
	actions := map[policy.Action]int{}
	for name, doc := range map[string]policy.Document{"without a team": everyKind, "with a team": teams} {
		p, err := Compile(t.Context(), doc, Options{Timeout: 10 * time.Second})
		must.OK(t, err)
		query, err := rego.New(
			rego.Query("data.sallyport.decision"),
			rego.Compiler(p.query.compiler),
			rego.Store(p.query.store),
			rego.GenerateJSON(func(t *ast.Term, _ *rego.EvalContext) (any, error) { return t.Value, nil }),
		).PrepareForEval(t.Context())
		must.OK(t, err)
		for _, in := range inputs() {
			s, err := rule.ParseInput(in)
			must.OK(t, err)
			result, err := query.Eval(t.Context(), rego.EvalParsedInput(whole(t, p, s)))
			if err != nil || len(result) != 1 {
				t.Fatalf("%s: %v, %v", s, result, err)
			}
			want := result[0].Expressions[0].Value.(ast.Object)
			d := p.Decide(t.Context(), in)
			if d.RuleType == policy.TypeFloor {
				continue // which Rego knows nothing of
			}
			actions[d.Action]++
			decided, err := p.decode(want, s)
			must.OK(t, err)
			if d.Action != decided.Action || d.RuleType != decided.RuleType || d.Rule != decided.Rule || d.Reason != decided.Reason {
				t.Errorf("%s, %s: got %+v, want %+v", name, s, d, decided)
			}
			var credentials []string
			for _, i := range d.Inject {
				credentials = append(credentials, i.Credential)
			}
			var wanted []string
			if d.Action != policy.Deny {
				want.Get(keyInject).Value.(ast.Set).Foreach(func(i *ast.Term) {
					wanted = append(wanted, string(i.Value.(ast.Object).Get(keyCredential).Value.(ast.String)))
				})
			}
			if diff := cmp.Diff(credentials, wanted); diff != "" {
				t.Errorf("%s, %s: injects %s", name, s, diff)
			}
		}
	}
	for _, a := range []policy.Action{policy.Deny, policy.Allow, policy.Tunnel, policy.Approve} {
		if actions[a] == 0 {
			t.Errorf("nothing was decided to be %s: %v", a, actions)
		}
	}
}

// whole is the whole document input.
func whole(t *testing.T, p *Policy, s rule.ParsedInput) ast.Value {
	t.Helper()
	v := newInputDocument(s.Phase, everyField)
	v.set(p, s)
	return v.root
}

func inputs() []policy.Input {
	sandbox := policy.Sandbox{Name: "demo", ID: "1", Session: "s", Tags: map[string]string{"team": "a"}}
	var list []policy.Input
	for _, host := range []string{"a.example.com", "b.example.com", "c.example.com", "d.example.com", "elsewhere.example.org", "10.1.2.3"} {
		if host[0] != '1' {
			list = append(list, policy.Input{Phase: policy.PhaseDNS, Sandbox: sandbox, Destination: policy.Destination{Host: host}})
		}
		for _, port := range []uint16{22, 80, 443, 5432} {
			to := policy.Destination{Host: host, Port: port}
			for _, protocol := range []policy.Protocol{policy.ProtocolTLS, policy.ProtocolHTTP, policy.ProtocolOther} {
				list = append(list, policy.Input{Phase: policy.PhaseConnect, Sandbox: sandbox, Destination: to, Protocol: protocol})
			}
			for _, method := range []string{"GET", "PUT", "DELETE"} {
				for _, path := range []string{"/", "/x", "/admin/x", "/ask", "/more"} {
					scheme := "https"
					if port == 80 {
						scheme = "http"
					}
					list = append(list, policy.Input{Phase: policy.PhaseRequest, Sandbox: sandbox, Destination: to, Request: &policy.Request{Method: method, Scheme: scheme, Path: path, Size: 7}})
				}
			}
		}
	}
	return list
}

// TestEvaluationsAreApart holds that an evaluation finds nothing of the one that
// used its parts before, also when that one was late, or of another at the same time.
func TestEvaluationsAreApart(t *testing.T) {
	dir := t.TempDir()
	const slow = `package sallyport.team.x
deny contains "never" if {
	input.request.method == "PUT"
	some i in numbers.range(1, 100000)
	some j in numbers.range(1, 100000)
	i * j == 0
}
deny contains input.request.path if input.request.path != "/"`
	must.OK(t, os.WriteFile(filepath.Join(dir, "p.rego"), []byte(slow), 0o600))
	doc := everyKind
	doc.Policy.Dir = dir
	p, err := Compile(t.Context(), doc, Options{Timeout: 200 * time.Millisecond})
	must.OK(t, err)
	ask := func(method, path string) policy.Decision {
		return p.Decide(context.Background(), policy.Input{
			Phase: policy.PhaseRequest, Destination: policy.Destination{Host: "d.example.com", Port: 443},
			Request: &policy.Request{Method: method, Scheme: "https", Path: path},
		})
	}
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 100 {
				if d := ask("GET", "/"); d.Action != policy.Allow || d.Err != nil {
					t.Errorf("an allowed request: %+v", d)
				}
				path := fmt.Sprintf("/%d/%d", g, i)
				if d := ask("GET", path); d.Action != policy.Deny || d.Reason != path {
					t.Errorf("%s: %+v", path, d)
				}
				if i%50 == 0 {
					if d := ask("PUT", "/"); d.Action != policy.Deny || !errors.Is(d.Err, errTimeout) {
						t.Errorf("a slow one: %+v", d)
					}
				}
			}
		})
	}
	wg.Wait()
}
