package vault_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sallyport/gateway/credential"
	"sallyport/internal/config"
	"sallyport/internal/test/must"
	"sallyport/policy"
)

// fakeNode plays one server of a Vault cluster, for what the core of the tests cannot show:
// it has neither namespaces nor other nodes. It answers like an active node until it is told
// of another state.
type fakeNode struct {
	*httptest.Server
	namespace string // that all is in

	mu    sync.Mutex
	state func(w http.ResponseWriter, r *http.Request) // nil: active
	asked []string
}

func newFakeNode(t *testing.T, namespace string) *fakeNode {
	t.Helper()
	n := &fakeNode{namespace: namespace}
	n.Server = httptest.NewServer(n)
	t.Cleanup(n.Close)
	return n
}

// becomes sets the state.
func (n *fakeNode) becomes(state http.HandlerFunc) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.state = state
}

// count is how often a path was asked for.
func (n *fakeNode) count(path string) (times int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, a := range n.asked {
		if a == path {
			times++
		}
	}
	return times
}

func (n *fakeNode) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n.mu.Lock()
	state := n.state
	path := strings.TrimPrefix(r.URL.Path, "/v1/")
	n.asked = append(n.asked, path)
	n.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	if state != nil {
		state(w, r)
		return
	}
	body, _ := io.ReadAll(r.Body)
	namespace := n.namespace
	if path == "sys/health" {
		namespace = "" // it is of the root namespace only
	}
	answer := map[string]any{"request_id": "6f1c7f2e-0000-4000-8000-000000000000"}
	switch login := path == "auth/approle/login"; {
	case strings.Trim(r.Header.Get("X-Vault-Namespace"), "/") != namespace,
		!login && path != "sys/health" && r.Header.Get("X-Vault-Token") != "hvs.of-the-fake",
		login && !strings.Contains(string(body), `"secret_id":"the-secret-id"`):
		w.WriteHeader(http.StatusForbidden)
		answer["errors"] = []string{"permission denied"}
	case path == "sys/health":
		answer["initialized"], answer["version"] = true, "1.19.0"
	case login:
		answer["auth"] = map[string]any{"client_token": "hvs.of-the-fake", "lease_duration": 3600, "renewable": true}
	case path == "auth/token/lookup-self":
		answer["data"] = map[string]any{"ttl": 3600}
	case path == "secret/data/openai":
		answer["data"] = map[string]any{"data": map[string]any{"token": value}, "metadata": map[string]any{"version": 7}}
	case path == "database/creds/agent", path == "sys/leases/renew":
		answer["lease_id"], answer["lease_duration"], answer["renewable"] = "database/creds/agent/1", 60, true
		answer["data"] = map[string]any{"username": "v-agent", "password": "a-password-of-the-fake"}
	case path == "sys/leases/revoke":
	default:
		w.WriteHeader(http.StatusNotFound)
		answer["errors"] = []string{}
	}
	_ = json.NewEncoder(w).Encode(answer)
}

// answers fails as Vault does.
func answers(code int, errors ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(map[string]any{"errors": errors})
	}
}

// standby answers as a node that forwards nothing, and knows the active one.
func standby(active string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/sys/health" {
			http.Redirect(w, r, active+r.URL.RequestURI(), http.StatusTemporaryRedirect)
			return
		}
		code := http.StatusTooManyRequests
		_, _ = fmt.Sscan(r.URL.Query().Get("standbycode"), &code)
		w.WriteHeader(code)
		io.WriteString(w, `{"initialized":true,"sealed":false,"standby":true}`)
	}
}

func (n *fakeNode) config(t *testing.T) config.Vault {
	t.Helper()
	secret := filepath.Join(t.TempDir(), "secret-id")
	must.OK(t, os.WriteFile(secret, []byte("the-secret-id\n"), 0o600))
	return config.Vault{Address: n.URL, Namespace: n.namespace, Auth: config.VaultAuth{AppRole: &config.AppRole{RoleID: "role", SecretIDFile: secret}}}
}

// A standby leads to the active node, a cluster without one is waited for, and its next
// active node is used with the same token.
func TestFailingOver(t *testing.T) {
	t.Parallel()
	near, far := newFakeNode(t, ""), newFakeNode(t, "")
	near.becomes(standby(far.URL))
	v := connect(t, near.config(t))
	src := source(t, v, "secret/data/openai", "token")
	reads := func(what string) {
		t.Helper()
		if got, version := readField(t, src, "token"); got != value || version != "7" {
			t.Errorf("%s: version %s", what, version)
		}
		if err := v.Health(t.Context()); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	reads("through a standby")
	l, told, _ := leases(t, filepath.Join(t.TempDir(), "leases"))
	own := engine(t, v, l, "db", policy.VaultSource{Path: "database/creds/agent"}).For("a")
	made(t, own)

	for name, tt := range map[string]struct {
		state http.HandlerFunc
		says  string
	}{
		"a standby that knows no active node":  {answers(http.StatusInternalServerError, "local node not active but active cluster node not found"), "status 500"},
		"a node that is being elected":         {answers(http.StatusServiceUnavailable, "Vault is not ready"), "status 503"},
		"a sealed node":                        {answers(http.StatusServiceUnavailable, "Vault is sealed"), "vault operator unseal"},
		"a performance standby":                {answers(473), "status 473"},
		"a secondary for disasters":            {answers(472), "status 472"},
		"a node that is behind":                {answers(http.StatusPreconditionFailed, "required index state not present"), "status 412"},
		"a balancer without a node":            {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "<html>", http.StatusBadGateway) }, "status 502"},
		"a standby whose active node has gone": {standby("http://127.0.0.1:1"), "cannot be reached"},
		"standbys that lead to each other":     {standby(near.URL), "leads from node to node"},
	} {
		near.becomes(tt.state)
		_, err := src.Read(t.Context())
		t.Log(name)
		fails(t, err, credential.ErrUnavailable, tt.says, "hvs.of-the-fake", "the-secret-id")
		if err := v.Health(t.Context()); err == nil {
			t.Errorf("%s: it is said to be well", name)
		}
	}
	near.becomes(standby(near.URL))
	own.End()
	must.Soon(t, "the failure", func() bool { return told.all() == "db of a false" && len(l.List()) == 1 })
	near.becomes(nil)
	must.Soon(t, "the revocation", func() bool { return told.all() == "db of a false, db of a true" && len(l.List()) == 0 })
	reads("after it has become the active node")
	if n := near.count("auth/approle/login") + far.count("auth/approle/login"); n != 2 { // once at each, of which one leads to the other
		t.Errorf("%d logins", n)
	}
}

// All that is asked of Vault is in the namespace of the configuration, but for its health.
func TestNamespace(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t, "team/agents")
	v := connect(t, n.config(t))
	must.OK(t, v.Health(t.Context()))
	if got, _ := readField(t, source(t, v, "secret/data/openai", "token"), "token"); got != value {
		t.Error("another value")
	}
	file := filepath.Join(t.TempDir(), "leases")
	l, _, stop := leases(t, file)
	own := engine(t, v, l, "db", policy.VaultSource{Path: "database/creds/agent"}).For("a")
	first := made(t, own)
	time.Sleep(time.Millisecond)
	if m := made(t, own); m.Accessor != first.Accessor || !m.Expires.After(first.Expires) || n.count("sys/leases/renew") != 1 {
		t.Errorf("renewed: %+v", m)
	}
	stop() // the daemon is killed

	// A lease of another namespace is not revoked in this one.
	next, told, _ := leases(t, file)
	c := n.config(t)
	c.Namespace = "team/others"
	next.Use(connect(t, c))
	must.Soon(t, "the failure", func() bool { return told.all() == "db of a false" })
	next.Use(v)
	must.Soon(t, "the revocation", func() bool { return len(next.List()) == 0 })
	if n.count("sys/leases/revoke") != 1 {
		t.Errorf("asked to revoke %d times", n.count("sys/leases/revoke"))
	}

	c = n.config(t)
	c.Namespace = ""
	_, err := source(t, connect(t, c), "secret/data/openai", "token").Read(t.Context())
	fails(t, err, credential.ErrRefused, "vault.auth.appRole")
}
