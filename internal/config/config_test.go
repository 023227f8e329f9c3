package config_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sallyport/internal/config"
	"sallyport/internal/test/must"
	"sallyport/policy/engine"
	"sallyport/policy/finding"
)

func TestParseDefaults(t *testing.T) {
	t.Setenv("CREDENTIALS_DIRECTORY", "")
	for name, text := range map[string]string{"empty": "", "a comment": "# nothing\n", "null": "null\n", "a start": "---\n"} {
		c, err := config.Parse("/etc/sallyport/sallyport.yaml", []byte(text))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got := []any{c.DataDir, c.RunDir, c.KeyFile, c.Network.Bridge, c.Network.Subnet, c.Engine.Kind, c.Sandbox.Image,
			c.Sandbox.Runtime, c.Sandbox.Pids, c.Metrics.Listen, c.Audit.SegmentSize, c.Proxy.Listen, c.Gateway.Drain, len(c.Egress)}
		want := []any{"/var/lib/sallyport", "/run/sallyport", "/etc/sallyport/key", "sallyport0", netip.MustParsePrefix("10.231.0.0/16"),
			"private", "sallyport/base:bookworm-1", "runsc", int64(4096), "127.0.0.1:9464", int64(64 << 20), "", config.Duration(5 * time.Second), 0}
		if diff := cmp.Diff(got, want, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	t.Setenv("CREDENTIALS_DIRECTORY", "/run/credentials/sallyport.service")
	c, err := config.Parse("sallyport.yaml", nil)
	if err != nil || c.KeyFile != "/run/credentials/sallyport.service/sallyport.key" {
		t.Errorf("got %q, %v", c.KeyFile, err)
	}
}

func TestParse(t *testing.T) {
	dir := t.TempDir()
	c, err := config.Parse(filepath.Join(dir, "sallyport.yaml"), []byte(`
dataDir: data
keyFile: /somewhere/key
network: {bridge: sp1, subnet: 10.9.0.0/24}
engine: {kind: existing, host: "unix:///var/run/docker.sock"}
sandbox: {runtime: runc, pids: 100}
proxy: {listen: "127.0.0.1:3128"}
metrics: {listen: off}
vault:
  address: https://vault.example.com:8200
  auth: {appRole: {roleID: 123, secretIDFile: secret-id}}
audit: {segmentSize: 1048576}
gateway: {drain: 30s}
policy: {dir: policy.d}
egressAuth:
- destination: api.example.com
  authRef: key
  methods: &read [GET, HEAD]
  sandboxes: {tags: {team: support, "1": "2"}}
  inject: {basic: {username: x, password: "{{ .password }}"}}
egress:
- destination: b.example.com
  methods: *read
  ports: [443, 8443]
  plain: true
credentials:
- name: key
  source: {vault: {path: secret/data/openai, field: token}}
`))
	must.OK(t, err)
	got := []any{c.DataDir, c.KeyFile, c.Policy.Dir, c.Gateway.Drain, c.Vault.Auth.AppRole, c.Metrics.Listen, c.Egress[0].Methods, c.Egress[0].Ports,
		c.Egress[0].Plain, c.EgressAuth[0].Sandboxes.Tags, c.EgressAuth[0].Inject.Basic.Password, c.Credentials[0].Source.Vault.Field}
	want := []any{filepath.Join(dir, "data"), "/somewhere/key", filepath.Join(dir, "policy.d"), config.Duration(30 * time.Second),
		&config.AppRole{Mount: "approle", RoleID: "123", SecretIDFile: filepath.Join(dir, "secret-id")}, "off",
		[]string{"GET", "HEAD"}, []uint16{443, 8443}, true, map[string]string{"team": "support", "1": "2"}, "{{ .password }}", "token"}
	if diff := cmp.Diff(got, want); diff != "" {
		t.Error(diff)
	}
}

// refuses wants an error for each text that has what the text is mapped to in it, and none
// where that is empty.
func refuses(t *testing.T, texts map[string]string) {
	t.Helper()
	for text, want := range texts {
		_, err := config.Parse("sallyport.yaml", []byte(text+"\n"))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s\ngot %v, want an error with %q", text, err, want)
		}
	}
}

func TestParseErrors(t *testing.T) {
	for _, tt := range []struct {
		name, yaml string
		want       []string
	}{
		{"syntax", "egress: [", []string{"sallyport.yaml:1", "not YAML"}},
		{"a list", "- a", []string{"sallyport.yaml:1", "keys and values"}},
		{"an unknown key", "egres: []", []string{`sallyport.yaml:1:1: egres: unknown key; did you mean "egress"?`}},
		{"an unknown key inside", "egress:\n- destination: a.example.com\n  method: [GET]", []string{`sallyport.yaml:3:3: egress[0].method: unknown key; did you mean "methods"?`}},
		{"an unknown key like no other", "network: {zzzzzzzzzz: 1}", []string{"the keys here are bridge, subnet"}},
		{"a key twice", "dataDir: a\ndataDir: b", []string{"sallyport.yaml:2", "dataDir"}},
		{"a scalar for a list", "egress:\n- destination: a.example.com\n  methods: GET", []string{"sallyport.yaml:3:", "egress[0].methods: must be a list"}},
		{"a list for a scalar", "dataDir: [a]", []string{"dataDir: must be text"}},
		{"text for a number", "sandbox: {pids: many}", []string{"sandbox.pids", "whole number"}},
		{"a port that is too large", "egress: [{destination: a.example.com, ports: [70000]}]", []string{"egress[0].ports[0]", "65535"}},
		{"a negative port", "egress: [{destination: a.example.com, ports: [-1]}]", []string{"egress[0].ports[0]", "65535"}},
		{"text for true", "egress: [{destination: a.example.com, plain: maybe}]", []string{"egress[0].plain", "true or false"}},
		{"a bad subnet", "network: {subnet: 10.0.0.0}", []string{"sallyport.yaml:1:", "network.subnet", "CIDR"}},
		{"a wide subnet", "network: {subnet: 10.0.0.0/4}", []string{"network.subnet", "bits set"}},
		{"the names' addresses", "network: {subnet: 198.18.0.0/16}", []string{"198.18.0.0/15"}},
		{"a long bridge", "network: {bridge: abcdefghijklmnop}", []string{"network.bridge", "15"}},
		{"an unknown engine", "engine: {kind: exisiting}", []string{"engine.kind", "did you mean existing?"}},
		{"an engine without host", "engine: {kind: existing}", []string{"engine.host", "unix:///"}},
		{"an engine elsewhere", "engine: {kind: existing, host: tcp://10.0.0.1:2375}", []string{"engine.host", "unix socket"}},
		{"a time without a unit", "gateway: {drain: 5}", []string{"sallyport.yaml:1:", "gateway.drain", "a time as 30s"}},
		{"no time to drain", "gateway: {drain: 0.5s}", []string{"gateway.drain", "from 1s to 1m"}},
		{"too much of it", "gateway: {drain: 1h}", []string{"gateway.drain", "from 1s to 1m"}},
		{"an image that is a path", "sandbox: {image: ../containers/x}", []string{"sandbox.image", "not the name of an image"}},
		{"an image of tenants without a tag", "sandbox: {tenantImages: [debian]}", []string{"sandbox.tenantImages[0]", "debian:*"}},
		{"an unknown runtime", "sandbox: {runtime: kata}", []string{"sandbox.runtime", "runsc or runc"}},
		{"a proxy in the clear", "proxy: {listen: '0.0.0.0:3128'}", []string{"proxy.listen", "certificate and key"}},
		{"Vault in the clear", "vault: {address: 'http://vault.example.com', auth: {tokenFile: t}}", []string{"vault.address", "in the clear"}},
		{"no way to log in", "vault: {address: 'https://vault.example.com'}", []string{"vault.auth", "no way"}},
		{"two ways to log in", "vault: {address: 'https://v', auth: {tokenFile: t, appRole: {roleID: a, secretIDFile: b}}}", []string{"two ways"}},
		{"a secret without Vault's address", "vault: {namespace: n}\ncredentials: [{name: a, source: {vault: {path: secret/data/a}}}]", []string{"vault.address", "is missing"}},
		{"roots that are not there", "vault: {address: 'https://v', roots: nowhere.pem, auth: {tokenFile: t}}", []string{"vault.roots", "cannot be used", "nowhere.pem"}},
		{"an alias for nothing", "dataDir: *x", []string{"sallyport.yaml:1"}},
		{"a tag", "dataDir: !!binary aGk=", []string{"tags have no meaning"}},
		{"a merge key", "x: &x {a: b}\nnetwork: {<<: *x}", []string{"merge keys"}},
		{"two documents", "dataDir: a\n---\ndataDir: b", []string{"sallyport.yaml:3", "second YAML document"}},
		{"all at once", "egres: []\negress: [{destination: 10.0.0.0/99}]\nengine: {kind: x}", []string{"egres: unknown", "egress[0].destination", "engine.kind"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := config.Parse("sallyport.yaml", []byte(tt.yaml))
			if err == nil {
				t.Fatal("parsed")
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, want %q in it", err, want)
				}
			}
		})
	}
}

func TestCheck(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "sallyport.yaml")
	write := func(name, text string) {
		t.Helper()
		must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	if f := config.Check(t.Context(), file); len(f) != 1 || f[0].Severity != finding.Error {
		t.Errorf("a file that is not there: %v", f)
	}
	write("sallyport.yaml", "policy: {dir: policy.d}\negress: [{destination: '*.com'}]\ncredentials: [{name: idle}]\nmetrics: {listen: x}\n")
	f := config.Check(t.Context(), file)
	var got []string
	for _, f := range f {
		got = append(got, string(f.Severity)+" "+f.Path)
	}
	want := []string{" policy.dir", "warning egress[0].destination", "warning credentials[0]", " metrics.listen"}
	if diff := cmp.Diff(got, want); diff != "" {
		t.Error(diff)
	}
	must.OK(t, os.Mkdir(filepath.Join(dir, "policy.d"), 0o755))
	write("policy.d/x.rego", "package sallyport.team.x\n\ndeny := 1\n")
	write("sallyport.yaml", "policy: {dir: policy.d}\n")
	f = config.Check(t.Context(), file)
	if len(f) != 1 || f[0].Position.Line != 3 || f[0].Position.File != filepath.Join(dir, "policy.d/x.rego") {
		t.Errorf("the team's Rego: %+v", f)
	}
	write("policy.d/x.rego", "package sallyport.team.x\n\ndeny contains \"x\" if input.phase == \"dns\"\n")
	if f = config.Check(t.Context(), file); len(f) != 0 {
		t.Errorf("nothing is wrong: %v", f)
	}
}

// FuzzParse holds that no file makes the daemon panic, and that none is taken
// whose policy then cannot be compiled.
func FuzzParse(f *testing.F) {
	f.Add([]byte("egressAuth:\n- destination: \"api.openai.com\"\n  authRef: \"openai-api-key\"\ncredentials:\n- name: openai-api-key\n"))
	f.Add([]byte("egress: [{destination: 10.0.0.0/8, ports: [1], methods: [GET], paths: ['/**'], action: deny, sandboxes: {names: [a], tags: {b: c}}}]"))
	f.Add([]byte("a: &a [*a]"))
	f.Add([]byte("x: |\n  y\n? z\n: [1, {}]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := config.Parse("sallyport.yaml", data)
		if err != nil || c.Policy.Dir != "" {
			return
		}
		if _, err := engine.Compile(t.Context(), c.Document, engine.Options{}); err != nil {
			t.Fatalf("%q was taken, and then: %v", data, err)
		}
	})
}
