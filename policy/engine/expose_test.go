package engine_test

import (
	"strings"
	"testing"

	"sallyport/internal/config"
	"sallyport/policy"
	"sallyport/policy/engine"
	"sallyport/policy/validate"
)

const exposeTable = `
egress: [{destination: demo, ports: [8000], plain: true}, {destination: 8000.example.com, plain: true}]
expose:
- {name: web, sandboxes: {tags: {team: support}}, ports: [8000, 5173], methods: [GET, POST], paths: ["/", "/app/**", "/@x%2F*"]}
- {name: docs, sandboxes: {names: [demo]}, ports: [9000]}
- {name: no admin, ports: [8000], paths: ["/app/admin/**"], action: deny}
- {name: no databases, ports: [5432], action: deny}
- {name: databases, ports: [5432]}
- {name: nothing of secret, sandboxes: {names: [secret]}, action: deny}
- {name: secret, sandboxes: {names: [secret]}, ports: [8000]}
`

// inbound is a request to a port of a sandbox.
func inbound(s policy.Sandbox, method string, port uint16, path string) policy.Input {
	return policy.Input{
		Phase: policy.PhaseInbound, Sandbox: s, Protocol: policy.ProtocolHTTP, Destination: policy.Destination{Host: s.Name, Port: port},
		Request: &policy.Request{Method: method, Scheme: "http", Path: path, Size: -1},
	}
}

func TestExpose(t *testing.T) {
	p := compile(t, exposeTable, engine.Options{})
	tagged := policy.Sandbox{Name: "7", Tags: map[string]string{"team": "support"}} // a name that is a number, too
	plain, secret := policy.Sandbox{Name: "demo"}, policy.Sandbox{Name: "secret", Tags: tagged.Tags}
	other := inbound(tagged, "GET", 8000, "/")
	other.Destination.Host = "demo"
	noRequest := inbound(tagged, "GET", 8000, "/")
	noRequest.Request = nil
	for _, tt := range []struct {
		name string
		in   policy.Input
		want policy.Action
		rule string
	}{
		{"by tag", inbound(tagged, "GET", 8000, "/app/x"), policy.Allow, "web"},
		{"another port of it", inbound(tagged, "POST", 5173, "/"), policy.Allow, "web"},
		{"by name", inbound(plain, "DELETE", 9000, "/x"), policy.Allow, "docs"},
		{"another method", inbound(tagged, "PUT", 8000, "/"), policy.Deny, ""},
		{"another path", inbound(tagged, "GET", 8000, "/other"), policy.Deny, ""},
		{"another port", inbound(tagged, "GET", 8001, "/"), policy.Deny, ""},
		{"another sandbox", inbound(plain, "GET", 8000, "/"), policy.Deny, ""},
		{"denied by path", inbound(tagged, "GET", 8000, "/app/admin/x"), policy.Deny, "no admin"},
		{"denied and allowed", inbound(plain, "GET", 5432, "/"), policy.Deny, "no databases"},
		{"every port denied", inbound(secret, "GET", 8000, "/"), policy.Deny, "nothing of secret"},
		{"every reading allowed", inbound(tagged, "GET", 8000, "/@x%2Fy"), policy.Allow, "web"},
		{"a reading that is denied", inbound(tagged, "GET", 8000, "/app/admin%2Fx"), policy.Deny, "no admin"},
		{"a destination that is another sandbox", other, policy.Deny, ""},
		{"no request", noRequest, policy.Deny, ""},
		{"a path that is not normalised", inbound(tagged, "GET", 8000, "/app/../x"), policy.Deny, ""},
		{"a method in small letters", inbound(tagged, "get", 8000, "/"), policy.Deny, ""},
		{"the agent", inbound(plain, "GET", policy.AgentPort, "/"), policy.Deny, ""},
	} {
		if d := p.Decide(t.Context(), tt.in); d.Action != tt.want || d.Rule != tt.rule || d.Revision != p.Revision() || d.Reason == "" {
			t.Errorf("%s: got %s by %q (%s), want %s by %q", tt.name, d.Action, d.Rule, d.Reason, tt.want, tt.rule)
		}
	}
	for _, tt := range []struct {
		s    policy.Sandbox
		port uint16
		want bool
	}{{tagged, 8000, true}, {plain, 8000, false}, {plain, 9000, true}, {plain, 5432, false}, {secret, 8000, false}, {plain, policy.AgentPort, false}} {
		if got := p.Exposable(tt.s, tt.port); got != tt.want {
			t.Errorf("port %d of %s can be exposed: %v", tt.port, tt.s.Name, got)
		}
	}
	if d := compile(t, "{}", engine.Options{}).Decide(t.Context(), inbound(tagged, "GET", 8000, "/")); d.Action != policy.Deny {
		t.Errorf("without rules: %+v", d)
	}
}

// A team's deny is asked about what comes in, and its other sets are not.
func TestExposeTeam(t *testing.T) {
	tagged := policy.Sandbox{Name: "demo", Tags: map[string]string{"team": "support"}}
	for _, tt := range []struct {
		name, rego string
		in         policy.Input
		want       policy.Action
		says       string
	}{
		{"denied", `deny contains "no posts to previews" if { input.phase == "inbound"; input.request.method == "POST"; input.destination.port == 8000; input.sandbox.tags.team == "support" }`,
			inbound(tagged, "POST", 8000, "/"), policy.Deny, "no posts to previews"},
		{"not denied", `deny contains "no posts" if { input.phase == "inbound"; input.request.method == "POST" }`, inbound(tagged, "GET", 8000, "/"), policy.Allow, ""},
		{"denied in another phase", `deny contains "no" if input.phase == "request"`, inbound(tagged, "GET", 8000, "/"), policy.Allow, ""},
		{"an allow opens nothing", `allow contains {"rule": "mine", "protocols": ["http"]} if input.phase == "inbound"`, inbound(tagged, "GET", 8001, "/"), policy.Deny, "no expose rule"},
		{"an approve asks nobody", `approve contains "ask" if input.phase == "inbound"`, inbound(tagged, "GET", 8000, "/"), policy.Allow, ""},
		{"a deny that fails", `deny contains "x" if { input.phase == "inbound"; to_number(input.request.path) > 1 }`, inbound(tagged, "GET", 8000, "/"), policy.Deny, "could not be evaluated"},
		{"by path", `deny contains "x" if startswith(input.request.path, "/app/private")`, inbound(tagged, "GET", 8000, "/app/private"), policy.Deny, "x"},
	} {
		p, err := withTeam(t, exposeTable, map[string]string{"team.rego": "package sallyport.team\n\n" + tt.rego + "\n"})
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		for range 3 {
			if d := p.Decide(t.Context(), tt.in); d.Action != tt.want || !strings.Contains(d.Reason, tt.says) {
				t.Errorf("%s: got %s: %s (%v)", tt.name, d.Action, d.Reason, d.Err)
			}
		}
		if e := p.Explain(t.Context(), tt.in); e.Decision.Action != tt.want || len(e.Near) != 0 {
			t.Errorf("%s, explained: %+v", tt.name, e)
		}
	}
}

func TestExposeFindings(t *testing.T) {
	for _, tt := range []struct{ name, yaml, want string }{
		{"good", `{name: a, ports: [8000]}`, ""},
		{"no name", `{ports: [8000]}`, "expose[0]: has no name"},
		{"no ports", `{name: a}`, "expose[0]: has no ports"},
		{"every port denied", `{name: a, action: deny}`, ""},
		{"no port", `{name: a, ports: [0]}`, "0 is not a port"},
		{"no ports of a list", `{name: a, ports: []}`, "expose[0].ports: is empty"},
		{"the agent's port", `{name: a, ports: [1023]}`, "agent listens"},
		{"no action", `{name: a, ports: [1], action: alow}`, "did you mean allow?"},
		{"a tunnel", `{name: a, ports: [1], action: tunnel}`, "write allow or deny"},
		{"a method", `{name: a, ports: [1], methods: [get]}`, "write GET"},
		{"TRACE", `{name: a, ports: [1], methods: [TRACE]}`, "never carried"},
		{"a path", `{name: a, ports: [1], paths: ["x"]}`, "expose[0].paths[0]"},
		{"a name twice", "{name: a, ports: [1]}\n- {name: a, ports: [2]}", `the name "a" is already that of expose[0]`},
		{"a name of another rule", "{name: docs, ports: [1]}\negress: [{name: docs, destination: a.example.com}]", `the name "docs" is already that of egress[0]`},
		{"an unknown key", `{name: a, ports: [1], destination: x}`, "unknown key"},
	} {
		c, err := config.Parse("sallyport.yaml", []byte("expose:\n- "+tt.yaml+"\n"))
		text := ""
		if err != nil {
			text = err.Error()
		} else {
			for _, f := range validate.Document(c.Document) {
				text += f.Error() + "\n"
			}
		}
		if tt.want == "" && text != "" || !strings.Contains(text, tt.want) {
			t.Errorf("%s: got %s\nwant %q", tt.name, text, tt.want)
		}
	}
}
