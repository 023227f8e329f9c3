package engine_test

import (
	"testing"
	"time"

	"sallyport/policy/engine"
)

func TestNames(t *testing.T) {
	p := compile(t, `
credentials: [{name: key}]
egress: [{destination: docs.example.com, sandboxes: {names: [build, release]}}]
egressAuth: [{destination: api.example.com, authRef: key, sandboxes: {names: [deploy], tags: {team: a}}}]
expose: [{name: previews, ports: [8000], sandboxes: {names: [web]}}]
observe: [{sandboxes: {names: [watched]}, until: `+time.Now().Add(time.Hour).UTC().Format(time.RFC3339)+`}]
limits: [{name: a, concurrent: 1, sandboxes: {names: [greedy]}}]
`, engine.Options{})
	for name, want := range map[string]bool{
		"build": true, "release": true, "web": true, "watched": true, "greedy": true, "deploy": true, "box": false, "": false, "a": false,
	} {
		if got := p.Names(name); got != want {
			t.Errorf("%q: %v, want %v", name, got, want)
		}
	}
}
