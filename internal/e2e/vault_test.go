package e2e

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sallyport/internal/test/must"
	"sallyport/internal/test/testnet"
)

// vaultTTL is how long a secret of Vault's is used before Vault is asked again,
// as README.md of examples/vault promises.
const vaultTTL = 30 * time.Second

// vaultServer is the real server core of examples/vault, started as its README
// says.
type vaultServer struct {
	dir    string
	client *http.Client

	Address   string `json:"address"`
	RootToken string `json:"rootToken"`
	RoleID    string `json:"roleID"`
	UnsealKey string `json:"unsealKey"`
	CAFile    string `json:"caFile"`
}

func startVault(t *testing.T, secret string) *vaultServer {
	t.Helper()
	s := &vaultServer{dir: filepath.Join(t.TempDir(), "vault")}
	fields, err := json.Marshal(map[string]string{"token": secret})
	must.OK(t, err)
	var said bytes.Buffer
	c := exec.Command("../../examples/vault/run.sh", s.dir)
	c.Stdin, c.Stdout, c.Stderr = bytes.NewReader(fields), &said, &said
	must.OK(t, c.Start())
	ended := make(chan struct{})
	go func() { _ = c.Wait(); close(ended) }()
	t.Cleanup(func() {
		_ = c.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(20 * time.Second):
			t.Error("run.sh does not end")
		}
	})
	for deadline := time.Now().Add(6 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		text, err := os.ReadFile(filepath.Join(s.dir, "ready.json"))
		if err == nil {
			must.OK(t, json.Unmarshal(text, s))
			break
		}
		select {
		case <-ended:
			t.Fatalf("run.sh ended: %s", said.String())
		default:
		}
		if time.Now().After(deadline) {
			t.Fatalf("no Vault within six minutes: %s", said.String())
		}
	}
	root, err := os.ReadFile(s.CAFile)
	must.OK(t, err)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(root)
	s.client = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, DisableKeepAlives: true}}
	return s
}

// call uses Vault's own API with the root token.
func (s *vaultServer) call(t *testing.T, method, path string, in, out any) {
	t.Helper()
	body, err := json.Marshal(in)
	must.OK(t, err)
	req, err := http.NewRequest(method, s.Address+"/v1/"+path, bytes.NewReader(body))
	must.OK(t, err)
	req.Header.Set("X-Vault-Token", s.RootToken)
	resp, err := s.client.Do(req)
	must.OK(t, err)
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		t.Fatalf("%s %s: %s", method, path, resp.Status)
	}
	if out == nil {
		return
	}
	must.OK(t, json.NewDecoder(resp.Body).Decode(out))
}

func (s *vaultServer) put(t *testing.T, secret string) {
	s.call(t, "POST", "secret/data/openai", map[string]any{"data": map[string]string{"token": secret}}, nil)
}

// A credential whose secret is in Vault works, follows Vault, and fails closed
// with it, alone.
func TestVault(t *testing.T) {
	r := newRig(t, "")
	secrets := []string{"sk-vault-first-0123456789", "sk-vault-second-0123456789"}
	v := startVault(t, secrets[0])

	rules := strings.Replace(ruleConfig, "egress:", `- destination: vault.example.test
  authRef: openai
  upstream: {addresses: [198.51.100.10], roots: ca.pem, resolver: "198.51.100.10:53"}
egress:`, 1) + "- name: openai\n  source: {vault: {path: secret/data/openai, field: token}}\n"
	login := func(auth string) string {
		return fmt.Sprintf("vault: {address: %q, roots: %q, auth: {%s}}\n", v.Address, v.CAFile, auth)
	}
	r.configure(baseConfig, rules+login(fmt.Sprintf("appRole: {roleID: %q, secretIDFile: %q}", v.RoleID, filepath.Join(v.dir, "secret-id"))))
	r.serveSites(hostMux{"vault.example.test": testnet.API(testnet.KeyOf(""))})
	r.up()
	r.setKey()
	r.ok("run", "agent", "--", "true")

	fetch := func() string { return r.inside("agent", "curl -sS -i -m 20 https://vault.example.test/").stdout }
	sends := func(what, secret string, within time.Duration) {
		t.Helper()
		began := time.Now()
		want := `"key_sha256":"` + idOf(secret) + `"`
		got := ""
		for time.Since(began) < within+5*time.Second {
			if got = fetch(); strings.Contains(got, want) {
				t.Logf("%s: after %.1f s", what, time.Since(began).Seconds())
				return
			}
			time.Sleep(200 * time.Millisecond)
		}
		t.Fatalf("%s: not within %v: %s\n%s", what, within, got, r.logged())
	}
	fails := func(what, why string, within time.Duration) {
		t.Helper()
		began := time.Now()
		got := ""
		for time.Since(began) < within+5*time.Second {
			if got = fetch(); strings.Contains(got, " 503 ") {
				break
			}
			time.Sleep(200 * time.Millisecond)
		}
		t.Logf("%s: after %.1f s", what, time.Since(began).Seconds())
		for _, want := range []string{" 503 ", `credential "openai"`, why, "An operator must"} {
			if !strings.Contains(got, want) {
				t.Errorf("%s: got %s, want %q", what, got, want)
			}
		}
		if res := r.inside("agent", "curl -sS https://api.example.test/"); !strings.Contains(res.stdout, `"saw_key":true`) {
			t.Errorf("%s: a credential of another source: got %s", what, res)
		}
	}

	sends("injected", secrets[0], 0)
	v.put(t, secrets[1])
	sends("rotated", secrets[1], vaultTTL)

	// What is used after its time is up is asserted where time can be made to pass; a
	// reload forgets what was read.
	v.call(t, "PUT", "sys/seal", nil, nil)
	r.reload()
	fails("sealed", "cannot be reached", 0)
	v.call(t, "PUT", "sys/unseal", map[string]string{"key": v.UnsealKey}, nil)
	sends("unsealed", secrets[1], 5*time.Second)

	// A token that something else keeps fresh, until it is revoked. A reload
	// forgets what was read.
	var token struct {
		Auth struct {
			Token string `json:"client_token"`
		} `json:"auth"`
	}
	v.call(t, "POST", "auth/token/create", map[string]any{"policies": []string{"sallyport"}}, &token)
	r.write("token", token.Auth.Token)
	r.configure(baseConfig, rules+login("tokenFile: token"))
	r.reload()
	sends("with a token", secrets[1], 0)
	v.call(t, "POST", "auth/token/revoke", map[string]string{"token": token.Auth.Token}, nil)
	r.reload()
	fails("revoked", "refused", 0)

	reads := r.ok("audit", "query", "--kind", "lifecycle")
	for _, want := range []string{`"secret openai read"`, `"secret openai could not be read"`} {
		if !strings.Contains(reads, want) {
			t.Errorf("the audit log has no event %s of Vault: %s", want, reads)
		}
	}

	h := newHunt(map[string]string{"first": secrets[0], "second": secrets[1], "token": token.Auth.Token})
	q := h.begin()
	q.tree(t, filepath.Join(r.dir, "data/audit"))
	log, err := os.ReadFile(filepath.Join(r.dir, "daemon.log"))
	must.OK(t, err)
	_ = q.read("the daemon's log", bytes.NewReader(log))
	for _, value := range []string{"first", "second", "token"} {
		if found := q.of(value); len(found) > 0 {
			t.Errorf("found %v", found)
		}
	}
}

// What run.sh wrote is a configuration, and it ends with a reason where it
// cannot begin.
func TestVaultExample(t *testing.T) {
	r := newRig(t, "")
	v := startVault(t, "sk-example-0123456789")
	r.config = filepath.Join(v.dir, "sallyport.yaml")
	if res := r.sallyport("policy", "check"); res.code != 0 {
		t.Errorf("its configuration: %s", res)
	}
	for path, want := range map[string]os.FileMode{"": 0o700, "secret-id": 0o600, "ready.json": 0o600, "sallyport.yaml": 0o600} {
		info, err := os.Stat(filepath.Join(v.dir, path))
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%q has mode %v, %v, want %v", path, info.Mode().Perm(), err, want)
		}
	}
	if _, err := os.Stat(filepath.Join(v.dir, "fields")); !errors.Is(err, os.ErrNotExist) {
		t.Error("the secret is left on disk")
	}
	c := exec.Command("../../examples/vault/run.sh", filepath.Join(t.TempDir(), "second"))
	c.Stdin = strings.NewReader(`{"token":"x"}`)
	if out, err := c.CombinedOutput(); err == nil || !strings.Contains(string(out), "address already in use") {
		t.Errorf("a second one on the same port: %v, %s", err, out)
	}
	if out, err := exec.Command("../../examples/vault/run.sh").CombinedOutput(); err == nil || !strings.Contains(string(out), "usage") {
		t.Errorf("without a directory: %v, %s", err, out)
	}
}

func idOf(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])[:12]
}

// reload makes the daemon read its configuration again.
func (r *rig) reload() {
	r.t.Helper()
	before := strings.Count(r.logged(), "policy loaded")
	must.OK(r.t, r.daemon.Signal(syscall.SIGHUP))
	r.await("the reload", func() bool { return strings.Count(r.logged(), "policy loaded") > before })
}
