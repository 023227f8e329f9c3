package engine_test

import (
	"strings"
	"testing"

	"sallyport/internal/config"
	"sallyport/policy"
	"sallyport/policy/engine"
)

const overSSH = `
expose:
- {name: requests, sandboxes: {names: [web]}, ports: [8000]}
- {name: shells, sandboxes: {tags: {team: support}}, ssh: [shell, sftp]}
- {name: database, sandboxes: {tags: {team: support}}, ssh: [forward], ports: [5432]}
- {name: no files of prod, sandboxes: {tags: {env: prod}}, ssh: [sftp], action: deny}
- {name: frozen, sandboxes: {tags: {frozen: "true"}}, action: deny}
- {name: no admin, ports: [5432], paths: ["/admin/**"], action: deny}
`

func TestSSH(t *testing.T) {
	support := map[string]string{"team": "support"}
	demo := policy.Sandbox{Name: "demo", Tags: support}
	prod := policy.Sandbox{Name: "prod", Tags: map[string]string{"team": "support", "env": "prod"}}
	frozen := policy.Sandbox{Name: "ice", Tags: map[string]string{"team": "support", "frozen": "true"}}
	ask := func(s policy.Sandbox, use policy.Protocol, port uint16) policy.Input {
		return policy.Input{Phase: policy.PhaseSSH, Sandbox: s, Protocol: use, Destination: policy.Destination{Host: s.Name, Port: port}}
	}
	other := ask(demo, policy.ProtocolShell, policy.SSHPort)
	other.Destination.Host = "web"
	p := compile(t, overSSH, engine.Options{})
	for _, tt := range []struct {
		name string
		in   policy.Input
		want policy.Action
		rule string
	}{
		{"a shell", ask(demo, policy.ProtocolShell, policy.SSHPort), policy.Allow, "shells"},
		{"files", ask(demo, policy.ProtocolSFTP, policy.SSHPort), policy.Allow, "shells"},
		{"a port", ask(demo, policy.ProtocolForward, 5432), policy.Allow, "database"},
		{"another port", ask(demo, policy.ProtocolForward, 5433), policy.Deny, ""},
		{"the agent", ask(demo, policy.ProtocolForward, policy.AgentPort), policy.Deny, ""},
		{"a rule for requests is none for SSH", ask(policy.Sandbox{Name: "web"}, policy.ProtocolForward, 8000), policy.Deny, ""},
		{"of no rule", ask(policy.Sandbox{Name: "web"}, policy.ProtocolShell, policy.SSHPort), policy.Deny, ""},
		{"files denied by tag", ask(prod, policy.ProtocolSFTP, policy.SSHPort), policy.Deny, "no files of prod"},
		{"and a shell not", ask(prod, policy.ProtocolShell, policy.SSHPort), policy.Allow, "shells"},
		{"all that comes in denied", ask(frozen, policy.ProtocolShell, policy.SSHPort), policy.Deny, "frozen"},
		{"another sandbox's name", other, policy.Deny, ""},
		{"a use that there is not", ask(demo, "telnet", policy.SSHPort), policy.Deny, ""},
		{"a request's protocol", ask(demo, policy.ProtocolTLS, policy.SSHPort), policy.Deny, ""},
		{"a shell at a port", ask(demo, policy.ProtocolShell, 8000), policy.Deny, ""},
	} {
		if d := p.Decide(t.Context(), tt.in); d.Action != tt.want || d.Rule != tt.rule || d.Revision != p.Revision() || d.Reason == "" {
			t.Errorf("%s: got %s by %q (%s), want %s by %q", tt.name, d.Action, d.Rule, d.Reason, tt.want, tt.rule)
		}
	}
	in := inbound(frozen, "GET", 8000, "/")
	if d := p.Decide(t.Context(), in); d.Action != policy.Deny {
		t.Errorf("a request to what is denied to all: %+v", d)
	}
	if d := compile(t, "{}", engine.Options{}).Decide(t.Context(), ask(demo, policy.ProtocolShell, policy.SSHPort)); d.Action != policy.Deny {
		t.Errorf("without rules: %+v", d)
	}
}

// The team's Rego denies what rules allow, and opens nothing.
func TestSSHRego(t *testing.T) {
	in := policy.Input{
		Phase: policy.PhaseSSH, Sandbox: policy.Sandbox{Name: "demo", Tags: map[string]string{"team": "support"}},
		Protocol: policy.ProtocolSFTP, Destination: policy.Destination{Host: "demo", Port: policy.SSHPort},
	}
	for _, tt := range []struct {
		rego string
		want policy.Action
	}{
		{`deny contains "no files" if { input.phase == "ssh"; input.protocol == "sftp"; input.sandbox.tags.team == "support" }`, policy.Deny},
		{`deny contains "no ports" if { input.phase == "ssh"; input.protocol == "forward" }`, policy.Allow},
		{`deny contains "no" if input.phase == "inbound"`, policy.Allow},
		{`deny contains "of no phase" if input.sandbox.name == "demo"`, policy.Deny},
		{`deny contains "no" if to_number(input.destination.host) > 1`, policy.Deny}, // it fails
	} {
		p, err := withTeam(t, overSSH, map[string]string{"team.rego": "package sallyport.team\n\n" + tt.rego + "\n"})
		if err != nil {
			t.Errorf("%s: %v", tt.rego, err)
			continue
		}
		if d := p.Decide(t.Context(), in); d.Action != tt.want {
			t.Errorf("%s: got %s (%s), want %s", tt.rego, d.Action, d.Reason, tt.want)
		}
	}
}

func TestSSHFindings(t *testing.T) {
	for text, want := range map[string]string{
		`{name: a, ssh: [shell]}`:                                 "",
		`{name: a, ssh: [forward], ports: [1]}`:                   "",
		`{name: a, ssh: [shell, forward], action: deny}`:          "",
		`{name: a, ssh: []}`:                                      "can never match",
		`{name: a, ssh: [shel]}`:                                  "did you mean shell?",
		`{name: a, ssh: [forward]}`:                               "has no ports",
		`{name: a, ssh: [shell], ports: [1]}`:                     "which the rule is not about",
		`{name: a, ssh: [shell], methods: [GET]}`:                 "nothing over SSH has",
		`{name: a, ssh: [forward], ports: [1], paths: ["/"]}`:     "nothing over SSH has",
		`{name: a, ssh: [forward], ports: [1023], action: allow}`: "the sandbox's own agent",
	} {
		_, err := config.Parse("sallyport.yaml", []byte("expose: ["+text+"]\n"))
		got := ""
		if err != nil {
			got = err.Error()
		}
		if want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}
