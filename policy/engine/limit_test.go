package engine_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sallyport/internal/config"
	"sallyport/internal/test/must"
	"sallyport/policy"
	"sallyport/policy/engine"
	"sallyport/policy/validate"
)

const bounded = `
egress: [{destination: "*.example.com", ports: [443, 80, 22], plain: true}, {name: raw, destination: raw.example.net, action: tunnel}, {name: ask, destination: ask.example.net, action: approve}]
egressAuth: [{destination: api.example.org, authRef: key}]
credentials: [{name: key}]
limits:
`

// applied lists a decision's limits as NAME SUBJECT CREDENTIALS.
func applied(d policy.Decision) (list []string) {
	for _, a := range d.Limits {
		list = append(list, fmt.Sprintf("%s %s %d", a.Name, a.Subject, a.Credentials))
	}
	slices.Sort(list)
	return list
}

func TestLimitsThatApply(t *testing.T) {
	p := compile(t, bounded+`
- {name: each, every: 1h, requests: 10}
- {name: support, sandboxes: {tags: {team: support}}, per: "tag:team", concurrent: 2}
- {name: named, sandboxes: {names: [demo, other]}, per: all, size: 1MiB}
- {name: below, destination: "*.example.com", per: destination, every: 1h, bytes: 1MiB}
- {name: one, destination: "a.example.com:443", every: 1h, requests: 1}
- {name: keyed, credential: key, every: 1h, uses: 5}
- {name: keys, per: credential, every: 1h, uses: 5}
- {name: region, per: "tag:region", every: 1h, requests: 5}
`, engine.Options{})
	for _, tt := range []struct {
		name string
		in   policy.Input
		want []string
	}{
		{"a host of a wildcard", request("GET", "a.example.com", "/"), []string{"below a.example.com:443 0", "each 1 0", "named all 0", "one 1 0", "region  0", "support support 0"}},
		{"another port", plain("GET", "a.example.com", 80, "/"), []string{"below a.example.com:80 0", "each 1 0", "named all 0", "region  0", "support support 0"}},
		{"another sandbox", from(builder, request("GET", "b.example.com", "/")), []string{"below b.example.com:443 0", "each 2 0", "region  0"}},
		{"a credential", request("GET", "api.example.org", "/"), []string{"each 1 1", "keyed 1 1", "keys key 1", "named all 1", "region  1", "support support 1"}},
		{"a tunnel", connect("raw.example.net", 443, policy.ProtocolTLS), []string{"each 1 0", "named all 0", "region  0", "support support 0"}},
		{"an approval", request("GET", "ask.example.net", "/"), []string{"each 1 0", "named all 0", "region  0", "support support 0"}},
		{"a connection that will be read", connect("a.example.com", 443, policy.ProtocolTLS), nil},
		{"a name", dns("a.example.com"), nil},
		{"what is denied", request("GET", "no.example.net", "/"), nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(applied(p.Decide(t.Context(), tt.in)), tt.want); diff != "" {
				t.Error(diff)
			}
		})
	}
	if !p.Limited() || compile(t, seed, engine.Options{}).Limited() {
		t.Error("Limited is wrong")
	}
}

// The gateway's process reads the document as JSON; it must be the same policy.
func TestLimitsCrossToTheProcess(t *testing.T) {
	c, err := config.Parse("sallyport.yaml", []byte(bounded+`
- {name: all, per: all, every: 90m, requests: 1, bytes: 1536KiB, uses: 2, concurrent: 3, size: 10MB, hours: {days: [mon], from: "08:00", to: "18:00", zone: Europe/Berlin}}
`))
	must.OK(t, err)
	text, err := json.Marshal(c.Document)
	must.OK(t, err)
	var doc policy.Document
	must.OK(t, json.Unmarshal(text, &doc))
	if diff := cmp.Diff(doc.Limits, c.Document.Limits); diff != "" {
		t.Error(diff)
	}
	one, _ := engine.Compile(t.Context(), c.Document, engine.Options{})
	c.Document.Limits[0].Requests++
	two, err := engine.Compile(t.Context(), c.Document, engine.Options{})
	if err != nil || one.Revision() == two.Revision() {
		t.Errorf("another limit is the same revision: %v", err)
	}
}

func TestLimitFindings(t *testing.T) {
	for _, tt := range []struct{ name, yaml, want string }{
		{"good", `{name: a, every: 1h, requests: 1}`, ""},
		{"no name", `{every: 1h, requests: 1}`, "limits[0]: has no name"},
		{"name twice", "{name: a, concurrent: 1}\n- {name: a, concurrent: 2}", `limits[1].name: "a" is already the name of limits[0]`},
		{"nothing limited", `{name: a}`, "limits[0]: limits nothing"},
		{"no period", `{name: a, requests: 1}`, "limits[0]: says how much and not for how long; write every: 24h"},
		{"a period of nothing", `{name: a, every: 1h, size: 1KiB}`, "limits[0].every: has nothing to count"},
		{"too short", `{name: a, every: 1ms, requests: 1}`, "limits[0].every: 1ms is no period"},
		{"negative", `{name: a, every: 1h, requests: -1}`, "limits[0].requests: -1 is less than none"},
		{"unknown per", `{name: a, per: sandbx, concurrent: 1}`, "did you mean sandbox?"},
		{"no tag", `{name: a, per: "tag:", concurrent: 1}`, "names no tag"},
		{"misspelled tag", `{name: a, per: "tag:taem", sandboxes: {tags: {team: x}}, concurrent: 1}`, `did you mean "tag:team"?`},
		{"unknown credential", `{name: a, credential: kye, every: 1h, uses: 1}`, `there is no credential "kye"; did you mean "key"?`},
		{"a destination that no rule allows", `{name: a, destination: x.example.net, concurrent: 1}`, "limits[0].destination: no rule allows"},
		{"uses where nothing is given", `{name: a, destination: a.example.com, every: 1h, uses: 1}`, "no egressAuth rule gives a credential"},
		{"a size", `{name: a, size: 10Mi}`, "is not a size as 64KiB"},
		{"days", `{name: a, hours: {days: [monday]}}`, "limits[0].hours.days[0]: \"monday\" is not a day"},
		{"hours", `{name: a, hours: {from: "8"}}`, "limits[0].hours.from: \"8\" is not a time of the day"},
		{"zone", `{name: a, hours: {zone: Europe/Berlim}}`, "limits[0].hours.zone: \"Europe/Berlim\" is not a time zone"},
		{"no hours", `{name: a, hours: {from: "08:00", to: "08:00"}}`, "limits[0].hours.to: is the same time as from"},
		{"no sandboxes", `{name: a, concurrent: 1, sandboxes: {names: []}}`, "limits[0].sandboxes.names: is empty"},
		{"an unknown key", `{name: a, every: 1h, token: 1}`, "unknown key"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := config.Parse("sallyport.yaml", []byte(bounded+"- "+tt.yaml+"\n"))
			text := fmt.Sprint(err)
			if c != nil && err == nil {
				text = ""
				for _, f := range validate.Document(c.Document) {
					text += f.Error() + "\n"
				}
			}
			if tt.want == "" && text != "" || !strings.Contains(text, tt.want) {
				t.Errorf("got %s\nwant %q", text, tt.want)
			}
		})
	}
}

func TestHours(t *testing.T) {
	for _, tt := range []struct {
		hours, at string
		want      time.Duration
	}{
		{`{from: "08:00", to: "18:00"}`, "2026-03-02T07:59:30Z", 30 * time.Second},
		{`{from: "08:00", to: "18:00"}`, "2026-03-02T08:00:00Z", 0},
		{`{from: "08:00", to: "18:00"}`, "2026-03-02T18:00:00Z", 14 * time.Hour},
		{`{days: [mon], from: "08:00", to: "18:00"}`, "2026-03-02T18:00:00Z", 6*24*time.Hour + 14*time.Hour},
		{`{days: [mon], from: "08:00", to: "18:00", zone: Europe/Berlin}`, "2026-03-02T07:00:00Z", 0},
		// The clocks there go forward meanwhile.
		{`{days: [mon], from: "08:00", to: "18:00", zone: Europe/Berlin}`, "2026-03-23T17:00:00Z", 7*24*time.Hour - 11*time.Hour},
		{`{days: [fri], from: "22:00", to: "06:00"}`, "2026-03-07T05:59:00Z", 0},
		{`{days: [fri], from: "22:00", to: "06:00"}`, "2026-03-08T05:59:00Z", 5*24*time.Hour + 16*time.Hour + time.Minute},
		{`{days: [sat, sun]}`, "2026-03-08T23:59:59Z", 0},
		{`{to: "24:00", from: "23:00"}`, "2026-03-08T23:59:59Z", 0},
	} {
		p := compile(t, bounded+"- {name: a, hours: "+tt.hours+"}\n", engine.Options{})
		at, err := time.Parse(time.RFC3339, tt.at)
		must.OK(t, err)
		a := p.Decide(t.Context(), request("GET", "a.example.com", "/")).Limits[0]
		for range 2 { // the second time from what is remembered
			if got := a.Opens(at); got != tt.want {
				t.Errorf("%s at %s: opens in %v, want %v", tt.hours, tt.at, got, tt.want)
			}
		}
	}
}

func TestTeamLimits(t *testing.T) {
	const good = `limit contains {"name": "posts", "per": "sandbox", "every": "24h", "requests": 5, "bytes": "1MiB"} if input.request.method == "POST"`
	for _, tt := range []struct {
		name, rego string
		in         policy.Input
		want       []string
		err        string // part of the decision's
	}{
		{"where it speaks", good, request("POST", "a.example.com", "/"), []string{"posts 1 0", "yaml 1 0"}, ""},
		{"where it does not", good, request("GET", "a.example.com", "/"), []string{"yaml 1 0"}, ""},
		{"a number of bytes", `limit contains {"name": "x", "every": "1h", "bytes": 1024} if true`, request("GET", "a.example.com", "/"), []string{"x 1 0", "yaml 1 0"}, ""},
		{"a tunnel", `limit contains {"name": "x", "per": "all", "concurrent": 1} if input.phase == "connect"`, connect("raw.example.net", 443, policy.ProtocolTLS), []string{"x all 0", "yaml 1 0"}, ""},
		{"of a credential", `limit contains {"name": "x", "per": "credential", "every": "1h", "uses": 1} if true`, request("GET", "api.example.org", "/"), []string{"x key 1", "yaml 1 1"}, ""},
		{"no object", `limit contains "x" if true`, request("GET", "a.example.com", "/"), nil, "a limit must be"},
		{"unknown key", `limit contains {"name": "x", "concurent": 1} if true`, request("GET", "a.example.com", "/"), nil, "concurent"},
		{"no period", `limit contains {"name": "x", "requests": 1} if true`, request("GET", "a.example.com", "/"), nil, "not for how long"},
		{"two of a name", `limit contains {"name": "x", "concurrent": n} if some n in [1, 2]`, request("GET", "a.example.com", "/"), nil, "are named"},
		{"a name of the document's", `limit contains {"name": "yaml", "concurrent": 1} if true`, request("GET", "a.example.com", "/"), nil, "as one of sallyport.yaml's is"},
		{"a destination", `limit contains {"name": "x", "destination": "a", "concurrent": 1} if true`, request("GET", "a.example.com", "/"), nil, "condition"},
		{"too many", `limit contains {"name": sprintf("x%d", [n]), "concurrent": 1} if some n in numbers.range(1, 40)`, request("GET", "a.example.com", "/"), nil, "at most 32"},
		{"a conflict", "f(x) := 1 if x\nf(x) := 2 if x\nlimit contains {\"name\": \"x\", \"concurrent\": f(true)} if true", request("GET", "a.example.com", "/"), nil, "conflict"},
		{"malformed and denied anyhow", `limit contains "x" if true`, request("GET", "no.example.net", "/"), nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, err := withTeam(t, bounded+"- {name: yaml, every: 1h, requests: 10}\n", map[string]string{"p.rego": "package sallyport.team.x\n" + tt.rego})
			must.OK(t, err)
			for range 2 { // an answer that was kept would be another
				d := p.Decide(t.Context(), tt.in)
				if diff := cmp.Diff(applied(d), tt.want); diff != "" {
					t.Error(diff)
				}
				if (tt.err != "") != errors.Is(d.Err, engine.ErrUndecided) || tt.err != "" && (d.Action != policy.Deny || !strings.Contains(d.Err.Error(), tt.err)) {
					t.Errorf("%s: %v", d.Action, d.Err)
				}
			}
			if p.CacheHits() != 0 {
				t.Error("an answer was kept")
			}
		})
	}
}

func TestLimitsInObserveMode(t *testing.T) {
	p := compile(t, bounded+"- {name: few, every: 1h, requests: 1}\nobserve: [{sandboxes: {names: [demo]}, until: "+time.Now().Add(time.Hour).UTC().Format(time.RFC3339)+"}]\n", engine.Options{})
	in := request("GET", "a.example.com", "/")
	if d := p.Decide(t.Context(), in); !d.Lenient || len(d.Limits) != 1 {
		t.Errorf("%+v", d)
	}
	if d := p.DecideAt(t.Context(), in, time.Now().Add(2*time.Hour)); d.Lenient {
		t.Error("it has ended")
	}
	if d := p.Decide(t.Context(), from(builder, in)); d.Lenient {
		t.Error("another sandbox")
	}
}

// An explanation crosses the control socket as JSON.
func TestLimitsOfAnExplanation(t *testing.T) {
	p := compile(t, bounded+"- {name: few, per: all, every: 1h, requests: 1, bytes: 1KiB}\n", engine.Options{})
	text, err := json.Marshal(p.Explain(t.Context(), request("GET", "a.example.com", "/")))
	must.OK(t, err)
	var e policy.Explanation
	must.OK(t, json.Unmarshal(text, &e))
	if got := applied(e.Decision); len(got) != 1 || got[0] != "few all 0" || e.Decision.Limits[0].Bytes != 1024 {
		t.Errorf("%v of %s", got, text)
	}
}
