package vault_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sallyport/gateway/credential/vault"
	"sallyport/internal/config"
	"sallyport/internal/test/must"
	"sallyport/policy"
)

// Whatever passes as a secret's path is, at the server, the path of that secret and
// nothing else: no other route, mount or query; likewise a namespace, in its header.
func FuzzPath(f *testing.F) {
	for _, text := range []string{"secret/data/openai", "secret/data/../../sys/seal", "a/data/b?version=1", "a/data/%2e%2e", "a/data/b;c", "a/data/ä", "a/data/b c", "v1/a/data/b", "a/data/b\r\nX: y", "a//data/b", "a/data/b/", "a:b/data/@c"} {
		f.Add(text, "team/agents")
		f.Add("secret/data/openai", text)
	}
	var got *http.Request
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.Clone(r.Context())
		_ = json.NewEncoder(w).Encode(map[string]any{"data": map[string]any{"data": map[string]any{"token": "x"}, "metadata": map[string]any{"version": 1}}})
	}))
	f.Cleanup(server.Close)
	token := tokenFile(f)
	f.Fuzz(func(t *testing.T, path, namespace string) {
		v, err := vault.New(config.Vault{Address: server.URL, Namespace: namespace, Auth: config.VaultAuth{TokenFile: token}}, nil)
		if err != nil {
			return
		}
		defer v.Close()
		src, err := v.Source(policy.VaultSource{Path: path})
		if err != nil {
			return
		}
		got = nil
		if _, err := src.Read(t.Context()); err != nil || got == nil {
			t.Fatalf("%q, %q: %v", path, namespace, err)
		}
		uri, _, query := strings.Cut(got.RequestURI, "?")
		if got.URL.Path != "/v1/"+path || query || strings.Count(uri, "/") != strings.Count(path, "/")+2 || strings.Contains(uri, "/../") {
			t.Errorf("%q is asked for as %q", path, got.RequestURI)
		}
		if ns := strings.Trim(got.Header.Get("X-Vault-Namespace"), "/"); ns != strings.Trim(namespace, "/") {
			t.Errorf("namespace %q is sent as %q", namespace, ns)
		}
	})
}

func tokenFile(tb testing.TB) string {
	file := filepath.Join(tb.TempDir(), "token")
	must.OK(tb, os.WriteFile(file, []byte("token\n"), 0o600))
	return file
}
