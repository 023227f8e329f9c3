package e2e

import (
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sallyport/internal/test/vaultcore"
)

// brokerRules give credentials by the path of a request. %[1]s is a token endpoint.
const brokerRules = `
egressAuth:
- {name: by-client, destination: unlisted.example.test, paths: [/client], authRef: client, upstream: &up {addresses: [198.51.100.10], roots: ca.pem, resolver: "198.51.100.10:53"}}
- {name: by-lease, destination: unlisted.example.test, paths: [/lease], authRef: lease, inject: {clientCertificate: {}}, upstream: *up}
- {name: by-grace, destination: unlisted.example.test, paths: [/grace], authRef: grace, upstream: *up}
- {name: by-none, destination: unlisted.example.test, paths: [/none], authRef: none, upstream: *up}
credentials:
- {name: client, exchange: {oauth2: {tokenURL: "%[1]s", clientID: agent, roots: endpoint.pem}}}
- {name: lease, source: {vault: {path: pki/issue/agent, parameters: {common_name: agent.example.test}}}}
- {name: grace, grace: 1h, cache: 1s, source: {vault: {path: secret/data/openai, field: token}}}
- {name: none, cache: 1s, source: {vault: {path: secret/data/openai, field: token}}}
`

// The daemon and the gateway's process share out credentials: many requests for a token that
// has expired have one made, and those with a lease that lives, or in their grace, go on while
// Vault is down.
func TestBroker(t *testing.T) {
	r, client := newProxyRig(t)
	client.Transport.(*http.Transport).ForceAttemptHTTP2 = true
	const secret = "sk-vault-0123456789abcdef"
	v := vaultcore.Lasting(t, map[string]any{"token": secret})
	v.Write("sys/mounts/pki", map[string]any{"type": "pki"})
	v.Write("pki/root/generate/internal", map[string]any{"common_name": "agents", "ttl": "24h"})
	v.Write("pki/roles/agent", map[string]any{"allow_any_name": true, "generate_lease": true, "ttl": "1h", "key_type": "ec", "key_bits": 256})
	v.Write("sys/policies/acl/sallyport", map[string]any{"policy": `
path "secret/data/*" { capabilities = ["read"] }
path "pki/issue/*" { capabilities = ["update"] }
path "sys/leases/revoke" { capabilities = ["update"] }`})
	var issued atomic.Int64
	endpoint := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n, life := issued.Add(1), 3600
		if n == 1 {
			life = 1
		} else {
			time.Sleep(time.Second) // while they come
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"access_token":"short-lived-token-%d","token_type":"Bearer","expires_in":%d}`, n, life)
	}))
	defer endpoint.Close()
	r.write("endpoint.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: endpoint.Certificate().Raw})))
	base := strings.Replace(baseConfig, "engine: {runsc: %[2]s}", "engine: {kind: none} # not %[2]s", 1) + "proxy: {listen: \"127.0.0.1:3128\"}\naudit: {segmentSize: 1048576}\n"
	r.configure(base, fmt.Sprintf(brokerRules, endpoint.URL)+vaultLogin(v))
	r.reload()
	if res := r.feed("a-secret-of-the-client\n", "secret", "set", "client"); res.code != 0 {
		t.Fatal(res)
	}
	askBy := func(client *http.Client, name string) (int, string) {
		resp, err := client.Get("https://unlisted.example.test/" + name)
		if err != nil {
			t.Error(err)
			return 0, ""
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Error(err)
		}
		return resp.StatusCode, string(body)
	}
	ask := func(name string) (int, string) { return askBy(client, name) }
	works := func(name string) bool { code, _ := ask(name); return code == 200 }

	if code, body := ask("client"); code != 200 || !strings.Contains(body, idOf("short-lived-token-1")) {
		t.Fatalf("%d %s", code, body)
	}
	crowd := make([]*http.Client, 8) // each with a connection of HTTP/2
	for i := range crowd {
		crowd[i] = &http.Client{Timeout: client.Timeout, Transport: client.Transport.(*http.Transport).Clone()}
		defer crowd[i].CloseIdleConnections()
		if code, body := askBy(crowd[i], "none"); code != 200 {
			t.Fatalf("%d %s", code, body)
		}
	}
	time.Sleep(time.Second) // for which the first token lives
	var all sync.WaitGroup
	for n := range 1000 {
		all.Go(func() {
			if code, body := askBy(crowd[n%len(crowd)], "client"); code != 200 || !strings.Contains(body, idOf("short-lived-token-2")) {
				t.Errorf("%d %s", code, body)
			}
		})
	}
	all.Wait()
	if n := issued.Load(); n != 2 {
		t.Errorf("%d tokens were issued, want 2", n)
	}

	names := []string{"lease", "grace", "none"}
	for _, name := range names {
		if code, body := ask(name); code != 200 {
			t.Fatalf("%s: %d %s", name, code, body)
		}
	}
	load := func(d time.Duration, away bool) {
		t.Helper()
		end := time.Now().Add(d)
		for range 8 {
			all.Go(func() {
				for time.Now().Before(end) {
					for _, name := range names {
						switch code, body := ask(name); {
						case name != "none" || !away:
							if code != 200 {
								t.Errorf("%s: %d %s", name, code, body)
							}
						case code != 503 || !strings.Contains(body, `credential "none": the secret's source cannot be reached`) || strings.Contains(body, "127.0.0.1"):
							t.Errorf("%s: %d %s", name, code, body)
						}
					}
					time.Sleep(50 * time.Millisecond)
				}
			})
		}
		all.Wait()
	}
	v.Stop()
	r.await("the end of what has no grace", func() bool { return !works("none") })
	load(2*time.Second, true)
	v.Again()
	r.await("what has no grace", func() bool { return works("none") })
	load(time.Second/2, false)

	// The operator is told which rule and which credential, and why.
	said := r.ok("audit", "query", "--kind", "lifecycle")
	if !strings.Contains(said, "secret none could not be read") || !strings.Contains(said, "Vault at "+v.Address+" cannot be reached") {
		t.Errorf("the audit log has no reason: %s", said)
	}
	h := newHunt(map[string]string{"secret": secret, "first": "short-lived-token-1", "second": "short-lived-token-2"})
	q := h.begin()
	q.tree(t, filepath.Join(r.dir, "data/audit"))
	for _, value := range []string{"secret", "first", "second"} {
		if found := q.of(value); len(found) > 0 {
			t.Errorf("found %v", found)
		}
	}
}
