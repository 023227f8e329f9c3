package engine_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"sallyport/internal/test/must"
	"sallyport/policy"
	"sallyport/policy/engine"
)

const open = `
egress: [{name: open, destination: "*.example.com", ports: [443, 22]}]
egressAuth: [{name: auth, destination: api.example.org, authRef: key, sandboxes: {names: [demo]}}, {name: other, destination: api.example.org, authRef: spare, sandboxes: {names: [nobody]}}]
credentials: [{name: key}, {name: spare, kinds: [bearer, header]}]`

func TestTeam(t *testing.T) {
	type ask struct {
		what string
		in   policy.Input
		want policy.Action
		err  bool
	}
	for _, tt := range []struct {
		name string
		rego string
		asks []ask
	}{
		{"deny wins over an allow", `deny contains "no posts" if input.request.method == "POST"`, []ask{
			{"what it denies", request("POST", "a.example.com", "/"), policy.Deny, false},
			{"what it does not", request("GET", "a.example.com", "/"), policy.Allow, false},
			{"also with a credential", request("POST", "api.example.org", "/"), policy.Deny, false},
		}},
		{"a deny that is not text denies", `deny contains 7 if input.request.method == "POST"`, []ask{
			{"it", request("POST", "a.example.com", "/"), policy.Deny, false},
		}},
		{"allow", `allow contains {"rule": "mine", "reason": "because"} if input.destination.host == "b.example.net"`, []ask{
			{"the name", dns("b.example.net"), policy.Allow, false},
			{"the connection", connect("b.example.net", 443, policy.ProtocolTLS), policy.Allow, false},
			{"the request", request("GET", "b.example.net", "/"), policy.Allow, false},
			{"not unread", connect("b.example.net", 443, policy.ProtocolOther), policy.Deny, false},
			{"not in the clear", connect("b.example.net", 80, policy.ProtocolHTTP), policy.Deny, false},
		}},
		{"allow does not loosen an egressAuth rule", `allow contains {"rule": "mine"} if true`, []ask{
			{"plain HTTP to it", plain("GET", "api.example.org", 443, "/"), policy.Deny, false},
		}},
		{"an allow of another shape denies everything", `allow contains "yes" if input.request.method == "GET"`, []ask{
			{"where it speaks", request("GET", "a.example.com", "/"), policy.Deny, true},
			{"where it does not", request("POST", "a.example.com", "/"), policy.Allow, false},
		}},
		{"approve", `approve contains "ask" if input.request.method == "PUT"`, []ask{
			{"it", request("PUT", "a.example.com", "/"), policy.Approve, false},
			{"the rest", request("GET", "a.example.com", "/"), policy.Allow, false},
		}},
		{"undefined is no contribution", `deny contains "x" if input.sandbox.tags.nosuch == "y"`, []ask{
			{"it", request("GET", "a.example.com", "/"), policy.Allow, false},
		}},
		{"a conflict denies", "f(x) := 1 if x\nf(x) := 2 if x\ndeny contains \"x\" if f(true) == 3", []ask{
			{"it", request("GET", "a.example.com", "/"), policy.Deny, true},
		}},
		{"a built-in function that fails denies", `deny contains "x" if to_number(input.request.path) > 5`, []ask{
			{"it", request("GET", "a.example.com", "/nan"), policy.Deny, true},
		}},
		{"inject of what is not bound", `inject contains {"credential": "spare"} if input.destination.host == "a.example.com"`, []ask{
			{"it", request("GET", "a.example.com", "/"), policy.Deny, false},
		}},
		{"inject of what is bound there", `inject contains {"credential": "spare", "inject": {"header": {"name": "X-Key", "value": "{{ .token }}"}}} if input.destination.host == "api.example.org"`, []ask{
			{"it", request("GET", "api.example.org", "/"), policy.Allow, false},
			{"nothing in the connection", connect("api.example.org", 443, policy.ProtocolTLS), policy.Allow, false},
		}},
		{"inject of another kind than it is bound to", `inject contains {"credential": "spare", "inject": {"query": {"name": "key", "value": "{{ .token }}"}}} if input.destination.host == "api.example.org"`, []ask{
			{"it", request("GET", "api.example.org", "/"), policy.Deny, false},
		}},
		{"inject into a place that is taken", `inject contains {"credential": "spare"} if input.destination.host == "api.example.org"`, []ask{
			{"it", request("GET", "api.example.org", "/"), policy.Deny, false},
		}},
		{"inject of another shape", `inject contains {"credential": "spare", "inject": {"heder": {}}} if input.destination.host == "api.example.org"`, []ask{
			{"it", request("GET", "api.example.org", "/"), policy.Deny, true},
		}},
		{"an injected rule cannot borrow a name", `inject contains {"credential": "spare", "rule": "auth"} if input.destination.host == "api.example.org"`, []ask{
			{"it", request("GET", "api.example.org", "/"), policy.Deny, true},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, err := withTeam(t, open, map[string]string{"sub/p.rego": "package sallyport.team.x\n" + tt.rego})
			must.OK(t, err)
			for _, a := range tt.asks {
				d := p.Decide(t.Context(), a.in)
				if d.Action != a.want || (d.Err != nil) != a.err {
					t.Errorf("%s: got %s by %s %q (%s, %v), want %s, error %v", a.what, d.Action, d.RuleType, d.Rule, d.Reason, d.Err, a.want, a.err)
				}
				if a.err && !errors.Is(d.Err, engine.ErrUndecided) {
					t.Errorf("%s: %v is not ErrUndecided", a.what, d.Err)
				}
				if d.Action == policy.Deny && d.Inject != nil {
					t.Errorf("%s: a denial injects %v", a.what, d.Inject)
				}
			}
		})
	}
}

func TestTeamReasonIsClean(t *testing.T) {
	p, err := withTeam(t, open, map[string]string{"p.rego": `package sallyport.team.x
deny contains concat("", ["no ", input.sandbox.name]) if true`})
	must.OK(t, err)
	d := p.Decide(t.Context(), from(policy.Sandbox{Name: "a\r\nSet-Cookie: x\x1b[2J\u202e" + strings.Repeat("y", 10_000)}, dns("a.example.com")))
	if d.Action != policy.Deny || strings.ContainsAny(d.Reason, "\r\n\x1b\u202e") || len(d.Reason) > 510 {
		t.Errorf("got %q", d.Reason)
	}
	if d.Rule != "sallyport.team.x" || d.RuleType != "rego" {
		t.Errorf("got rule %q of type %q", d.Rule, d.RuleType)
	}
}

func TestTeamLoadErrors(t *testing.T) {
	for _, tt := range []struct {
		name  string
		files map[string]string
		want  []string
	}{
		{"syntax", map[string]string{"p.rego": "package sallyport.team.x\ndeny contains if {"}, []string{"p.rego:2"}},
		{"another package", map[string]string{"p.rego": "package acme.egress\ndeny contains \"x\" if true"}, []string{"p.rego:1", "sallyport.team.egress"}},
		{"our package", map[string]string{"p.rego": "package sallyport\ndecision := 1"}, []string{"p.rego:1", "sallyport.team"}},
		{"a package that begins alike", map[string]string{"p.rego": "package sallyport.teams\ndeny contains \"x\" if true"}, []string{"p.rego:1"}},
		{"a typo in input", map[string]string{"p.rego": "package sallyport.team.x\ndeny contains \"x\" if input.reqest.method == \"GET\""}, []string{"p.rego:2", "reqest"}},
		{"the network", map[string]string{"p.rego": "package sallyport.team.x\ndeny contains \"x\" if http.send({}).status_code == 200"}, []string{"p.rego:2", "http.send is withheld"}},
		{"the environment", map[string]string{"p.rego": "package sallyport.team.x\ndeny contains \"x\" if opa.runtime().env.HOME"}, []string{"p.rego:2", "opa.runtime is withheld"}},
		{"name lookup", map[string]string{"p.rego": "package sallyport.team.x\ndeny contains \"x\" if net.lookup_ip_addr(\"x\")"}, []string{"p.rego:2", "net.lookup_ip_addr is withheld"}},
		{"a number as long as a client likes", map[string]string{"p.rego": "package sallyport.team.x\ndeny contains \"x\" if bits.lsh(1, input.request.size) > 5"}, []string{"p.rego:2", "bits.lsh is withheld"}},
		{"strict", map[string]string{"p.rego": "package sallyport.team.x\ndeny contains \"x\" if { y := 1 }"}, []string{"p.rego:2", "unused"}},
		{"deny that is no set", map[string]string{"p.rego": "package sallyport.team.x\n\ndeny if input.phase == \"dns\""}, []string{"p.rego:3", "deny contains"}},
		{"deny by default", map[string]string{"p.rego": "package sallyport.team.x\ndefault deny := false"}, []string{"p.rego:2", "deny contains"}},
		{"deny by key", map[string]string{"p.rego": "package sallyport.team.x\ndeny[x] := 1 if x := \"a\""}, []string{"p.rego:2", "deny contains"}},
		{"obligation", map[string]string{"p.rego": "package sallyport.team.x\nobligation contains {\"bytes\": 1} if true"}, []string{"p.rego:2", "obligation is not enforced"}},
		{"deny in a test", map[string]string{"p_test.rego": "package sallyport.team.x\ndeny contains \"x\" if true"}, []string{"p_test.rego:2", "takes part in no decision"}},
		{"recursion", map[string]string{"p.rego": "package sallyport.team.x\ndeny contains \"x\" if data.sallyport.decision.action == \"allow\""}, []string{"p.rego:2", "recursive"}},
		{"our data", map[string]string{"d.json": `{"sallyport": {"index": {}}}`}, []string{"d.json", "data.sallyport"}},
		{"our data by folder", map[string]string{"sallyport/index/d.json": `{"x": 1}`}, []string{"d.json", "data.sallyport"}},
		{"data twice", map[string]string{"a.json": `{"x": {"y": 1}}`, "b.yaml": "x: {y: 2}"}, []string{"b.yaml", "data.x.y"}},
		{"data that is a list", map[string]string{"a.json": `[1]`}, []string{"a.json", "not an object"}},
		{"bad data", map[string]string{"a.yaml": "x: [1"}, []string{"a.yaml:1"}},
		{"two at once", map[string]string{"a.rego": "package x", "b.rego": "package sallyport.team.y\ndeny if true"}, []string{"a.rego:1", "b.rego:2"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := withTeam(t, open, tt.files)
			if err == nil {
				t.Fatal("loaded")
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, want %q in it", err, want)
				}
			}
		})
	}
}

func TestTeamDirectory(t *testing.T) {
	p, err := withTeam(t, open, map[string]string{
		"p.rego":          "package sallyport.team.x\ndeny contains \"listed\" if input.destination.host in data.lists.hosts",
		"lists/hosts.yml": "hosts: [bad.example.com]",
		"lists/more.json": `{"other": 1}`,
		".git/x.rego":     "this is no Rego",
		"README.md":       "nor is this",
		"p_test.rego":     "package sallyport.team.x_test\ntest_x if true",
	})
	must.OK(t, err)
	if d := p.Decide(t.Context(), request("GET", "bad.example.com", "/")); d.Action != policy.Deny || d.Reason != "listed" {
		t.Errorf("got %+v", d)
	}
	if d := p.Decide(t.Context(), request("GET", "good.example.com", "/")); d.Action != policy.Allow {
		t.Errorf("got %+v", d)
	}
	again, err := withTeam(t, open, map[string]string{"p.rego": "package sallyport.team.x\ndeny contains \"x\" if false"})
	must.OK(t, err)
	if again.Revision() == p.Revision() {
		t.Error("another directory has the same revision")
	}
}

// A folder that is passed over could hold the deny that matters.
func TestTeamDirectoryLinks(t *testing.T) {
	dir, elsewhere := t.TempDir(), t.TempDir()
	doc := policy.Document{Policy: policy.Source{Dir: dir}}
	must.OK(t, os.Symlink(elsewhere, dir+"/more"))
	if _, err := engine.Compile(t.Context(), doc, engine.Options{}); err == nil {
		t.Error("a link to a folder was passed over")
	}
}

// A schema that a team's Rego refers to is not fetched when it is loaded.
func TestTeamFetchesNothing(t *testing.T) {
	var hits atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		hits.Add(1)
		_, _ = w.Write([]byte(`{"type": "object"}`))
	}))
	defer server.Close()
	_, err := withTeam(t, open, map[string]string{"p.rego": `package sallyport.team.x

# METADATA
# schemas:
#   - input: {"$ref": "` + server.URL + `/input.json"}
deny contains "x" if input.phase == "dns"`})
	if err == nil || hits.Load() != 0 {
		t.Errorf("got %v after %d fetches, want an error and none", err, hits.Load())
	}
}

// TestTeamExamples holds the examples that the directory's tests are run on.
func TestTeamExamples(t *testing.T) {
	files := map[string]string{}
	for _, name := range []string{"no_uploads.rego", "payments.rego", "uploads.json", "no_uploads_test.rego"} {
		text, err := os.ReadFile("testdata/team/" + name)
		must.OK(t, err)
		files[name] = string(text)
	}
	p, err := withTeam(t, open, files)
	must.OK(t, err)
	large := request("PUT", "a.example.com", "/")
	large.Request.Size = 20 << 20
	for what, tt := range map[string]struct {
		in   policy.Input
		want policy.Action
	}{
		"a large upload":       {large, policy.Deny},
		"a chunked upload":     {request("POST", "a.example.com", "/"), policy.Deny},
		"a download":           {request("GET", "a.example.com", "/"), policy.Allow},
		"a payment's name":     {dns("pay.example.com"), policy.Allow},
		"a payment":            {request("DELETE", "pay.example.com", "/"), policy.Approve},
		"a builder's payment":  {from(builder, request("DELETE", "pay.example.com", "/")), policy.Allow},
		"a look at a payment":  {request("GET", "pay.example.com", "/"), policy.Allow},
		"nothing else granted": {request("GET", "pay.example.net", "/"), policy.Deny},
	} {
		if d := p.Decide(t.Context(), tt.in); d.Action != tt.want {
			t.Errorf("%s: got %+v", what, d)
		}
	}
}
