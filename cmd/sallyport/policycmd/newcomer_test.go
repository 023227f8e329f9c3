package policycmd

import (
	"strings"
	"testing"
)

// Each mistake of a newcomer gets an error that says the correct form.
func TestNewcomerIsToldWhatToWrite(t *testing.T) {
	policies(t, map[string]string{
		"ref.yaml":    "egressAuth: [{name: x, destination: api.example.com}]\n",
		"plain.yaml":  "egress: [{name: web, destination: a.example.com, ports: [80]}]\n",
		"one.yaml":    "credentials: [{name: k}]\negress:\n- {name: ask, destination: a.example.com, paths: [/x], action: approve}\negressAuth:\n- {name: auth, destination: a.example.com, authRef: k, upstream: {addresses: [10.0.0.1]}}\n",
		"differ.yaml": "credentials: [{name: k}]\negress:\n- {name: ask, destination: a.example.com, paths: [/x], action: approve, upstream: {addresses: [10.0.0.2]}}\negressAuth:\n- {name: auth, destination: a.example.com, authRef: k, upstream: {addresses: [10.0.0.1]}}\n",
	})
	for _, tt := range []struct {
		name, args string
		status     int
		says       string
	}{
		{"a rule without a credential in egressAuth", "policy check ref.yaml", 1, "move the rule to egress:"},
		{"port 80 without plain, checked", "policy check --fail-on warning plain.yaml", 1, "write plain: true"},
		{"port 80 without plain, explained", "policy explain --offline --config plain.yaml GET http://a.example.com/", 0, "fails on plain (wants TLS; plain: true in the rule"},
		{"a rule without upstream has its destination's", "policy explain --offline --config one.yaml -o json GET https://a.example.com/x", 0, `"10.0.0.1"`},
		{"upstreams that differ", "policy check differ.yaml", 1, "differs from that of the rule ask"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out, status, err := run(t, "", strings.Fields(tt.args)...)
			if status != tt.status || !strings.Contains(out, tt.says) {
				t.Errorf("got %d, %v and\n%s\nwant %d with %q", status, err, out, tt.status, tt.says)
			}
		})
	}
}
