package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"sallyport/internal/test/database"
	"sallyport/internal/test/must"
	"sallyport/internal/test/testnet"
	"sallyport/internal/test/vaultcore"
)

// runVault starts the server of examples/vault as its README says, in a folder.
func runVault(t *testing.T, dir, secret string) {
	t.Helper()
	fields, err := json.Marshal(map[string]string{"token": secret})
	must.OK(t, err)
	var said bytes.Buffer
	c := exec.Command("../../examples/vault/run.sh", dir)
	c.Stdin, c.Stdout, c.Stderr = bytes.NewReader(fields), &said, &said
	must.OK(t, c.Start())
	ended := make(chan struct{})
	go func() { _ = c.Wait(); close(ended) }()
	t.Cleanup(func() {
		_ = c.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(time.Minute):
			t.Error("run.sh does not end")
		}
	})
	for deadline := time.Now().Add(6 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if _, err := os.Stat(filepath.Join(dir, "ready.json")); err == nil {
			return
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
}

// vaultLogin is the configuration that reads a Vault with its AppRole.
func vaultLogin(v *vaultcore.Server) string {
	return fmt.Sprintf("vault: {address: %q, roots: %q, auth: {appRole: {roleID: %q, secretIDFile: %q}}}\n", v.Address, v.CAFile, v.RoleID, v.File("secret-id", v.SecretID))
}

// A credential whose secret is in Vault works, follows Vault at once where it is to, and
// fails closed with it, alone.
func TestVault(t *testing.T) {
	r := newRig(t, "")
	secrets := []string{"sk-vault-first-0123456789", "sk-vault-second-0123456789"}
	v := vaultcore.Start(t, map[string]any{"token": secrets[0]})

	rules := strings.Replace(ruleConfig, "egress:", `- destination: vault.example.test
  authRef: openai
  upstream: {addresses: [198.51.100.10], roots: ca.pem, resolver: "198.51.100.10:53"}
egress:`, 1) + "- name: openai\n  cache: 0s\n  source: {vault: {path: secret/data/openai, field: token}}\n"
	r.configure(baseConfig, rules+vaultLogin(v))
	r.serveSites(hostMux{"vault.example.test": testnet.API(testnet.KeyOf(""))})
	r.up()
	r.setKey()
	r.ok("run", "agent", "--", "true")

	fetch := func() string { return r.inside("agent", "curl -sS -i -m 60 https://vault.example.test/").stdout }
	sends := func(what, secret string) {
		t.Helper()
		if got := fetch(); !strings.Contains(got, `"key_sha256":"`+idOf(secret)+`"`) {
			t.Fatalf("%s: got %s\n%s", what, got, r.logged())
		}
	}
	fails := func(what, why string) {
		t.Helper()
		got := fetch()
		for _, want := range []string{" 503 ", `credential "openai"`, why, "An operator must"} {
			if !strings.Contains(got, want) {
				t.Errorf("%s: got %s, want %q", what, got, want)
			}
		}
		if res := r.inside("agent", "curl -sS https://api.example.test/"); !strings.Contains(res.stdout, `"saw_key":true`) {
			t.Errorf("%s: a credential of another source: got %s", what, res)
		}
	}

	sends("injected", secrets[0])
	v.Write("secret/data/openai", map[string]any{"data": map[string]string{"token": secrets[1]}})
	sends("rotated", secrets[1])

	v.Write("sys/seal", nil)
	fails("sealed", "cannot be reached")
	v.Write("sys/unseal", map[string]any{"key": v.UnsealKey})
	r.await("what was sealed", func() bool { return strings.Contains(fetch(), idOf(secrets[1])) })

	// A token that something else keeps fresh, until it is revoked.
	token := v.Token("sallyport")
	r.write("token", token)
	r.configure(baseConfig, rules+fmt.Sprintf("vault: {address: %q, roots: %q, auth: {tokenFile: token}}\n", v.Address, v.CAFile))
	r.reload()
	sends("with a token", secrets[1])
	v.Write("auth/token/revoke", map[string]any{"token": token})
	fails("revoked", "refused")

	reads := r.ok("audit", "query", "--kind", "lifecycle")
	for _, want := range []string{`"secret openai read"`, `"secret openai could not be read"`} {
		if !strings.Contains(reads, want) {
			t.Errorf("the audit log has no event %s of Vault: %s", want, reads)
		}
	}

	h := newHunt(map[string]string{"first": secrets[0], "second": secrets[1], "token": token})
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

// A sandbox's user of a database is there from its first connection until the sandbox stops,
// is removed, or no rule gives it the credential any more; a Vault that is away meanwhile
// delays that, and what has a lease goes on.
func TestVaultLeases(t *testing.T) {
	r := newRig(t, "")
	v := vaultcore.Lasting(t, map[string]any{"token": "sk-vault-first-0123456789"})
	leaf, err := r.ca.Leaf("db.example.test")
	must.OK(t, err)
	db := database.Postgres(t, &leaf)
	db.SQL("create role vault superuser login password 'a-password-of-vault'")
	v.Write("sys/policies/acl/sallyport", map[string]any{"policy": `
path "database/creds/*" { capabilities = ["read"] }
path "sys/leases/renew" { capabilities = ["update"] }
path "sys/leases/revoke" { capabilities = ["update"] }`})
	v.Write("sys/mounts/database", map[string]any{"type": "database"})
	v.Write("database/config/db", map[string]any{
		"plugin_name": "postgresql-database-plugin", "allowed_roles": "*", "username": "vault", "password": "a-password-of-vault",
		"connection_url": fmt.Sprintf("postgresql://{{username}}:{{password}}@127.0.0.1:%d/postgres?sslmode=disable", db.Port),
	})
	v.Write("database/roles/agent", map[string]any{"db_name": "db", "default_ttl": "1h", "creation_statements": []string{`create role "{{name}}" login password '{{password}}'`}})

	rules := strings.Replace(ruleConfig, "egress:", `- destination: db.example.test
  authRef: db
  inject: {postgres: {username: "{{ .username }}", password: "{{ .password }}"}}
  upstream: {addresses: [198.51.100.10], roots: ca.pem, resolver: "198.51.100.10:53"}
egress:`, 1) + "- {name: db, source: {vault: {path: database/creds/agent}}}\n"
	r.configure(baseConfig, rules+vaultLogin(v))
	r.serveSites(hostMux{"db.example.test": http.NotFoundHandler()})
	r.relay(5432, db.Port)
	r.up()
	programs, err := filepath.Glob("/usr/lib/postgresql/*/bin/psql")
	must.OK(t, err)
	dir := t.TempDir()
	clients(t, dir, slices.Max(programs))

	// connects has a sandbox log in, and returns the lease that Vault gave for that.
	known := map[string]bool{}
	psql := func(box string) result {
		return r.inside(box, "cd /root/clients && LD_LIBRARY_PATH=. ./psql -h db.example.test -w -X -At -c 'select 1' postgres")
	}
	connects := func(box string) (lease string) {
		t.Helper()
		if res := psql(box); strings.TrimSpace(res.stdout) != "1" {
			t.Fatalf("psql in %s: %s\n%s", box, res, r.logged())
		}
		_, list := v.Do("LIST", "sys/leases/lookup/database/creds/agent", nil)
		keys, _ := list.Data["keys"].([]any)
		for _, k := range keys {
			if id := "database/creds/agent/" + k.(string); !known[id] {
				known[id], lease = true, id
			}
		}
		return lease
	}
	users := func() string { return db.SQL("select count(*) from pg_user where usename like 'v-%'") }
	gone := func(what, lease, left string) {
		t.Helper()
		r.await("the revocation when "+what, func() bool { return !v.Leased(lease) && users() == left })
	}
	for _, box := range []string{"stops", "goes", "stays"} {
		r.ok("run", box, "--", "true")
		r.ok("sandbox", "cp", "-r", dir, box+":/root/clients")
	}
	stops, goes, stays := connects("stops"), connects("goes"), connects("stays")
	if users() != "3" || stops == "" || goes == "" || stays == "" {
		t.Fatalf("%s users, and the leases %q", users(), []string{stops, goes, stays})
	}
	if again := connects("stays"); again != "" {
		t.Errorf("another connection has another lease, %s", again)
	}
	r.ok("sandbox", "stop", "stops")
	gone("a sandbox stops", stops, "2")

	v.Stop()
	if res := psql("stays"); strings.TrimSpace(res.stdout) != "1" {
		t.Errorf("with a lease, while Vault is down: %s", res)
	}
	if res := psql("stops"); res.code == 0 || !strings.Contains(res.stderr, "sallyport: ") || strings.Contains(res.stderr, v.Address) {
		t.Errorf("without a lease, while Vault is down: %s", res)
	}
	r.ok("sandbox", "rm", "goes")
	r.await("that the status tells of the lease", func() bool { return strings.Contains(r.ok("status"), goes) })
	r.await("an event of its revocation, which fails", func() bool {
		return strings.Contains(r.ok("audit", "query", "--kind", "lifecycle"), `"a lease of secret db could not be revoked; that is tried again"`)
	})
	v.Again()
	gone("a removed sandbox's Vault is back", goes, "1")
	r.await("a new lease", func() bool { return strings.TrimSpace(psql("stops").stdout) == "1" })

	r.configure(baseConfig, ruleConfig+vaultLogin(v))
	r.reload()
	gone("the rule has gone", stays, "0")
	if said := r.ok("audit", "query", "--kind", "lifecycle"); !strings.Contains(said, `"secret db revoked"`) {
		t.Errorf("the audit log has no event of a revocation: %s", said)
	}
}

// The file that run.sh wrote is a configuration, and it ends with a reason where it cannot
// begin.
func TestVaultExample(t *testing.T) {
	r := newRig(t, "")
	dir := filepath.Join(t.TempDir(), "vault")
	runVault(t, dir, "sk-example-0123456789")
	r.config = filepath.Join(dir, "sallyport.yaml")
	if res := r.sallyport("policy", "check"); res.code != 0 {
		t.Errorf("its configuration: %s", res)
	}
	for path, want := range map[string]os.FileMode{"": 0o700, "secret-id": 0o600, "ready.json": 0o600, "sallyport.yaml": 0o600} {
		info, err := os.Stat(filepath.Join(dir, path))
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%q has mode %v, %v, want %v", path, info.Mode().Perm(), err, want)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "fields")); !errors.Is(err, os.ErrNotExist) {
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
	loads := func() int { return strings.Count(r.whole(), "policy loaded") }
	before := loads()
	must.OK(r.t, r.daemon.Signal(syscall.SIGHUP))
	r.await("the reload", func() bool { return loads() > before })
}
