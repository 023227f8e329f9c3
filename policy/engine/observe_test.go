package engine_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"sallyport/internal/test/must"
	"sallyport/policy"
	"sallyport/policy/engine"
	"sallyport/policy/finding"
	"sallyport/policy/learn"
	"sallyport/policy/replay"
	"sallyport/policy/validate"
)

// observed is a document in observe mode for an hour from now.
func observedDocument(until time.Time) policy.Document {
	return policy.Document{
		Credentials: []policy.Credential{{Name: "key"}},
		Egress: []policy.EgressRule{
			{Name: "docs", Destination: "docs.example.com", Methods: []string{"GET"}},
			{Name: "no-uploads", Destination: "files.example.com", Methods: []string{"PUT"}, Action: policy.Deny, Observe: until},
			{Name: "files", Destination: "files.example.com"},
			{Name: "never", Destination: "files.example.com", Paths: []string{"/never/**"}, Action: policy.Deny},
			{Name: "notes", Destination: "notes.example.com", Methods: []string{"GET"}, Observe: until},
			{Name: "lone", Destination: "lone.example.com", Action: policy.Deny, Observe: until},
			{Name: "ask", Destination: "ask.example.com", Action: policy.Approve, Observe: until},
		},
		EgressAuth: []policy.EgressAuthRule{
			{Name: "api", Destination: "api.example.com", AuthRef: "key", Paths: []string{"/v1/**"}},
			{Name: "api2", Destination: "api2.example.com", AuthRef: "key", Paths: []string{"/v1/**"}, Observe: until},
		},
		Observe: []policy.Observation{{Sandboxes: policy.Selector{Names: []string{"watched"}}, Until: until}},
	}
}

func by(name string, in policy.Input) policy.Input {
	in.Sandbox.Name = name
	return in
}

func TestObserve(t *testing.T) {
	now := time.Now()
	until := now.Add(time.Hour)
	p := compiled(t, observedDocument(until))
	connect := func(host string, port uint16, protocol policy.Protocol) policy.Input {
		return policy.Input{Phase: policy.PhaseConnect, Destination: policy.Destination{Host: host, Port: port}, Protocol: protocol}
	}
	dns := func(host string) policy.Input {
		return policy.Input{Phase: policy.PhaseDNS, Destination: policy.Destination{Host: host}}
	}
	for _, tt := range []struct {
		name             string
		in               policy.Input
		action, lifted   policy.Action // lifted is what observe mode lifts, if it does
		rule             string
		inject, governed bool
	}{
		{"what no rule allows", by("watched", request("POST", "nowhere.example.com", "/")), "allow", "deny", "observe", false, false},
		{"what a rule denies", by("watched", request("GET", "files.example.com", "/never/x")), "allow", "deny", "observe", false, false},
		{"what a person would be asked about", by("watched", request("GET", "ask.example.com", "/")), "allow", "approve", "observe", false, false},
		{"what is allowed anyhow", by("watched", request("GET", "docs.example.com", "/")), "allow", "", "docs", false, false},
		{"with the credential where a rule binds it", by("watched", request("GET", "api.example.com", "/v1/x")), "allow", "", "api", true, false},
		{"without it where none matches", by("watched", request("GET", "api.example.com", "/v2/x")), "allow", "deny", "observe", false, true},
		{"a name", by("watched", dns("nowhere.example.com")), "allow", "deny", "observe", false, false},
		{"a connection", by("watched", connect("nowhere.example.com", 8443, "tls")), "allow", "deny", "observe", false, false},
		{"bytes of no known protocol", by("watched", connect("nowhere.example.com", 5432, "other")), "tunnel", "deny", "observe", false, false},
		{"an address", by("watched", connect("203.0.113.9", 443, "tls")), "allow", "deny", "observe", false, false},
		{"what cannot be judged", by("watched", request("get", "nowhere.example.com", "/")), "deny", "", "", false, false},
		{"another sandbox", by("other", request("POST", "nowhere.example.com", "/")), "deny", "", "", false, false},

		{"a rule that denies", request("PUT", "files.example.com", "/x"), "allow", "deny", "files", false, false},
		{"but another denies too", request("PUT", "files.example.com", "/never/x"), "deny", "", "never", false, false},
		{"what a rule's methods leave out", request("POST", "notes.example.com", "/"), "allow", "deny", "notes", false, false},
		{"and another port", func() policy.Input {
			in := request("POST", "notes.example.com", "/")
			in.Destination.Port = 8443
			return in
		}(), "deny", "", "", false, false},
		{"a rule that denies alone lets nothing in", request("GET", "lone.example.com", "/"), "deny", "", "", false, false},
		{"its name neither", dns("lone.example.com"), "deny", "", "", false, false},
		{"a rule that asks", request("GET", "ask.example.com", "/"), "allow", "approve", "ask", false, false},
		{"a rule that authorises", request("GET", "api2.example.com", "/v1/x"), "allow", "", "api2", true, false},
		{"and what it leaves out", request("GET", "api2.example.com", "/v2/x"), "allow", "deny", "api2", false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, during := range []bool{true, false} {
				at := now
				if !during {
					at = until
				}
				d := p.DecideAt(t.Context(), tt.in, at)
				if !during {
					want := tt.action
					if tt.lifted != "" {
						want = tt.lifted
					}
					if d.Action != want || d.Observed != nil || d.Governed {
						t.Errorf("afterwards: got %+v, want %s", d, want)
					}
					continue
				}
				var lifted policy.Action
				if d.Observed != nil {
					lifted = d.Observed.Action
				}
				if d.Action != tt.action || lifted != tt.lifted || d.Rule != tt.rule || len(d.Inject) > 0 != tt.inject || d.Governed != tt.governed {
					t.Errorf("got %+v (%+v), want %s by %s, lifted %q", d, d.Observed, tt.action, tt.rule, tt.lifted)
				}
			}
		})
	}
	if got := p.Observing(now); len(got) != 6 || got[0].String() != "sandbox watched until "+until.UTC().Format(time.RFC3339) || got[1].Rule != "no-uploads" {
		t.Errorf("got %v", got)
	}
	if got := p.Observing(until); len(got) != 0 {
		t.Errorf("afterwards: got %v", got)
	}
	// A replay says what comes of it when it is over.
	records := []policy.Recorded{as(t, p, 1, by("watched", request("POST", "nowhere.example.com", "/")), now)}
	if got, err := replay.Run(t.Context(), p, each(records)); err != nil || got.ByChange[replay.NewlyDenied] != 1 {
		t.Errorf("got %+v, %v", got, err)
	}
}

// The clock of a Policy ends observe mode, also between two decisions that are
// alike, of which the second comes from the first's answer.
func TestObserveEnds(t *testing.T) {
	now := time.Now()
	doc := observedDocument(now.Add(time.Hour))
	p, err := engine.Compile(t.Context(), doc, engine.Options{Clock: func() time.Time { return now }})
	must.OK(t, err)
	in := by("watched", request("POST", "nowhere.example.com", "/"))
	if d := p.Decide(t.Context(), in); d.Action != policy.Allow {
		t.Errorf("got %+v", d)
	}
	now = now.Add(time.Hour)
	if d := p.Decide(t.Context(), in); d.Action != policy.Deny {
		t.Errorf("got %+v", d)
	}
}

// A denial by a team's Rego is lifted, and an error of it is not.
func TestObserveAndRego(t *testing.T) {
	doc := observedDocument(time.Now().Add(time.Hour))
	doc.Policy.Dir = folder(t, `package sallyport.team.x

deny contains "no" if input.request.path == "/denied"

allow contains input.request.path if input.request.path == "/malformed"

inject contains {"credential": "key"} if input.request.path == "/injected"
`)
	p := compiled(t, doc)
	for path, want := range map[string]policy.Action{"/denied": "allow", "/malformed": "deny", "/injected": "allow"} {
		d := p.Decide(t.Context(), by("watched", request("GET", "docs.example.com", path)))
		if path == "/injected" {
			// Bound to another host: the floor.
			want = "deny"
		}
		if d.Action != want {
			t.Errorf("%s: got %+v", path, d)
		}
	}
}

func TestObserveIsChecked(t *testing.T) {
	now := time.Now()
	for name, tt := range map[string]struct {
		doc      policy.Document
		severity finding.Severity
		says     string
	}{
		"nobody":   {policy.Document{Observe: []policy.Observation{{Until: now.Add(time.Hour)}}}, finding.Error, "every sandbox"},
		"no end":   {policy.Document{Observe: []policy.Observation{{Sandboxes: policy.Selector{Names: []string{"a"}}}}}, finding.Error, "has no end"},
		"too long": {policy.Document{Observe: []policy.Observation{{Sandboxes: policy.Selector{Names: []string{"a"}}, Until: now.Add(31 * 24 * time.Hour)}}}, finding.Error, "30 days"},
		"over":     {policy.Document{Observe: []policy.Observation{{Sandboxes: policy.Selector{Names: []string{"a"}}, Until: now.Add(-time.Hour)}}}, finding.Warning, "mode ended"},
		"a rule":   {policy.Document{Egress: []policy.EgressRule{{Destination: "a.example.com", Observe: now.Add(31 * 24 * time.Hour)}}}, finding.Error, "30 days"},
	} {
		found := validate.Document(tt.doc)
		if len(found) != 1 || found[0].Severity != tt.severity || !strings.Contains(found[0].Message, tt.says) {
			t.Errorf("%s: got %v", name, found)
		}
	}
}

// A document says the same after it was handed on as JSON, to the gateway's process.
func TestObserveIsHandedOn(t *testing.T) {
	until := time.Now().Add(time.Hour).In(time.FixedZone("", 2*60*60))
	doc := observedDocument(until)
	text, err := json.Marshal(doc)
	must.OK(t, err)
	var other policy.Document
	must.OK(t, json.Unmarshal(text, &other))
	a, b := compiled(t, doc), compiled(t, other)
	if a.Revision() != b.Revision() || len(b.Observing(time.Now())) != 6 {
		t.Errorf("got %s and %s, %v", a.Revision(), b.Revision(), b.Observing(time.Now()))
	}
	doc.Observe = nil
	if compiled(t, doc).Revision() == a.Revision() {
		t.Error("observe mode is no part of the revision")
	}
}

// TestObserveKeepsTheWay: what observe mode lifts goes the way of the rule that
// carries it without what denied it, and what no rule carries the public way.
func TestObserveKeepsTheWay(t *testing.T) {
	until := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	const text = `
credentials: [{name: key}]
egress:
- {name: inside, destination: in.example.com, paths: ["/v1/**"], upstream: {addresses: [10.0.0.1]}}
- {name: elsewhere, destination: "*.example.com", upstream: {addresses: [10.0.0.2]}}
- {name: never, destination: in.example.com, paths: ["/v1/never"], action: deny}
- {name: ask, destination: ask.example.com, action: approve, upstream: {addresses: [10.0.0.3]}}
- {name: raw, destination: "raw.example.com:5432", action: tunnel, upstream: {addresses: [10.0.0.4]}}
- {name: public, destination: out.example.com}
egressAuth:
- {name: auth, destination: auth.example.com, paths: ["/v1/**"], authRef: key, upstream: {addresses: [10.0.0.5]}}
observe: [{sandboxes: {names: [watched]}, until: `
	p := under(t, text+until+"}]", `deny contains "no" if true

approve contains "ask" if input.destination.host == "nowhere.example.com"`)
	raw := policy.Input{Phase: policy.PhaseConnect, Destination: policy.Destination{Host: "raw.example.com", Port: 5432}, Protocol: policy.ProtocolOther}
	for _, tt := range []struct {
		name string
		in   policy.Input
		want string
	}{
		{"a team's deny", request("GET", "in.example.com", "/v1/x"), "10.0.0.1"},
		{"a rule's deny besides", request("GET", "in.example.com", "/v1/never"), "10.0.0.1"},
		{"the rule of a wider destination", request("GET", "in.example.com", "/v2"), "10.0.0.2"},
		{"each reading", request("GET", "in.example.com", "/v1/a%2Fb"), "10.0.0.1"},
		{"a rule that asks", request("GET", "ask.example.com", "/"), "10.0.0.3"},
		{"a tunnel", raw, "10.0.0.4"},
		{"a rule that authorises", request("GET", "auth.example.com", "/v1/x"), "10.0.0.5"},
		{"no rule's path, governed", request("GET", "auth.example.com", "/v2"), "10.0.0.2"},
		{"a rule without one", request("GET", "out.example.com", "/"), ""},
		{"no rule", request("GET", "example.org", "/"), ""},
	} {
		d := p.Decide(t.Context(), by("watched", tt.in))
		got := ""
		if d.Upstream != nil {
			got = d.Upstream.Addresses[0]
		}
		if d.Observed == nil || d.Action != policy.Allow && d.Action != policy.Tunnel || got != tt.want {
			t.Errorf("%s: %s by way of %q, want %q: %s %v", tt.name, d.Action, got, tt.want, d.Reason, d.Err)
		}
	}
}

// TestTeamsApprovalKeepsTheWay: what a team asks a person about goes the way that a
// rule names for the destination, also where the rule would not carry it.
func TestTeamsApprovalKeepsTheWay(t *testing.T) {
	p := under(t, `egress: [{name: inside, destination: in.example.com, paths: ["/v1/**"], upstream: {addresses: [10.0.0.1]}}]`, `approve contains "ask" if input.phase == "request"`)
	for host, want := range map[string]bool{"in.example.com/v1/x": true, "in.example.com/v2": true, "out.example.com/v1/x": false} {
		name, path, _ := strings.Cut(host, "/")
		if d := p.Decide(t.Context(), request("GET", name, "/"+path)); d.Action != policy.Approve || (d.Upstream != nil) != want {
			t.Errorf("%s: %s by way of %v: %s", host, d.Action, d.Upstream, d.Reason)
		}
	}
}

// A request that observe mode lets through goes by the upstream that a rule names for its
// destination, and the rule learned of it has that upstream.
func TestObserveByTheRulesUpstream(t *testing.T) {
	until := time.Now().Add(time.Hour)
	text := `egress:
- {name: near, destination: git.corp.example, paths: [/healthz], upstream: {addresses: [10.20.0.7], resolver: "10.20.0.53:53"}}
- {name: inside, destination: "*.corp.example", ports: [443], methods: [GET], upstream: {addresses: [10.20.0.0/16]}}
- {name: others, destination: "*.corp.example", ports: [8443], upstream: {addresses: [10.30.0.0/16]}, sandboxes: {names: [other]}}
- {name: public, destination: docs.example.com, methods: [GET]}
observe:
- {sandboxes: {names: [watched]}, until: ` + until.UTC().Format(time.RFC3339) + "}\n"
	p, _ := amended(t, text, nil)
	var run []policy.Recorded
	for i, tt := range []struct {
		host string
		port uint16
		want string
	}{
		{"git.corp.example", 443, "10.20.0.7"},
		{"pypi.corp.example", 443, "10.20.0.0/16"},
		{"pypi.corp.example", 8443, ""},
		{"corp.example", 443, ""},
		{"docs.example.com", 443, ""},
	} {
		in := by("watched", request("POST", tt.host, "/x"))
		in.Destination.Port = tt.port
		got := ""
		d := p.Decide(t.Context(), in)
		if d.Upstream != nil {
			got = strings.Join(d.Upstream.Addresses, " ")
		}
		if d.Observed == nil || got != tt.want {
			t.Errorf("%s:%d: got %+v by %q, want %q", tt.host, tt.port, d, got, tt.want)
		}
		run = append(run, carried(i, in))
	}
	l, err := learn.Propose(t.Context(), p, each(run), learn.Options{})
	must.OK(t, err)
	_, now := amended(t, text, l.Proposals)
	for _, want := range []string{
		"- name: \"learned-git.corp.example\"\n  destination: \"git.corp.example\"\n  methods: [\"POST\"]\n  paths:\n  - \"/x\"\n  sandboxes: {names: [\"watched\"]}\n  upstream: {addresses: [\"10.20.0.7\"], resolver: \"10.20.0.53:53\"}",
		`upstream: {addresses: ["10.20.0.0/16"]}`,
	} {
		if !strings.Contains(now, want) {
			t.Errorf("%q is not in\n%s", want, now)
		}
	}
	if n := strings.Count(now, "upstream:"); n != 5 {
		t.Errorf("%d upstreams in\n%s", n, now)
	}
}
