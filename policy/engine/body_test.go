package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"sallyport/internal/test/must"
	"sallyport/policy"
	"sallyport/policy/body"
	"sallyport/policy/finding"
	"sallyport/policy/validate"

	"github.com/google/go-cmp/cmp"
)

// asked is a POST to mcp.example.com, with its body where the policy needs one.
func asked(p *Policy, path, content string, change ...func(*policy.Input)) policy.Input {
	in := policy.Input{
		Phase: policy.PhaseRequest, Destination: policy.Destination{Host: "mcp.example.com", Port: 443}, Protocol: policy.ProtocolTLS,
		Sandbox: policy.Sandbox{Name: "a"},
		Request: &policy.Request{Method: "POST", Scheme: "https", Path: path, Size: int64(len(content))},
	}
	for _, c := range change {
		c(&in)
	}
	if n := p.Need(in); n.Max > 0 && content != "" {
		in.Request.Body = body.Read(n, []byte(content))
	}
	return in
}

func method(m string) func(*policy.Input) { return func(in *policy.Input) { in.Request.Method = m } }

var bodies = policy.Document{
	Egress: []policy.EgressRule{
		{Name: "any", Destination: "*.example.com"},
		{Name: "calls", Destination: "mcp.example.com", Methods: []string{"POST"}, Paths: []string{"/mcp/**"}, Body: &policy.BodyView{JSON: 100}},
		{Name: "more", Destination: "mcp.example.com", Paths: []string{"/mcp/large"}, Body: &policy.BodyView{JSON: 1000}},
		{Name: "graph", Destination: "mcp.example.com", Paths: []string{"/graphql"}, Body: &policy.BodyView{GraphQL: 1000}},
		{Name: "for b", Destination: "mcp.example.com", Paths: []string{"/b"}, Sandboxes: policy.Selector{Names: []string{"b"}}, Body: &policy.BodyView{JSON: 1}},
		{Name: "plain", Destination: "plain.example.com", Plain: true},
		{Name: "of TLS", Destination: "plain.example.com:80", Body: &policy.BodyView{JSON: 1}},
		{Name: "no", Destination: "mcp.example.com", Paths: []string{"/mcp/no"}, Action: policy.Deny},
	},
}

func TestNeed(t *testing.T) {
	p := compileWith(t, bodies, "", 64)
	for _, test := range []struct {
		name string
		in   policy.Input
		want policy.Need
	}{
		{"a rule", asked(p, "/mcp/x", ""), policy.Need{Max: 100, JSON: true}},
		{"two rules", asked(p, "/mcp/large", ""), policy.Need{Max: 1000, JSON: true}},
		{"GraphQL", asked(p, "/graphql", ""), policy.Need{Max: 1000, GraphQL: true}},
		{"another path", asked(p, "/", ""), policy.Need{}},
		{"another method", asked(p, "/mcp/x", "", method("GET")), policy.Need{}},
		{"another sandbox", asked(p, "/b", ""), policy.Need{}},
		{"that sandbox", asked(p, "/b", "", func(in *policy.Input) { in.Sandbox.Name = "b" }), policy.Need{Max: 1, JSON: true}},
		{"another host", asked(p, "/mcp/x", "", func(in *policy.Input) { in.Destination.Host = "x.example.com" }), policy.Need{}},
		{"another port", asked(p, "/mcp/x", "", func(in *policy.Input) { in.Destination.Port = 8443 }), policy.Need{}},
		{"another protocol", asked(p, "/", "", func(in *policy.Input) {
			in.Destination, in.Protocol, in.Request.Scheme = policy.Destination{Host: "plain.example.com", Port: 80}, policy.ProtocolHTTP, "http"
		}), policy.Need{}},
		{"a connection", asked(p, "/mcp/x", "", func(in *policy.Input) { in.Phase = policy.PhaseConnect }), policy.Need{}},
		{"what cannot be judged", asked(p, "mcp", ""), policy.Need{}},
	} {
		if got := p.Need(test.in); got != test.want {
			t.Errorf("%s: got %+v, want %+v", test.name, got, test.want)
		}
	}
}

// A rule that has to see a body decides about nothing else, and lets nobody else
// decide about it.
func TestUnjudged(t *testing.T) {
	p := compileWith(t, bodies, "", 64)
	long := `{"x": "` + strings.Repeat("x", 200) + `"}`
	for _, test := range []struct {
		name, path, body string
		change           func(*policy.Input)
		rule, reason     string // of a denial; "" allows
		err              error
	}{
		{name: "JSON", path: "/mcp/x", body: `{"method": "ping"}`},
		{name: "none", path: "/mcp/x", rule: "calls", reason: "was not read"},
		{name: "no JSON", path: "/mcp/x", body: `{"method": sesame}`, rule: "calls", reason: "RFC 8259"},
		{name: "what two readers take differently", path: "/mcp/x", body: `{"method": "sesame", "Method": "x"}`, rule: "calls", reason: "twice"},
		{name: "a longer one", path: "/mcp/x", body: long, rule: "calls", reason: "more than 100B", err: policy.ErrTooLong},
		{name: "one that is not too long for the one rule and is for the other", path: "/mcp/large", body: long, rule: "calls", reason: "more than 100B", err: policy.ErrTooLong},
		{name: "where no rule asks", path: "/other", body: long},
		{name: "by another method", path: "/mcp/x", change: method("GET")},
		{name: "by another method, where the rule has none", path: "/mcp/large", change: method("GET"), rule: "more", reason: "was not read"},
		{name: "GraphQL", path: "/graphql", body: `{"query": "{ viewer }"}`},
		{name: "no GraphQL", path: "/graphql", body: `{"query": "{ sesame"}`, rule: "graph", reason: "not a GraphQL document"},
		{name: "GraphQL by GET", path: "/graphql", change: method("GET"), rule: "graph", reason: "was not read"},
		{name: "GraphQL with a second query", path: "/graphql", body: `{"query": "{ viewer }"}`,
			change: func(in *policy.Input) { in.Request.QueryKeys = []string{"query"} }, rule: "graph", reason: "query parameters"},
		{name: "what a deny says", path: "/mcp/no", body: `{}`, rule: "no", reason: "denied by rule"},
	} {
		var change []func(*policy.Input)
		if test.change != nil {
			change = append(change, test.change)
		}
		d := p.Decide(t.Context(), asked(p, test.path, test.body, change...))
		switch {
		case test.rule == "" && d.Action != policy.Allow, test.rule != "" && d.Action != policy.Deny, test.rule != "" && d.Rule != test.rule,
			!strings.Contains(d.Reason, test.reason), strings.Contains(fmt.Sprint(d), "sesame"),
			test.err != nil && !errors.Is(d.Unjudged, test.err), (d.Unjudged != nil) != (test.rule != "" && test.rule != "no"):
			t.Errorf("%s: got %+v, want %q %q", test.name, d, test.rule, test.reason)
		}
	}
}

// A team's Rego sees what a rule has asked for, and nothing else.
func TestBodyInRego(t *testing.T) {
	p := compileWith(t, bodies, `package sallyport.team.x
deny contains "no such tool" if {
	input.request.body.json.method == "tools/call"
	not input.request.body.json.params.name in {"search"}
}
deny contains "reading only" if {
	some operation in input.request.body.graphql.operations
	operation.type != "query"
}
deny contains "both" if { input.request.body.json; input.request.body.graphql }
deny contains "seen" if { input.request.path == "/other"; input.request.body }
`, 64)
	call := func(tool string) string { return `{"method": "tools/call", "params": {"name": "` + tool + `"}}` }
	for range 2 { // the second time, what can be kept has been
		for _, test := range []struct{ path, body, want string }{
			{"/mcp/x", call("search"), "allowed by rule any"},
			{"/mcp/x", call("delete"), "no such tool"},
			{"/mcp/x", call("search"), "allowed by rule any"},
			{"/other", call("delete"), "allowed by rule any"},
			{"/graphql", `{"query": "{ a }"}`, "allowed by rule any"},
			{"/graphql", `{"query": "mutation { a }"}`, "reading only"},
			{"/graphql", `{"query": "query A { a } mutation B { a }", "operationName": "A"}`, "reading only"},
		} {
			d := p.Decide(t.Context(), asked(p, test.path, test.body))
			if d.Reason != test.want && !(strings.HasPrefix(test.want, "allowed") && d.Action == policy.Allow) {
				t.Errorf("%s %s: got %+v, want %s", test.path, test.body, d, test.want)
			}
		}
	}
	if n := p.CacheHits(); n != 1 { // the second time at /other
		t.Errorf("%d answers had been kept", n)
	}
}

// An error of an evaluation quotes its operands.
func TestBodyStaysOutOfErrors(t *testing.T) {
	for name, rego := range map[string]string{
		"a built-in function": `deny contains "x" if to_number(input.request.body.json.secret) > 1`,
		"a conflict": `f(x) := x.secret if true
f(x) := x.other if true
deny contains "x" if f(input.request.body.json) == 1`,
		"a malformed allow": `allow contains {"rule": input.request.body.json}`,
	} {
		p := compileWith(t, bodies, "package sallyport.team.x\n"+rego, 64)
		d := p.Decide(t.Context(), asked(p, "/mcp/x", `{"secret": "sesame", "other": "open"}`))
		if d.Action != policy.Deny || !errors.Is(d.Err, ErrUndecided) || strings.Contains(fmt.Sprintf("%+v", d), "sesame") {
			t.Errorf("%s: got %+v", name, d)
		}
	}
}

func TestBodyIsChecked(t *testing.T) {
	for _, test := range []struct {
		rule policy.EgressRule
		want string
	}{
		{policy.EgressRule{Body: &policy.BodyView{}}, "exactly one of json and graphql"},
		{policy.EgressRule{Body: &policy.BodyView{JSON: 1, GraphQL: 1}}, "exactly one of json and graphql"},
		{policy.EgressRule{Body: &policy.BodyView{JSON: policy.MaxBody + 1}}, "1048577B is more than the 1MiB"},
		{policy.EgressRule{Body: &policy.BodyView{GraphQL: 2 * policy.MaxBody}}, "2MiB is more than the 1MiB"},
		{policy.EgressRule{Body: &policy.BodyView{JSON: 1}, Action: policy.Deny}, "a deny is about is never read"},
		{policy.EgressRule{Body: &policy.BodyView{JSON: 1}, Action: policy.Tunnel}, "a tunnel is about is never read"},
		{policy.EgressRule{Body: &policy.BodyView{JSON: policy.MaxBody}}, ""},
		{policy.EgressRule{Body: &policy.BodyView{JSON: 1}, Action: policy.Approve}, ""},
	} {
		test.rule.Destination = "a.example.com"
		if got := finding.JoinErrors(validate.Document(policy.Document{Egress: []policy.EgressRule{test.rule}})); test.want == "" && got != nil || test.want != "" && (got == nil || !strings.Contains(got.Error(), test.want)) {
			t.Errorf("%+v: got %v, want %q", test.rule.Body, got, test.want)
		}
	}
}

// A rule that has to see a body says something that one without does not.
func TestBodyIsNoRepetition(t *testing.T) {
	with, without := &policy.BodyView{JSON: 10}, (*policy.BodyView)(nil)
	for _, test := range []struct {
		first, second *policy.BodyView
		action        policy.Action
		want          []finding.Kind
	}{
		{without, with, policy.Allow, nil},
		{with, without, policy.Allow, nil},
		{with, &policy.BodyView{JSON: 20}, policy.Allow, nil},
		{with, &policy.BodyView{GraphQL: 10}, policy.Allow, nil},
		{with, &policy.BodyView{JSON: 10}, policy.Allow, []finding.Kind{finding.Repeated}},
		{without, without, policy.Allow, []finding.Kind{finding.Repeated}},
		{without, with, policy.Deny, []finding.Kind{finding.Shadowed}},
		{without, with, policy.Approve, nil},
	} {
		var got []finding.Kind
		for _, f := range validate.Document(policy.Document{Egress: []policy.EgressRule{
			{Name: "first", Destination: "a.example.com", Action: test.action, Body: test.first},
			{Name: "second", Destination: "a.example.com", Body: test.second},
		}}) {
			got = append(got, f.Kind)
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%v then %v under %s: %s", test.first, test.second, test.action, diff)
		}
	}
}

// A rule with a body does not let bytes pass unread.
func TestBodyIsReadOrNothing(t *testing.T) {
	doc := policy.Document{Egress: []policy.EgressRule{{Destination: "192.0.2.1:22", Body: &policy.BodyView{JSON: 1}}}}
	in := policy.Input{Phase: policy.PhaseConnect, Destination: policy.Destination{Host: "192.0.2.1", Port: 22}, Protocol: policy.ProtocolOther}
	if d := compileWith(t, doc, "", 0).Decide(t.Context(), in); d.Action != policy.Deny {
		t.Errorf("got %+v", d)
	}
	doc.Egress[0].Body = nil
	if d := compileWith(t, doc, "", 0).Decide(t.Context(), in); d.Action != policy.Tunnel {
		t.Errorf("without: got %+v", d)
	}
}

// The gateway's process gets the document as JSON, and decides by the same.
func TestBodyInJSON(t *testing.T) {
	text, err := json.Marshal(bodies)
	must.OK(t, err)
	var again policy.Document
	must.OK(t, json.Unmarshal(text, &again))
	if diff := cmp.Diff(bodies, again); diff != "" {
		t.Error(diff)
	}
	if compileWith(t, bodies, "", 0).Revision() != compileWith(t, again, "", 0).Revision() {
		t.Error("the revisions differ")
	}
}

// Observe mode lets pass what a rule cannot see, and nothing that another denies.
func TestBodyObserved(t *testing.T) {
	until := time.Now().Add(time.Hour)
	doc := policy.Document{Egress: []policy.EgressRule{
		{Name: "any", Destination: "*.example.com"},
		{Name: "tried", Destination: "mcp.example.com", Observe: until, Body: &policy.BodyView{JSON: 100}},
		{Name: "enforced", Destination: "mcp.example.com", Paths: []string{"/both"}, Body: &policy.BodyView{JSON: 100}},
	}}
	p := compileWith(t, doc, "", 0)
	if d := p.Decide(t.Context(), asked(p, "/", "torn")); d.Action != policy.Allow || d.Observed == nil || d.Observed.Rule != "tried" || d.Unjudged != nil {
		t.Errorf("a rule that is observed: %+v", d)
	}
	if d := p.Decide(t.Context(), asked(p, "/both", "torn")); d.Action != policy.Deny || d.Rule != "enforced" {
		t.Errorf("beside one that is not: %+v", d)
	}
	if d := p.DecideAt(t.Context(), asked(p, "/", "torn"), until); d.Action != policy.Deny || d.Rule != "tried" {
		t.Errorf("afterwards: %+v", d)
	}
	doc.Observe = []policy.Observation{{Sandboxes: policy.Selector{Names: []string{"a"}}, Until: until}}
	p = compileWith(t, doc, "", 0)
	if d := p.Decide(t.Context(), asked(p, "/both", "torn")); d.Action != policy.Allow || d.Observed == nil || d.Observed.Rule != "enforced" || d.Unjudged != nil {
		t.Errorf("a sandbox that is observed: %+v", d)
	}
}

// The library's reading of bodies decides where a team refers to it.
func TestBodyLibrary(t *testing.T) {
	p := compileWith(t, bodies, `package sallyport.team.x

import data.sallyport.library.graphql
import data.sallyport.library.mcp

deny contains "tools" if { input.request.path == "/mcp/x"; not mcp.only({"search"}) }
deny contains "graph" if { input.request.path == "/graphql"; not graphql.only({"query"}, {"viewer"}) }
`, 64)
	call := `{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "search"}}`
	for _, test := range []struct {
		path, body string
		want       policy.Action
	}{
		{"/mcp/x", call, policy.Allow},
		{"/mcp/x", "[" + call + "]", policy.Allow},
		{"/mcp/x", strings.Replace(call, "search", "delete", 1), policy.Deny},
		{"/mcp/x", "[" + call + `, "ping"]`, policy.Deny},
		{"/mcp/x", `7`, policy.Deny},
		{"/graphql", `{"query": "{ viewer }"}`, policy.Allow},
		{"/graphql", `{"query": "{ viewer __schema }"}`, policy.Deny},
	} {
		if d := p.Decide(t.Context(), asked(p, test.path, test.body)); d.Action != test.want || d.Err != nil {
			t.Errorf("%s %s: got %+v", test.path, test.body, d)
		}
	}
}

func TestExplainBody(t *testing.T) {
	p := compileWith(t, bodies, "", 0)
	e := p.Explain(t.Context(), asked(p, "/mcp/x", ""))
	for _, n := range e.Near {
		if n.Rule == "calls" && cmp.Equal(n.Failed, []string{"body"}) && e.Decision.Unjudged != nil {
			return
		}
	}
	t.Errorf("got %+v", e)
}
