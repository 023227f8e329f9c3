package engine_test

import (
	"errors"
	"testing"

	"sallyport/internal/test/must"
	"sallyport/policy/engine"
)

// own: deny of a rule and of a team's Rego arrives in the decision.
func TestOwn(t *testing.T) {
	const doc = `
egressAuth:
- {destination: api.example.org, authRef: key, own: deny}
- {destination: b.example.org, authRef: key}
credentials:
- name: key
`
	p := compile(t, doc, engine.Options{})
	for host, want := range map[string]bool{"api.example.org": true, "b.example.org": false} {
		if d := p.Decide(t.Context(), request("GET", host, "/")); len(d.Inject) != 1 || d.Inject[0].DenyOwn != want {
			t.Errorf("%s: %+v", host, d)
		}
	}
	for said, want := range map[string]bool{"deny": true, "keep": false} {
		p, err := withTeam(t, doc, map[string]string{"p.rego": `package sallyport.team.x
inject contains {"credential": "key", "inject": {"cookie": {"name": "s", "value": "{{ .token }}"}}, "own": "` + said + `"} if input.destination.host == "b.example.org"`})
		must.OK(t, err)
		d := p.Decide(t.Context(), request("GET", "b.example.org", "/"))
		found := false
		for _, i := range d.Inject {
			found = found || i.Inject.Cookie != nil && i.DenyOwn
		}
		if found != want || !want && !errors.Is(d.Err, engine.ErrUndecided) {
			t.Errorf("%s: %+v", said, d)
		}
	}
}
