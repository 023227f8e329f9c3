package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sallyport/audit"
	"sallyport/internal/past"
	"sallyport/policy"
)

// recorded writes requests into the log of a data directory, as they are decided by
// a configuration, and returns the decisions' ids.
func recorded(t *testing.T, file string, requests ...string) (ids []string) {
	t.Helper()
	g := &globals{configPath: file, output: "text"}
	p, err := g.compiled(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := g.config()
	if err != nil {
		t.Fatal(err)
	}
	log, err := audit.Open(auditDir(cfg), audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	for _, r := range requests {
		method, url, _ := strings.Cut(r, " ")
		in, err := explainInput("demo", method, url)
		if err != nil {
			t.Fatal(err)
		}
		in.Sandbox.Tags = map[string]string{"team": "support"}
		e := event(p.Decide(context.Background(), in), in)
		if err := log.Append(t.Context(), e); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, e.ID())
	}
	return ids
}

// event is what the gateway writes of a decision.
func event(d policy.Decision, in policy.Input) *audit.Event {
	q := in.Request
	e := audit.New(audit.KindDecision, audit.ClassHTTP, audit.HTTPActivity(q.Method))
	e.Destination = &audit.Endpoint{Hostname: in.Destination.Host, Port: int(in.Destination.Port)}
	e.HTTPRequest = &audit.HTTPRequest{Method: q.Method, Version: "HTTP/1.1", URL: &audit.URL{
		Scheme: q.Scheme, Hostname: in.Destination.Host, Port: int(in.Destination.Port), Path: q.Path}}
	e.Policy = &audit.Policy{Version: d.Revision}
	if d.Rule != "" {
		e.Rule = &audit.Rule{Name: d.Rule, Type: d.RuleType}
	}
	e.Action = audit.ActionDenied
	if d.Action == policy.Allow {
		e.Action = audit.ActionAllowed
	}
	x := &e.Unmapped.Sallyport
	x.Sandbox, x.Tags, x.Phase, x.Decision, x.Reason = in.Sandbox.Name, in.Sandbox.Tags, string(in.Phase), string(d.Action), d.Reason
	x.QueryKeys, x.Unsized = q.QueryKeys, q.Size < 0
	if o := d.Observed; o != nil {
		x.Observed = &audit.Observed{Decision: string(o.Action), Rule: o.Rule, RuleType: o.RuleType, Reason: o.Reason}
	}
	for _, i := range d.Inject {
		x.Credentials = append(x.Credentials, audit.CredentialUse{Name: i.Credential})
	}
	return e
}

const rules = `credentials: [{name: key}]
egress:
- {name: docs, destination: docs.example.com, methods: [GET], paths: ["/guide/**"]}
egressAuth:
- {name: api, destination: api.example.com, authRef: key}
`

// A candidate is judged by its status: 0 nothing changes, 1 something does that
// counts, 2 nobody knows.
func TestPolicyReplay(t *testing.T) {
	dir, file := configured(t, rules)
	ids := recorded(t, file, "GET https://docs.example.com/guide/a", "GET https://docs.example.com/guide/b",
		"POST https://docs.example.com/guide/12", "POST https://docs.example.com/guide/13", "GET https://api.example.com/v1")
	head := "dataDir: " + dir + "/data\nrunDir: " + dir + "/run\nengine: {kind: none}\n"
	candidate := filepath.Join(dir, "candidate.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(candidate, []byte(head+text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	replay := func(status int, args ...string) string {
		t.Helper()
		out, got, err := run(t, "", append([]string{"policy", "replay", "--config", candidate}, args...)...)
		if got != status {
			t.Errorf("%v: status %d, want %d: %s %v", args, got, status, out, err)
		}
		return out
	}
	write(rules)
	if out := replay(0); !strings.Contains(out, "5 decisions") || !strings.Contains(out, "5 the same") {
		t.Errorf("got %s", out)
	}
	write(strings.Replace(rules, "methods: [GET], ", "", 1))
	out := replay(1)
	for _, want := range []string{"2 newly allowed", "newly allowed: 2 × POST docs.example.com:443/guide/*", "was  deny", "is   allow by docs", ids[2] + " " + ids[3]} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in %s", want, out)
		}
	}
	replay(0, "--fail-on", "denied,approval")
	replay(1, "--fail-on", "denied,allowed")
	replay(0, "--fail-on", "none")
	replay(0, "--sandbox", "other")
	replay(0, "--since", "2099-01-01T00:00:00Z")
	replay(1, "--since", "1h")
	var r policy.Replay
	if err := json.Unmarshal([]byte(replay(1, "-o", "json")), &r); err != nil || r.ByChange[policy.NewlyAllowed] != 2 || r.Groups[0].Path != "/guide/*" {
		t.Errorf("got %+v, %v", r, err)
	}
	write("egress: [{destination: docs.example.com, methods: [GET, POST]}]\n")
	if out := replay(1, "--fail-on", "denied"); !strings.Contains(out, "was  allow by api with key") {
		t.Errorf("got %s", out)
	}
	replay(2, "--fail-on", "everything")
	replay(2, "--since", "yesterday")
	replay(2, "--audit", filepath.Join(dir, "nowhere"))
	write("egres: []\n")
	replay(2)
}

// A decision is explained by its id, with the policy of today and without a daemon.
func TestPolicyExplainsADecision(t *testing.T) {
	dir, file := configured(t, rules)
	ids := recorded(t, file, "GET https://docs.example.com/guide/a", "POST https://docs.example.com/guide/a?x=1")
	explained := func(config, id string) string {
		t.Helper()
		out, status, err := run(t, "", "policy", "explain", "--config", config, "--decision", id)
		if status != 0 {
			t.Fatalf("status %d, %v", status, err)
		}
		return out
	}
	out := explained(file, ids[1])
	for _, want := range []string{"no daemon is running", "POST https://docs.example.com:443/guide/a", "recorded  DENY", "sallyport.yaml is the one that decided", "fails on method (wants GET)", "sallyport.yaml:7"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in %s", want, out)
		}
	}
	candidate := filepath.Join(dir, "candidate.yaml")
	text := "dataDir: " + dir + "/data\nrunDir: " + dir + "/run\nengine: {kind: none}\negress: [{name: all, destination: docs.example.com}]\n"
	if err := os.WriteFile(candidate, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := explained(candidate, ids[1]); !strings.Contains(out, "answers otherwise (action, rule)") || !strings.Contains(out, "ALLOW: allowed by rule all") {
		t.Errorf("got %s", out)
	}
	out, status, err := run(t, "", "policy", "explain", "--config", file, "-o", "json", "--offline", "--decision", ids[0])
	var e past.Explanation
	if status != 0 || json.Unmarshal([]byte(out), &e) != nil || e.Recorded.ID != ids[0] || e.Decision.Rule != "docs" || len(e.Differs) > 0 {
		t.Errorf("got %d, %v, %s", status, err, out)
	}
	if _, status, err := run(t, "", "policy", "explain", "--config", file, "--decision", "nothing"); status != 1 || !strings.Contains(err.Error(), "no decision") {
		t.Errorf("got %d, %v", status, err)
	}
	// A request is explained likewise, and its team's Rego is asked.
	rego := filepath.Join(dir, "rego")
	if err := os.Mkdir(rego, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(rego, "a.rego"), []byte(`package sallyport.team.keys

deny contains "no keys in the query" if "key" in input.request.query_keys

allow contains {"rule": "support", "reason": "support may"} if input.sandbox.tags.team == "support"
`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(candidate, []byte(text+"policy: {dir: rego}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, status, err = run(t, "", "policy", "explain", "--config", candidate, "--sandbox", "demo", "--tag", "team=support", "get", "https://docs.example.com?a=1;%6bey=2")
	for _, want := range []string{"DENY: no keys in the query", "deny  sallyport.team.keys  no keys in the query", "allow  support  support may", "all → allow: fits"} {
		if status != 0 || !strings.Contains(out, want) {
			t.Errorf("%q is not in %s (%d, %v)", want, out, status, err)
		}
	}
}
