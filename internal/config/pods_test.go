package config_test

import (
	"os"
	"testing"

	"sallyport/internal/config"
	"sallyport/internal/test/must"
)

// A node of Kubernetes has defaults of its own, and keys of what Kubernetes does are errors
// that say so.
func TestPods(t *testing.T) {
	t.Setenv("NODE_NAME", "worker-1")
	const pods = "engine: {kind: pods}\npods:\n  ca: {certificate: tls.crt, key: tls.key}\n"
	const router = "  router: {listen: \":7443\", certificate: a, key: b, "
	c, err := config.Parse("/etc/sallyport/sallyport.yaml", []byte(pods))
	must.OK(t, err)
	if p := c.Pods; p.Node != "worker-1" || p.CA.Key != "/etc/sallyport/tls.key" {
		t.Errorf("got %+v", p)
	}
	c, err = config.Parse("/etc/sallyport/sallyport.yaml", []byte(pods+router+"clients: [{name: a, tokenFile: t, namespaces: [b]}]}\n"))
	must.OK(t, err)
	if r := c.Pods.Router; r.Key != "/etc/sallyport/b" || r.Clients[0].TokenFile != "/etc/sallyport/t" {
		t.Errorf("got %+v", r)
	}
	must.OK(t, os.Unsetenv("NODE_NAME"))
	refuses(t, map[string]string{
		pods + "sandbox: {pids: 5}":                                                       "SandboxTemplate",
		pods + "ssh: {listen: \"127.0.0.1:22\"}":                                          "kubectl exec",
		pods + "memory: {stores: [{name: a}]}":                                            "PersistentVolumeClaim",
		pods + "registries: [{host: a.example.com, authRef: a}]":                          "imagePullSecrets",
		pods + "  local: [10.0.0.1/8]":                                                    "10.0.0.0/8",
		"engine: {kind: pods, host: \"unix:///x\"}\npods: {ca: {certificate: a, key: b}}": "engine.host",
		"engine: {kind: pods}":                                                            "pods.ca",
		"engine: {kind: pods}\npods: {ca: {certificate: a}}":                              "write both",
		"engine: {kind: pods}\npods: {ca: {certificate: a, key: b, vault: {}}}":           "one way",
		"engine: {kind: pods}\npods: {ca: {vault: {}}}":                                   "vault.address",
		"engine: {kind: none}\npods: {cluster: a}":                                        "kind: pods",
		pods + "  router: {certificate: a}":                                               "write listen: 0.0.0.0:7443",
		pods + "  router: {listen: \":7443\", clients: []}":                               "TLS only",
		pods + router + "clients: []}":                                                    "nobody could ask",
		pods + router + "clients: [{name: A}]}":                                           "not a name",
		pods + router + "clients: [{name: a}]}":                                           "32 characters",
		pods + router + "clients: [{name: a, tokenFile: t}]}":                             "namespaces",
		pods + router + "clients: [{name: a, tokenFile: t, namespaces: [\"*\"]}]}":        "name of a namespace",
		pods + router + "clients: [{name: a, tokenFile: t, namespaces: [b]}, {name: a}]}": "another client's",
		pods + router + "clients: [{name: a, tokenfile: t, namespaces: [b]}]}":            `did you mean "tokenFile"?`,
	})
}
