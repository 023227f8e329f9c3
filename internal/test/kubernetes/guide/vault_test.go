//go:build kubernetes

package guide

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sallyport/internal/test/must"
	"sallyport/internal/test/vaultcore"
)

// vault follows the chapter on Vault: the daemon logs in with the token that the kubelet
// writes, and has its secrets and the node's intermediate from there.
func (r *reader) vault(t *testing.T) {
	server := vaultcore.Start(r.t, map[string]any{"key": secret}) // the tests after this one need it, too
	// The node's loopback has Vault, as where Vault's own agent runs.
	listener, err := r.node.Listen("tcp", strings.TrimPrefix(server.Address, "https://"))
	must.OK(t, err)
	forward(r.t, listener, listener.Addr().String())
	// A Vault outside of the cluster has a token of an account that may ask for reviews.
	r.kubectl(t, "-n", "kube-system", "create", "serviceaccount", "vault")
	r.kubectl(t, "create", "clusterrolebinding", "vault", "--clusterrole=system:auth-delegator", "--serviceaccount=kube-system:vault")
	v := &vaultCommands{t: t, server: server, more: map[string]map[string]any{"auth/kubernetes/config": {
		"kubernetes_host":    "https://192.0.2.1:6443",
		"kubernetes_ca_cert": r.kubectl(t, "-n", "default", "get", "configmap", "kube-root-ca.crt", "-o", `jsonpath={.data.ca\.crt}`),
		"token_reviewer_jwt": r.kubectl(t, "-n", "kube-system", "create", "token", "vault"),
	}}}
	v.follow()

	for _, c := range []struct {
		account, namespace, audience string
		taken                        bool
	}{
		{"sallyport", "sallyport", "vault", true},
		{"sallyport", "sallyport", "https://kubernetes.default.svc", false},
		{"default", "sallyport", "vault", false},
		{"sallyport", "default", "vault", false},
	} {
		if c.namespace == "default" {
			r.kubectl(t, "create", "serviceaccount", c.account)
		}
		token := r.kubectl(t, "-n", c.namespace, "create", "token", c.account, "--audience="+c.audience)
		code, got := server.Do(http.MethodPut, "auth/kubernetes/login", map[string]any{"role": "sallyport", "jwt": token})
		if taken := code == http.StatusOK && got.Auth.Token != ""; taken != c.taken {
			t.Errorf("a token of %s in %s for %s: %d %q", c.account, c.namespace, c.audience, code, got.Errors)
		}
	}

	vaultRoot, err := os.ReadFile(server.CAFile)
	must.OK(t, err)
	must.OK(t, os.WriteFile(filepath.Join(r.dir, "vault.pem"), vaultRoot, 0o644))
	must.OK(t, os.WriteFile(filepath.Join(r.dir, "roots.pem"), []byte(v.root), 0o644))
	text := r.kubectl(t, "-n", "sallyport", "get", "configmap", "sallyport", "-o", `jsonpath={.data.sallyport\.yaml}`)
	config := strings.NewReplacer(
		"ca: {certificate: /ca/tls.crt, key: /ca/tls.key}", "ca: {vault: {mount: pki, ttl: 720h}}",
		"source: {file: /credentials/example}", "source: {vault: {path: secret/data/openai, field: key}}",
	).Replace(text) + strings.ReplaceAll(v.config, "https://vault.vault.svc:8200", server.Address+"\n  roots: /credentials/vault.pem")
	must.OK(t, os.WriteFile(filepath.Join(r.dir, "vault.yaml"), []byte(config), 0o644))
	// Without the secret in the cluster: it comes from Vault.
	for _, command := range []string{
		"kubectl -n sallyport create secret generic sallyport-credentials --from-file=upstream.pem --from-file=vault.pem --dry-run=client -o yaml | kubectl replace -f -",
		"kubectl -n sallyport create configmap sallyport --from-file=sallyport.yaml=vault.yaml --dry-run=client -o yaml | kubectl replace -f -",
	} {
		_, err := r.Run(command)
		must.OK(t, err)
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"trustBundle": v.root}})
	must.OK(t, err)
	r.kubectl(t, "patch", "clustertrustbundle", "sallyport", "--type=merge", "-p", string(patch))
	r.kubectl(t, "-n", "sallyport", "rollout", "restart", "ds/sallyport")
	r.kubectl(t, "-n", "sallyport", "rollout", "status", "ds/sallyport", "--timeout=3m")
	must.Soon(t, "the cluster's root in the sandbox", func() bool {
		r.nudge(t)
		return strings.Contains(r.kubectl(t, "exec", "box", "--", "cat", "/etc/sallyport/ca.crt"), strings.TrimSpace(v.root))
	})
	r.served(t, "box")
	if n := len(v.logins()); n == 0 {
		t.Error("nobody is logged in")
	}

	// The kubelet writes another token; the login before is not good any more.
	uid := r.kubectl(t, "-n", "sallyport", "get", "pods", "-l", "app.kubernetes.io/name=sallyport", "-o", "jsonpath={.items[0].metadata.uid}")
	token := func() string {
		out, err := r.node.Exec(t.Context(), "cat", "/var/lib/kubelet/pods/"+uid+"/volumes/kubernetes.io~projected/vault/token")
		must.OK(t, err)
		return out
	}
	before := token()
	must.OK(t, r.node.KillDaemon("kubelet"))
	must.OK(t, r.node.StartKubelet())
	must.Soon(t, "another token", func() bool { return token() != before })
	server.Write("sys/leases/revoke-prefix/auth/kubernetes/login", nil)
	if left := v.logins(); len(left) > 0 {
		t.Fatalf("%d logins are not revoked", len(left))
	}
	must.Soon(t, "another login", func() bool {
		r.served(t, "box")
		return len(v.logins()) > 0
	})
}

// vaultCommands does what the document's lines for Vault's command say.
type vaultCommands struct {
	t      *testing.T
	server *vaultcore.Server
	more   map[string]map[string]any // parameters that this cluster needs, by path
	config string                    // of the daemon
	root   string                    // of the cluster
}

func (v *vaultCommands) follow() {
	v.t.Helper()
	text, err := os.ReadFile(document)
	must.OK(v.t, err)
	_, chapter, _ := strings.Cut(string(text), "\n## Vault\n")
	chapter, _, _ = strings.Cut(chapter, "\n## ")
	_, v.config, _ = strings.Cut(chapter, "```yaml\n")
	v.config, _, _ = strings.Cut(v.config, "```")
	lines := slices.Collect(strings.Lines(strings.ReplaceAll(chapter, "\\\n", "")))
	ran := 0
	for i, line := range lines {
		words := strings.Fields(line)
		if len(words) == 0 || words[0] != "vault" {
			continue
		}
		ran++
		switch strings.Join(words[1:3], " ") {
		case "auth enable":
			v.server.Write("sys/auth/"+words[3], map[string]any{"type": words[3]})
		case "secrets enable":
			v.server.Write("sys/mounts/"+words[3], map[string]any{"type": words[3]})
		case "secrets tune":
			v.server.Write("sys/mounts/"+words[4]+"/tune", map[string]any{"max_lease_ttl": strings.TrimPrefix(words[3], "-max-lease-ttl=")})
		case "policy write":
			end := i + slices.Index(lines[i:], "END\n")
			v.server.Write("sys/policies/acl/"+words[3], map[string]any{"policy": strings.Join(lines[i+1:end], "")})
		case "read -field=certificate":
			_, got := v.server.Do(http.MethodGet, words[3], nil)
			v.root, _ = got.Data["certificate"].(string)
		default:
			if words[1] != "write" {
				v.t.Errorf("the document has a line that this test does not know: %s", line)
				continue
			}
			data := map[string]any{}
			for _, pair := range words[3:] {
				name, value, _ := strings.Cut(pair, "=")
				data[name] = value
			}
			for name, value := range v.more[words[2]] {
				data[name] = value
			}
			v.server.Write(words[2], data)
		}
	}
	if ran != 8 || v.root == "" {
		v.t.Fatalf("%d commands of the document were run, and the root is %q", ran, v.root)
	}
}

// logins are the daemon's that are good: Vault's keys for them.
func (v *vaultCommands) logins() []any {
	v.t.Helper()
	_, got := v.server.Do("LIST", "sys/leases/lookup/auth/kubernetes/login", nil)
	keys, _ := got.Data["keys"].([]any)
	return keys
}
