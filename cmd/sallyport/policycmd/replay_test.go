package policycmd

import (
	"context"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/cmd/sallyport/cli"
	"sallyport/internal/config"
	"sallyport/internal/recorded"
	"sallyport/internal/test/clitest"
	"sallyport/internal/test/must"
	"sallyport/policy"
	"sallyport/policy/replay"
)

// recorded writes requests into the log of a data directory, as they are decided by
// a configuration, and returns the decisions' ids.
func recordedOf(t *testing.T, file string, requests ...string) (ids []string) {
	t.Helper()
	p, cfg, err := compiled(t.Context(), &cli.Globals{Location: config.Location{File: file}, Output: "text"})
	must.OK(t, err)
	log, err := auditlog.Open(cfg.AuditDir(), auditlog.Options{})
	must.OK(t, err)
	defer log.Close()
	for _, r := range requests {
		method, url, _ := strings.Cut(r, " ")
		in, err := explainInput("demo", method, url)
		must.OK(t, err)
		in.Sandbox.Tags = map[string]string{"team": "support"}
		e := event(p.Decide(context.Background(), in), in)
		must.OK(t, log.Append(t.Context(), e))
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
	dir, file := clitest.Configured(t, rules)
	ids := recordedOf(t, file, "GET https://docs.example.com/guide/a", "GET https://docs.example.com/guide/b",
		"POST https://docs.example.com/guide/12", "POST https://docs.example.com/guide/13", "GET https://api.example.com/v1")
	head := "dataDir: " + dir + "/data\nrunDir: " + dir + "/run\nengine: {kind: none}\n"
	candidate := filepath.Join(dir, "candidate.yaml")
	propose := func(text string) { write(t, dir, map[string]string{"candidate.yaml": head + text}) }
	replayed := func(status int, args ...string) string {
		t.Helper()
		out, got, err := run(t, "", append([]string{"policy", "replay", "--config", candidate}, args...)...)
		if got != status {
			t.Errorf("%v: status %d, want %d: %s %v", args, got, status, out, err)
		}
		return out
	}
	propose(rules)
	if out := replayed(0); !strings.Contains(out, "5 decisions") || !strings.Contains(out, "5 the same") {
		t.Errorf("got %s", out)
	}
	propose(strings.Replace(rules, "methods: [GET], ", "", 1))
	out := replayed(1)
	for _, want := range []string{"2 newly allowed", "newly allowed: 2 × POST docs.example.com:443/guide/*", "was  deny", "is   allow by docs", ids[2] + " " + ids[3]} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in %s", want, out)
		}
	}
	replayed(0, "--fail-on", "denied,approval")
	replayed(1, "--fail-on", "denied,allowed")
	replayed(0, "--fail-on", "none")
	replayed(0, "--sandbox", "other")
	replayed(0, "--since", "2099-01-01T00:00:00Z")
	replayed(1, "--since", "1h")
	var r replay.Report
	if err := json.Unmarshal([]byte(replayed(1, "-o", "json")), &r); err != nil || r.ByChange[replay.NewlyAllowed] != 2 || r.Groups[0].Path != "/guide/*" {
		t.Errorf("got %+v, %v", r, err)
	}
	propose("egress: [{destination: docs.example.com, methods: [GET, POST]}]\n")
	if out := replayed(1, "--fail-on", "denied"); !strings.Contains(out, "was  allow by api with key") {
		t.Errorf("got %s", out)
	}
	replayed(2, "--fail-on", "everything")
	replayed(2, "--since", "yesterday")
	replayed(2, "--audit", filepath.Join(dir, "nowhere"))
	propose("egres: []\n")
	replayed(2)
}

// A decision that needs a body is counted by its rule, and fails where that is asked for.
func TestPolicyReplayWithoutBodies(t *testing.T) {
	_, file := clitest.Configured(t, "egress:\n- {name: tools, destination: mcp.example.com, methods: [POST], body: {json: 1KiB}}\n")
	ids := recordedOf(t, file, "POST https://mcp.example.com/mcp", "GET https://mcp.example.com/mcp")
	for fail, want := range map[string]int{"": 0, "allowed": 0, "none": 0, "body": 1, "allowed,body": 1, "bodies": 2} {
		args := []string{"policy", "replay", "--config", file}
		if fail != "" {
			args = append(args, "--fail-on", fail)
		}
		out, status, err := run(t, "", args...)
		if status != want {
			t.Errorf("--fail-on %q: status %d, want %d (%v)", fail, status, want, err)
		}
		for _, text := range []string{"1 not decided again: the policy reads the request's body", "1 by tools (egress), e.g. " + ids[0]} {
			if want < 2 && !strings.Contains(out, text) {
				t.Errorf("%q is not in %s", text, out)
			}
		}
	}
	out, status, err := run(t, "", "policy", "explain", "--config", file, "--offline", "--decision", ids[0])
	if status != 0 || !strings.Contains(out, "it cannot be made again: the policy reads the request's body") {
		t.Errorf("got %s, %d, %v", out, status, err)
	}
}

// A request is explained with its body and what says what that is.
func TestPolicyExplainsABody(t *testing.T) {
	dir, file := clitest.Configured(t, "egress:\n- {name: tools, destination: mcp.example.com, methods: [POST], body: {json: 1KiB}}\npolicy: {dir: rego}\n")
	write(t, dir, map[string]string{"rego/a.rego": `package sallyport.team.tools

deny contains sprintf("not %s", [input.request.body.json.tool]) if input.request.body.json.tool != "search"

deny contains "no secrets" if "X-Secret" in input.request.headers

deny contains "too large" if input.request.size > 50
`})
	body := filepath.Join(dir, "call.json")
	const ask = "give it with --body FILE"
	for _, test := range []struct {
		name, text string
		args       []string
		want       string
		silent     string
	}{
		{name: "none", want: ask},
		{name: "allowed", text: `{"tool": "search"}`, args: []string{"--body", body}, want: "ALLOW: allowed by rule tools", silent: ask},
		{name: "denied", text: `{"tool": "delete"}`, args: []string{"--body", body}, want: "DENY: not delete", silent: ask},
		{name: "standard input", text: `{"tool": "shell"}`, args: []string{"--body", "-"}, want: "DENY: not shell"},
		{name: "its size", text: `{"tool": "search", "why": "` + strings.Repeat("x", 50) + `"}`, args: []string{"--body", body}, want: "DENY: too large"},
		{name: "too long for the rule", text: `"` + strings.Repeat("x", 1024) + `"`, args: []string{"--body", body}, want: "it is too long: more than 1KiB"},
		{name: "too long for any", text: strings.Repeat("x", 3<<20), args: []string{"--body", "-"}, want: "it is too long: more than 1KiB"},
		{name: "empty", args: []string{"--body", "-"}, want: "there is none", silent: ask},
		{name: "not JSON", text: "tool=search", args: []string{"--body", body}, want: "decides by the request's body"},
		{name: "another type", text: `{"tool": "search"}`, args: []string{"--body", body, "--header", "content-type: text/plain"}, want: "its Content-Type is not"},
		{name: "coded", text: `{"tool": "search"}`, args: []string{"--body", body, "--header", "Content-Encoding: gzip"}, want: "it has a content coding"},
		{name: "a header's name", text: `{"tool": "search"}`, args: []string{"--body", body, "--header", "x-secret: sesame"}, want: "DENY: no secrets", silent: "sesame"},
	} {
		t.Run(test.name, func(t *testing.T) {
			write(t, dir, map[string]string{"call.json": test.text})
			args := append([]string{"policy", "explain", "--config", file, "--offline"}, test.args...)
			out, status, err := run(t, test.text, append(args, "POST", "https://mcp.example.com/mcp")...)
			if status != 0 || !strings.Contains(out, test.want) || test.silent != "" && strings.Contains(out, test.silent) {
				t.Errorf("%q is not in, or %q is in %s (%d, %v)", test.want, test.silent, out, status, err)
			}
		})
	}
	for _, args := range [][]string{{"--header", "no colon"}, {"--decision", "x", "--body", body}} {
		if args[0] == "--header" {
			args = append(args, "POST", "https://mcp.example.com/")
		}
		if _, status, err := run(t, "", append([]string{"policy", "explain", "--config", file, "--offline"}, args...)...); status != 2 {
			t.Errorf("%v: %d, %v", args, status, err)
		}
	}
}

// A decision is explained by its id, with the policy of today and without a daemon.
func TestPolicyExplainsADecision(t *testing.T) {
	dir, file := clitest.Configured(t, rules)
	ids := recordedOf(t, file, "GET https://docs.example.com/guide/a", "POST https://docs.example.com/guide/a?x=1")
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
	write(t, dir, map[string]string{"candidate.yaml": text})
	if out := explained(candidate, ids[1]); !strings.Contains(out, "answers otherwise (action, rule)") || !strings.Contains(out, "ALLOW: allowed by rule all") {
		t.Errorf("got %s", out)
	}
	out, status, err := run(t, "", "policy", "explain", "--config", file, "-o", "json", "--offline", "--decision", ids[0])
	var e recorded.Explanation
	if status != 0 || json.Unmarshal([]byte(out), &e) != nil || e.Recorded.ID != ids[0] || e.Decision.Rule != "docs" || len(e.Differs) > 0 {
		t.Errorf("got %d, %v, %s", status, err, out)
	}
	if _, status, err := run(t, "", "policy", "explain", "--config", file, "--decision", "nothing"); status != 1 || !strings.Contains(err.Error(), "no decision") {
		t.Errorf("got %d, %v", status, err)
	}
	// A request is explained likewise, and its team's Rego is asked.
	write(t, dir, map[string]string{"candidate.yaml": text + "policy: {dir: rego}\n", "rego/a.rego": `package sallyport.team.keys

deny contains "no keys in the query" if "key" in input.request.query_keys

allow contains {"rule": "support", "reason": "support may"} if input.sandbox.tags.team == "support"
`})
	out, status, err = run(t, "", "policy", "explain", "--config", candidate, "--sandbox", "demo", "--tag", "team=support", "get", "https://docs.example.com?a=1;%6bey=2")
	for _, want := range []string{"DENY: no keys in the query", "deny  sallyport.team.keys  no keys in the query", "allow  support  support may", "all → allow: fits"} {
		if status != 0 || !strings.Contains(out, want) {
			t.Errorf("%q is not in %s (%d, %v)", want, out, status, err)
		}
	}
}
