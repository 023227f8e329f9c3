package vault_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"sallyport/gateway/credential"
	"sallyport/gateway/credential/vault"
	"sallyport/internal/config"
	"sallyport/internal/test/must"
	"sallyport/internal/test/vaultcore"
	"sallyport/policy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const value = "sk-proj-0123456789abcdef"

func connect(t *testing.T, c config.Vault) *vault.Client {
	t.Helper()
	v, err := vault.New(c, slog.New(slog.NewTextHandler(t.Output(), nil)))
	must.OK(t, err)
	t.Cleanup(v.Close)
	return v
}

func source(t *testing.T, v *vault.Client, path, field string) *vault.Source {
	t.Helper()
	src, err := v.Source(policy.VaultSource{Path: path, Field: field})
	must.OK(t, err)
	return src
}

func readField(t *testing.T, src *vault.Source, field string) (string, string) {
	t.Helper()
	m, err := src.Read(t.Context())
	must.OK(t, err)
	return m.Fields[field].Reveal(), m.Version
}

// fails wants an error of a kind that says something and no secret.
func fails(t *testing.T, err, want error, says string, secrets ...string) {
	t.Helper()
	if !errors.Is(err, want) || !strings.Contains(err.Error(), says) {
		t.Errorf("error %v, want %v that says %q", err, want, says)
	}
	for _, s := range append(secrets, value) {
		if err != nil && strings.Contains(err.Error(), s) {
			t.Errorf("the error has a secret: %v", err)
		}
	}
}

func TestRead(t *testing.T) {
	t.Parallel()
	s := start(t)
	token := s.token(t)
	v := connect(t, s.withToken(t, token))
	if err := v.Health(t.Context()); err != nil {
		t.Errorf("Health: %v", err)
	}

	all := source(t, v, "secret/data/openai", "")
	m, err := all.Read(t.Context())
	must.OK(t, err)
	if m.Version != "1" || len(m.Fields) != 3 || m.Fields["token"].Reveal() != value || m.Fields["count"].Reveal() != "42" || m.Fields["on"].Reveal() != "true" {
		t.Errorf("read version %s, %d fields", m.Version, len(m.Fields))
	}
	if uuid.Validate(m.Accessor) != nil { // of the request, in Vault's own audit
		t.Errorf("the accessor is %q", m.Accessor)
	}
	one := source(t, v, "secret/data/openai", "token")
	m, err = one.Read(t.Context())
	if err != nil || len(m.Fields) != 1 || m.Fields["token"].Reveal() != value {
		t.Errorf("one field: %d fields, %v", len(m.Fields), err)
	}

	// Rotation.
	s.write(t, "secret/data/openai", map[string]any{"data": map[string]any{"token": "rotated-value"}})
	if got, version := readField(t, one, "token"); got != "rotated-value" || version != "2" {
		t.Errorf("after rotation: version %s", version)
	}

	read := func(path, field string) error {
		_, err := source(t, v, path, field).Read(t.Context())
		return err
	}
	fails(t, read("secret/data/nothing", ""), credential.ErrNoSecret, "vault kv put", token)
	fails(t, read("secret/data/openai", "nope"), credential.ErrNoSecret, `no field "nope"`, token)
	s.write(t, "secret/data/nested", map[string]any{"data": map[string]any{"deep": map[string]any{"a": value}}})
	fails(t, read("secret/data/nested", "deep"), credential.ErrNoSecret, "not text", token)
	fails(t, read("cubbyhole/data/x", ""), credential.ErrNoSecret, "cubbyhole/data/x", token)
	fails(t, read("sys/data/x", ""), credential.ErrRefused, "capability read", token)
	fails(t, read("nomount/data/x", ""), credential.ErrRefused, "capability read", token)
	if _, err := s.root.Logical().Delete("secret/data/nested"); err != nil {
		t.Fatal(err)
	}
	fails(t, read("secret/data/nested", ""), credential.ErrNoSecret, "deleted", token)

	s.write(t, "sys/mounts/old", map[string]any{"type": "kv", "options": map[string]any{"version": "1"}})
	root := connect(t, s.withToken(t, s.RootToken))
	for _, path := range []string{"old/data/x", "old/y"} { // version 1 has no versions
		s.write(t, path, map[string]any{"token": value})
		if m, err = source(t, root, path, "token").Read(t.Context()); err != nil || m.Version != "" || m.Fields["token"].Reveal() != value {
			t.Errorf("%s in version 1: version %q, %v", path, m.Version, err)
		}
	}
	_, err = source(t, root, "secret/openai", "").Read(t.Context())
	fails(t, err, credential.ErrNoSecret, "data after the mount", s.RootToken)

	// A version that deletes itself is used no longer than it lives.
	s.write(t, "secret/metadata/brief", map[string]any{"delete_version_after": "90s"})
	s.write(t, "secret/data/brief", map[string]any{"data": map[string]any{"token": value}})
	m, err = source(t, v, "secret/data/brief", "").Read(t.Context())
	if left := time.Until(m.Expires); err != nil || left < 60*time.Second || left > 90*time.Second {
		t.Errorf("expires in %v, %v", left, err)
	}
}

func TestSealedAndGone(t *testing.T) {
	t.Parallel()
	s := start(t)
	token := s.token(t)
	v := connect(t, s.withToken(t, token))
	src := source(t, v, "secret/data/openai", "token")
	readField(t, src, "token")

	s.write(t, "sys/seal", nil)
	_, err := src.Read(t.Context())
	fails(t, err, credential.ErrUnavailable, "vault operator unseal", token)
	fails(t, v.Health(t.Context()), credential.ErrUnavailable, "vault operator unseal", token)
	if _, err := s.root.Sys().Unseal(s.UnsealKey); err != nil {
		t.Fatal(err)
	}
	if got, _ := readField(t, src, "token"); got != value {
		t.Error("after unsealing: another value")
	}

	// The certificate of a server that was not configured.
	stranger := s.withToken(t, token)
	stranger.Roots = ""
	_, err = source(t, connect(t, stranger), "secret/data/openai", "").Read(t.Context())
	fails(t, err, credential.ErrUnavailable, "vault.roots", token)

	s.Stop()
	begin := time.Now()
	_, err = src.Read(t.Context())
	fails(t, err, credential.ErrUnavailable, "cannot be reached", token)
	fails(t, v.Health(t.Context()), credential.ErrUnavailable, "cannot be reached", token)
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("a server that is gone took %v", took)
	}
}

func TestTokenFile(t *testing.T) {
	t.Parallel()
	s := start(t)
	token := s.token(t)
	c := s.withToken(t, token)
	v := connect(t, c)
	src := source(t, v, "secret/data/openai", "token")
	readField(t, src, "token")

	s.write(t, "auth/token/revoke", map[string]any{"token": token})
	_, err := src.Read(t.Context())
	fails(t, err, credential.ErrRefused, "revoked", token)
	fails(t, v.Health(t.Context()), credential.ErrRefused, "revoked", token)

	s.file(t, "token", s.token(t))
	if got, _ := readField(t, src, "token"); got != value {
		t.Error("a new token in the file was not taken")
	}

	// A token that may do nothing is refused, not unknown.
	poor := s.write(t, "auth/token/create", map[string]any{"policies": []string{"default"}}).Auth.ClientToken
	s.file(t, "token", poor)
	_, err = src.Read(t.Context())
	fails(t, err, credential.ErrRefused, "capability read", poor)

	for name, text := range map[string]string{"empty": "", "two words": "a b", "a header's end": "a\r\nX-Evil: 1"} {
		s.file(t, "token", text)
		_, err := src.Read(t.Context())
		t.Log(name)
		fails(t, err, credential.ErrRefused, "does not hold one token")
	}
	os.Remove(c.Auth.TokenFile)
	_, err = src.Read(t.Context())
	fails(t, err, credential.ErrRefused, "vault.auth.tokenFile")
}

func TestAppRole(t *testing.T) {
	t.Parallel()
	s := start(t)
	v := connect(t, s.withRole(t, s.RoleID, s.SecretID))
	src := source(t, v, "secret/data/openai", "token")
	if err := v.Health(t.Context()); err != nil {
		t.Errorf("Health: %v", err)
	}
	readField(t, src, "token")
	if n := s.logins(t); n != 1 {
		t.Errorf("%d logins for a health check and a read, want 1", n)
	}

	// Vault forgets the tokens: one login for all readers.
	s.write(t, "sys/leases/revoke-prefix/auth/approle/login", nil)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, err := src.Read(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := s.logins(t); n != 1 {
		t.Errorf("%d tokens after they were revoked, want 1", n)
	}

	// A secret ID that is no longer good shows when the token is gone.
	s.write(t, "auth/approle/role/sallyport/secret-id/destroy", map[string]any{"secret_id": s.SecretID})
	readField(t, src, "token")
	s.write(t, "sys/leases/revoke-prefix/auth/approle/login", nil)
	_, err := src.Read(t.Context())
	fails(t, err, credential.ErrRefused, "new secret ID", s.SecretID)
	fresh := s.write(t, "auth/approle/role/sallyport/secret-id", nil).Data["secret_id"].(string)
	s.file(t, "secret-id", fresh)
	readField(t, src, "token")
}

// logins counts the tokens that AppRole has given and that live.
func (s *server) logins(t *testing.T) int {
	t.Helper()
	got, err := s.root.Logical().List("sys/leases/lookup/auth/approle/login")
	must.OK(t, err)
	if got == nil {
		return 0
	}
	keys, _ := got.Data["keys"].([]any)
	return len(keys)
}

func TestAppRoleRenews(t *testing.T) {
	t.Parallel()
	s := start(t)
	role := "auth/approle/role/brief"
	s.write(t, role, map[string]any{"token_policies": "sallyport", "token_ttl": "6s", "token_max_ttl": "15s"})
	id, err := s.root.Logical().Read(role + "/role-id")
	must.OK(t, err)
	secret := s.write(t, role+"/secret-id", nil)
	src := source(t, connect(t, s.withRole(t, id.Data["role_id"].(string), secret.Data["secret_id"].(string))), "secret/data/openai", "token")
	// Past two renewals and the longest life of the first token.
	most := 0
	for begin := time.Now(); time.Since(begin) < 19*time.Second; time.Sleep(300 * time.Millisecond) {
		readField(t, src, "token")
		most = max(most, s.logins(t))
		if age := time.Since(begin); age > 7*time.Second && age < 11*time.Second && most != 1 {
			t.Fatalf("%d tokens after %v, want the first one renewed", most, age)
		}
	}
	// After a pause longer than the token's life.
	time.Sleep(7 * time.Second)
	readField(t, src, "token")
}

// The environment's variables about Vault and proxies count for nothing.
func TestEnvironment(t *testing.T) {
	s := start(t)
	c := s.withToken(t, s.token(t))
	trap := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t.Errorf("the environment sent %s %s astray", r.Method, r.URL)
	}))
	defer trap.Close()
	for name, text := range map[string]string{
		"VAULT_ADDR": trap.URL, "VAULT_AGENT_ADDR": trap.URL, "VAULT_TOKEN": "hvs.evil", "VAULT_NAMESPACE": "evil",
		"VAULT_HEADERS": `{"X-Evil":"1"}`, "VAULT_SKIP_VERIFY": "1", "VAULT_HTTP_PROXY": trap.URL, "VAULT_PROXY_ADDR": trap.URL,
		"VAULT_WRAP_TTL": "60s", "VAULT_TLS_SERVER_NAME": "evil", "VAULT_RATE_LIMIT": "0.001:1", "VAULT_MAX_RETRIES": "100",
		"HTTPS_PROXY": trap.URL, "HTTP_PROXY": trap.URL, "https_proxy": trap.URL,
	} {
		t.Setenv(name, text)
	}
	v := connect(t, c)
	if err := v.Health(t.Context()); err != nil {
		t.Error(err)
	}
	if got, _ := readField(t, source(t, v, "secret/data/openai", "token"), "token"); got != value {
		t.Error("another value")
	}
	stranger := c
	stranger.Roots = ""
	_, err := source(t, connect(t, stranger), "secret/data/openai", "").Read(t.Context())
	fails(t, err, credential.ErrUnavailable, "vault.roots")
}

// The server that answers may be no Vault at all.
func TestNotVault(t *testing.T) {
	t.Parallel()
	block := make(chan struct{})
	tests := []struct {
		name   string
		answer http.HandlerFunc
		want   error
		says   string
	}{
		{"HTML", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "<html>") }, credential.ErrUnavailable, "not JSON"},
		{"no such page", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no "+value, 404) }, credential.ErrUnavailable, "not JSON"},
		{"echo of the token", func(w http.ResponseWriter, r *http.Request) {
			http.Error(w, r.Header.Get("X-Vault-Token"), http.StatusTeapot)
		}, credential.ErrRefused, "418"},
		{"broken", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, value, 500) }, credential.ErrUnavailable, "500"},
		{"busy", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, `{"errors":[]}`, 429) }, credential.ErrUnavailable, "429"},
		{"endless", func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, `{"data":"`)
			for r.Context().Err() == nil {
				if _, err := io.WriteString(w, strings.Repeat("x", 64<<10)); err != nil {
					return
				}
			}
		}, credential.ErrUnavailable, "not JSON"},
		{"silent", func(_ http.ResponseWriter, r *http.Request) {
			select {
			case <-block:
			case <-r.Context().Done():
			}
		}, credential.ErrUnavailable, "in time"},
		{"elsewhere", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/v1/again", http.StatusTemporaryRedirect)
		}, credential.ErrUnavailable, "leads from node to node"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			srv := httptest.NewServer(tt.answer)
			defer srv.Close()
			file := filepath.Join(t.TempDir(), "token")
			must.OK(t, os.WriteFile(file, []byte("hvs.the-token"), 0o600))
			v := connect(t, config.Vault{Address: srv.URL, Auth: config.VaultAuth{TokenFile: file}})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			if tt.name == "silent" {
				ctx, cancel = context.WithTimeout(t.Context(), 3*time.Second)
			}
			defer cancel()
			_, err := source(t, v, "secret/data/openai", "").Read(ctx)
			fails(t, err, tt.want, tt.says, "hvs.the-token")
			v.Close()
		})
	}
	close(block)
}

func TestConfiguration(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "token")
	must.OK(t, os.WriteFile(file, []byte("not PEM"), 0o600))
	token := config.VaultAuth{TokenFile: file}
	role := &config.AppRole{RoleID: "r", SecretIDFile: file}
	const address = "https://vault.example.com:8200"
	tests := []struct {
		name string
		c    config.Vault
		says string
	}{
		{"good", config.Vault{Address: address, Auth: token}, ""},
		{"good, role", config.Vault{Address: address, Auth: config.VaultAuth{AppRole: role}}, ""},
		{"good, loopback", config.Vault{Address: "http://[::1]:8200", Auth: token}, ""},
		{"no address", config.Vault{Auth: token}, "vault.address"},
		{"in clear", config.Vault{Address: "http://vault.example.com:8200", Auth: token}, "https"},
		{"in clear to a name like loopback", config.Vault{Address: "http://127.0.0.1.example.com:8200", Auth: token}, "https"},
		{"another scheme", config.Vault{Address: "unix:///run/vault.sock", Auth: token}, "vault.address"},
		{"user in the address", config.Vault{Address: "https://u:p@vault.example.com", Auth: token}, "vault.address"},
		{"no login", config.Vault{Address: address}, "exactly one"},
		{"two logins", config.Vault{Address: address, Auth: config.VaultAuth{TokenFile: file, AppRole: role}}, "exactly one"},
		{"half a role", config.Vault{Address: address, Auth: config.VaultAuth{AppRole: &config.AppRole{RoleID: "r"}}}, "secretIDFile"},
		{"bad mount", config.Vault{Address: address, Auth: config.VaultAuth{AppRole: &config.AppRole{RoleID: "r", SecretIDFile: file, Mount: "../sys"}}}, "mount"},
		{"no roots", config.Vault{Address: address, Roots: dir + "/nope", Auth: token}, "vault.roots"},
		{"bad roots", config.Vault{Address: address, Roots: file, Auth: token}, "PEM"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := vault.New(tt.c, nil)
			if (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
				t.Errorf("New: %v, want %q", err, tt.says)
			}
		})
	}
	v := connect(t, tests[0].c)
	for _, path := range []string{"", "openai", "/secret/data/x", "v1/secret/data/x", "secret/data/", "/data/x", "secret/data/../../sys/seal", "secret/data/x?version=1", "secret/data/%2e%2e"} {
		if _, err := v.Source(policy.VaultSource{Path: path}); err == nil || !strings.Contains(err.Error(), "vault path") {
			t.Errorf("path %q: %v", path, err)
		}
	}
}

// The server of the example is for this machine only.
func TestServerStaysOnLoopback(t *testing.T) {
	bin, err := vaultcore.Binary()
	must.OK(t, err)
	out, err := exec.Command(bin, "-listen", net.JoinHostPort("0.0.0.0", "0")).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "loopback") {
		t.Errorf("%v, %s", err, out)
	}
}
