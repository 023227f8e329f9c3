package engine_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sallyport/internal/config"
	"sallyport/internal/test/must"
	"sallyport/policy"
	"sallyport/policy/body"
	"sallyport/policy/engine"
)

// under is the policy of a configuration, with a team's Rego unless that is empty.
func under(t *testing.T, text, rego string) *engine.Policy {
	t.Helper()
	c, err := config.Parse(filepath.Join(t.TempDir(), "sallyport.yaml"), []byte(text))
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	if rego != "" {
		c.Document.Policy.Dir = t.TempDir()
		must.OK(t, os.WriteFile(filepath.Join(c.Document.Policy.Dir, "x.rego"), []byte("package sallyport.team.x\n\n"+rego), 0o600))
	}
	return compiled(t, c.Document)
}

// TestReadings: a path with encoded slashes may do what every reading of it may.
func TestReadings(t *testing.T) {
	const keys = "credentials: [{name: one}, {name: two}]\n"
	until := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	for _, tt := range []struct {
		name, text, rego, path string
		want                   policy.Action
		rule                   string
		reason                 string // part of it
		credentials            []string
	}{
		{"each is allowed", `egress: [{name: r, destination: a.example.com, paths: ["/v1/**"]}]`, "", "/v1/a%2Fb", policy.Allow, "r", "", nil},
		{"allowed as sent alone", `egress: [{name: r, destination: a.example.com, paths: ["/v1/*"]}]`, "", "/v1/a%2Fb", policy.Deny, "", "/v1/a/b", nil},
		{"allowed decoded alone", `egress: [{name: r, destination: a.example.com, paths: ["/v1/a/*"]}]`, "", "/v1/a%2Fb", policy.Deny, "", "/v1/a%2Fb", nil},
		{"the prefix is allowed decoded alone", `egress: [{name: r, destination: a.example.com, paths: ["/v1/**"]}]`, "", "/v1%2Fa", policy.Deny, "", "/v1%2Fa", nil},
		{"each is allowed by another rule", `egress: [{name: r, destination: a.example.com, paths: ["/v1/*"]}, {name: q, destination: a.example.com, paths: ["/v1/*/*"]}]`, "", "/v1/a%2Fb", policy.Allow, "r", "", nil},
		{"a glob for each", `egress: [{name: r, destination: a.example.com, paths: ["/v1/a%2F*"]}]`, "", "/v1/a%2Fb", policy.Allow, "r", "", nil},
		{"a glob for each, of another name", `egress: [{name: r, destination: a.example.com, paths: ["/v1/a%2F*"]}]`, "", "/v1/b%2Fb", policy.Deny, "", "", nil},
		{"denied decoded", `egress: [{name: r, destination: a.example.com}, {name: no, destination: a.example.com, action: deny, paths: ["/admin/**"]}]`, "", "/admin%2Fx",
			policy.Deny, "no", "the path read as /admin/x", nil},
		{"denied as sent", `egress: [{name: r, destination: a.example.com}, {name: no, destination: a.example.com, action: deny, paths: ["/p/*/keys"]}]`, "", "/p/a%2Fb/keys",
			policy.Deny, "no", "the path read as /p/a%2Fb/keys", nil},
		{"denied where one segment is decoded", `egress: [{name: r, destination: a.example.com}, {name: no, destination: a.example.com, action: deny, paths: ["/p/*/f/secret/*"]}]`, "",
			"/p/a%2Fb/f/secret%2Fx", policy.Deny, "no", "the path read as /p/a%2Fb/f/secret/x", nil},
		{"approved in one", `egress: [{name: r, destination: a.example.com}, {name: ask, destination: a.example.com, action: approve, paths: ["/v1/a/*"]}]`, "", "/v1/a%2Fb", policy.Approve, "ask", "/v1/a/b", nil},
		{"the same credential", keys + `egressAuth: [{name: r, destination: a.example.com, paths: ["/v1/**"], authRef: one}]`, "", "/v1/a%2Fb", policy.Allow, "r", "", []string{"one"}},
		{"another credential", keys + `egressAuth: [{name: r, destination: a.example.com, paths: ["/v1/*"], authRef: one}, {name: q, destination: a.example.com, paths: ["/v1/*/*"], authRef: two}]`, "",
			"/v1/a%2Fb", policy.Deny, "", "the same credentials", nil},
		{"another place", keys + `egressAuth: [{name: r, destination: a.example.com, paths: ["/v1/*"], authRef: one}, {name: q, destination: a.example.com, paths: ["/v1/*/*"], authRef: one, inject: {query: {name: k, value: "{{ .token }}"}}}]`, "",
			"/v1/a%2Fb", policy.Deny, "", "the same credentials", nil},
		{"a credential more", keys + `egressAuth: [{name: r, destination: a.example.com, paths: ["/v1/**"], authRef: one}, {name: q, destination: a.example.com, paths: ["/v1/*/*"], authRef: two, inject: {query: {name: k, value: "{{ .token }}"}}}]`, "",
			"/v1/a%2Fb", policy.Deny, "", "the same credentials", nil},
		{"another way", `egress: [{name: r, destination: "*.example.com", paths: ["/v1/*"], upstream: {addresses: [10.0.0.2]}}, {name: q, destination: a.example.com, paths: ["/v1/*/*"], upstream: {addresses: [10.0.0.1]}}]`, "",
			"/v1/a%2Fb", policy.Deny, "", "the same way", nil},
		{"a team denies decoded", `egress: [{name: r, destination: a.example.com}]`, `deny contains "no" if startswith(input.request.path, "/admin/")`, "/admin%2Fx", policy.Deny, "sallyport.team.x", "no", nil},
		{"a team denies what is not", `egress: [{name: r, destination: a.example.com}]`, "deny contains \"no\" if {\n\tinput.request\n\tnot startswith(input.request.path, \"/v1/\")\n}", "/v1%2Fx", policy.Deny, "sallyport.team.x", "no", nil},
		{"a team allows one", `egress: []`, `allow contains {"rule": "t"} if input.request.path == "/v1/x"`, "/v1%2Fx", policy.Deny, "", "", nil},
		{"a team allows all", `egress: []`, `allow contains {"rule": "t"} if startswith(input.request.path, "/v1/")`, "/v1/a%2Fb", policy.Allow, "t", "", nil},
		{"a team allows by what was sent", `egress: []`, `allow contains {"rule": "t"} if input.request.raw_path == "/v1%2Fx"`, "/v1%2Fx", policy.Allow, "t", "", nil},
		{"a sandbox is observed", `egress: [{name: r, destination: a.example.com, paths: ["/v1/*"]}]` + "\nobserve: [{sandboxes: {names: [a]}, until: " + until + "}]", "", "/v1/a%2Fb", policy.Allow, "observe", "observe mode", nil},
		{"observed, and one has a credential", keys + `egressAuth: [{name: r, destination: a.example.com, paths: ["/v1/*"], authRef: one}]` + "\nobserve: [{sandboxes: {names: [a]}, until: " + until + "}]", "", "/v1/a%2Fb",
			policy.Allow, "observe", "observe mode", nil},
		{"one segment too many", `egress: [{name: r, destination: a.example.com}]`, "", "/a%2Fb/a%2Fb/a%2Fb/a%2Fb", policy.Deny, "", "segments", nil},
		{"dots in a reading", `egress: [{name: r, destination: a.example.com}]`, "", "/a%2F..%2Fb", policy.Deny, "", "a dot segment", nil},
		{"an empty segment in a reading", `egress: [{name: r, destination: a.example.com}]`, "", "/a%2F%2Fb", policy.Deny, "", "not normalised", nil},
		{"in lower case", `egress: [{name: r, destination: a.example.com}]`, "", "/a%2fb", policy.Deny, "", "encoded twice", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := under(t, tt.text, tt.rego)
			in := by("a", request("GET", "a.example.com", tt.path))
			for range 2 { // the second time from what is kept
				d := p.Decide(t.Context(), in)
				var credentials []string
				for _, i := range d.Inject {
					credentials = append(credentials, i.Credential)
				}
				if d.Action != tt.want || d.Rule != tt.rule || !strings.Contains(d.Reason, tt.reason) || !slices.Equal(credentials, tt.credentials) || d.Err != nil {
					t.Errorf("got %s by %q with %q: %s %v, want %s by %q with %q: %s", d.Action, d.Rule, credentials, d.Reason, d.Err, tt.want, tt.rule, tt.credentials, tt.reason)
				}
			}
		})
	}
}

// TestReadingsCountOnce: a limit of both readings is one, and one of either applies.
func TestReadingsCountOnce(t *testing.T) {
	p := under(t, `egress: [{name: r, destination: a.example.com}]
limits:
- {name: all, every: 1h, requests: 10}
`, `limit contains {"name": "team", "every": "1h", "requests": 5} if startswith(input.request.path, "/v1/")

limit contains {"name": "decoded", "every": "1h", "requests": 5} if input.request.path == "/v1/a/b"`)
	var names []string
	for _, l := range p.Decide(t.Context(), by("a", request("GET", "a.example.com", "/v1/a%2Fb"))).Limits {
		names = append(names, l.Name)
	}
	slices.Sort(names)
	if diff := cmp.Diff([]string{"all", "decoded", "team"}, names); diff != "" {
		t.Errorf("limits (-want +got):\n%s", diff)
	}
}

// TestReadingsNeedABody: what a rule of any reading has to see is read.
func TestReadingsNeedABody(t *testing.T) {
	p := under(t, `egress: [{name: r, destination: a.example.com}, {name: b, destination: a.example.com, paths: ["/v1/a/*"], body: {json: 1KiB}}]`, "")
	in := by("a", request("POST", "a.example.com", "/v1/a%2Fb"))
	n := p.Need(in)
	if n.Max != 1<<10 || !n.JSON {
		t.Fatalf("needs %+v", n)
	}
	if d := p.Decide(t.Context(), in); d.Action != policy.Deny || d.Unjudged == nil {
		t.Errorf("without a body: %s: %s", d.Action, d.Reason)
	}
	in.Request.Body = body.Read(n, []byte("{}"))
	if d := p.Decide(t.Context(), in); d.Action != policy.Allow {
		t.Errorf("with a body: %s: %s", d.Action, d.Reason)
	}
}

// TestReadingsAreExplained one by one, and a rule that denies one has not failed.
func TestReadingsAreExplained(t *testing.T) {
	p := under(t, `egress: [{name: r, destination: a.example.com, paths: ["/p/*"]}, {name: no, destination: a.example.com, action: deny, paths: ["/p/a/**"]}]`, "")
	e := p.Explain(t.Context(), by("a", request("GET", "a.example.com", "/p/a%2Fb")))
	var got []string
	for _, r := range e.Variants {
		got = append(got, r.Path+" "+string(r.Action)+" "+r.Rule)
	}
	for _, n := range e.Near {
		got = append(got, n.Rule+" fails on "+strings.Join(n.Failed, ","))
	}
	if diff := cmp.Diff([]string{"/p/a%2Fb allow r", "/p/a/b deny no", "no fails on ", "r fails on path"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if e := p.Explain(t.Context(), by("a", request("GET", "a.example.com", "/p/a"))); len(e.Variants) != 0 {
		t.Errorf("one reading is explained as %+v", e.Variants)
	}
}

// TestEncodedGlobs: rules are compared by what their globs match in each reading.
func TestEncodedGlobs(t *testing.T) {
	for _, tt := range []struct{ name, text, finding string }{
		{"two credentials in one place", `egressAuth: [{name: r, destination: a.example.com, paths: ["/a%2Fb"], authRef: one}, {name: q, destination: a.example.com, paths: ["/a/*"], authRef: two}]`, "overlaps"},
		{"apart", `egressAuth: [{name: r, destination: a.example.com, paths: ["/a%2Fb"], authRef: one}, {name: q, destination: a.example.com, paths: ["/b%2F*"], authRef: two}]`, ""},
		{"lower case", `egress: [{destination: a.example.com, paths: ["/a%2fb"]}]`, `write "/a%2Fb"`},
		{"another encoding", `egress: [{destination: a.example.com, paths: ["/a%20b"]}]`, "write the character itself"},
		{"beside a slash", `egress: [{destination: a.example.com, paths: ["/a%2F/b"]}]`, "beside a slash"},
		{"dots", `egress: [{destination: a.example.com, paths: ["/a%2F.."]}]`, "a dot segment"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := config.Parse("sallyport.yaml", []byte("credentials: [{name: one}, {name: two}]\n"+tt.text))
			switch {
			case tt.finding == "" && err != nil:
				t.Error(err)
			case tt.finding != "" && (err == nil || !strings.Contains(err.Error(), tt.finding)):
				t.Errorf("got %v, want %s", err, tt.finding)
			}
		})
	}
}

// TestReadingsAreKeptApart: an answer that is kept is of what was sent, too.
func TestReadingsAreKeptApart(t *testing.T) {
	p := under(t, "egress: []", `allow contains {"rule": "t"} if input.request.raw_path == "/v1%2Fx"`)
	for range 2 {
		for path, want := range map[string]policy.Action{"/v1%2Fx": policy.Allow, "/v1/x": policy.Deny} {
			if d := p.Decide(t.Context(), by("a", request("GET", "a.example.com", path))); d.Action != want {
				t.Errorf("%s: %s: %s", path, d.Action, d.Reason)
			}
		}
	}
}
