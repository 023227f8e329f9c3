package vault_test

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"sallyport/gateway/credential"
	"sallyport/gateway/credential/vault"
	"sallyport/internal/test/database"
	"sallyport/internal/test/must"
	"sallyport/policy"
)

// plain is a seal for tests.
type plain struct{}

func (plain) Seal(b []byte) ([]byte, error) { return append([]byte("sealed "), b...), nil }
func (plain) Open(b []byte) ([]byte, error) { return b[len("sealed "):], nil }

// agents may have engines make secrets, renew leases and revoke them.
const agents = `
path "database/creds/*" { capabilities = ["read"] }
path "pki/issue/*" { capabilities = ["update"] }
path "ssh/sign/*" { capabilities = ["update"] }
path "sys/leases/revoke" { capabilities = ["update"] }
path "secret/data/*" { capabilities = ["read"] }`

// withEngines enables pki and ssh, and returns a token that may use them.
func (s *server) withEngines(t *testing.T) (token string) {
	t.Helper()
	s.write(t, "sys/policies/acl/agents", map[string]any{"policy": agents})
	s.write(t, "sys/mounts/pki", map[string]any{"type": "pki", "config": map[string]any{"max_lease_ttl": "24h"}})
	s.write(t, "pki/root/generate/internal", map[string]any{"common_name": "agents", "ttl": "24h"})
	s.write(t, "pki/roles/agent", map[string]any{"allow_any_name": true, "generate_lease": true, "ttl": "1h", "max_ttl": "2h"})
	s.write(t, "pki/roles/brief", map[string]any{"allow_any_name": true, "generate_lease": true, "ttl": "10s"})
	s.write(t, "sys/mounts/ssh", map[string]any{"type": "ssh"})
	s.write(t, "ssh/config/ca", map[string]any{"generate_signing_key": true})
	s.write(t, "ssh/roles/git", map[string]any{"key_type": "ca", "allow_user_certificates": true, "default_user": "git", "allowed_users": "git,deploy", "ttl": "30m", "allowed_extensions": "*"})
	return s.write(t, "auth/token/create", map[string]any{"policies": []string{"agents"}}).Auth.ClientToken
}

// revoked are the leases that were, as the daemon is told.
type revoked struct {
	mu   sync.Mutex
	told []string
}

func (r *revoked) on(l vault.Lease, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told = append(r.told, fmt.Sprint(l.Credential, " of ", l.Sandbox, " ", err == nil))
}

func (r *revoked) all() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.told, ", ")
}

// leases opens Leases, which run until the test ends or stop is called.
func leases(t *testing.T, file string) (l *vault.Leases, r *revoked, stop func()) {
	t.Helper()
	r = &revoked{}
	l, err := vault.OpenLeases(file, vault.LeasesOptions{Sealer: plain{}, OnRevoke: r.on})
	must.OK(t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() { defer close(done); _ = l.Run(ctx) }()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(stop)
	return l, r, stop
}

func engine(t *testing.T, v *vault.Client, l *vault.Leases, name string, s policy.VaultSource) *vault.Engine {
	t.Helper()
	e, err := v.Engine(name, s, l)
	must.OK(t, err)
	return e
}

func made(t *testing.T, own credential.OwnSource) credential.Material {
	t.Helper()
	m, err := own.Read(t.Context())
	must.OK(t, err)
	return m
}

// revokedAt tells whether Vault has revoked a certificate.
func (s *server) isRevoked(t *testing.T, serial string) bool {
	t.Helper()
	got, err := s.root.Logical().Read("pki/cert/" + serial)
	must.OK(t, err)
	return fmt.Sprint(got.Data["revocation_time"]) != "0"
}

func TestCertificatesOfSandboxes(t *testing.T) {
	t.Parallel()
	s := start(t)
	v := connect(t, s.withToken(t, s.withEngines(t)))
	file := filepath.Join(t.TempDir(), "leases")
	l, told, _ := leases(t, file)
	e := engine(t, v, l, "mtls", policy.VaultSource{Path: "pki/issue/agent", Parameters: map[string]string{"common_name": "agent.example.com"}})
	a, b := e.For("a"), e.For("b")
	one, two := made(t, a), made(t, b)
	for _, m := range []credential.Material{one, two} {
		for field, begins := range map[string]string{"certificate": "-----BEGIN CERTIFICATE", "key": "-----BEGIN RSA PRIVATE KEY", "ca_chain": "-----BEGIN CERTIFICATE"} {
			if !strings.HasPrefix(m.Fields[field].Reveal(), begins) {
				t.Errorf("field %s begins with %.20q", field, m.Fields[field].Reveal())
			}
		}
		if left := time.Until(m.Expires); left < 59*time.Minute || left > time.Hour || !strings.HasPrefix(m.Accessor, "pki/issue/agent/") {
			t.Errorf("lease %q expires in %v", m.Accessor, left)
		}
	}
	if one.Version == two.Version {
		t.Error("two sandboxes have one certificate")
	}
	onDisk, err := os.ReadFile(file)
	must.OK(t, err)
	if text := string(onDisk); !strings.HasPrefix(text, "sealed ") || !strings.Contains(text, one.Accessor) || strings.Contains(text, "PRIVATE KEY") {
		t.Errorf("on the disk: %.200s", text)
	}

	a.End()
	must.Soon(t, "the revocation", func() bool { return len(l.List()) == 1 })
	if !s.isRevoked(t, one.Version) || s.isRevoked(t, two.Version) {
		t.Error("the certificate of the sandbox that has ended was not revoked alone")
	}
	if _, err := a.Read(t.Context()); !errors.Is(err, credential.ErrUnavailable) {
		t.Errorf("after its end it is made another: %v", err)
	}
	if got := told.all(); got != "mtls of a true" {
		t.Errorf("told %q", got)
	}
	must.OK(t, l.Close(t.Context()))
	if !s.isRevoked(t, two.Version) || len(l.List()) != 0 {
		t.Error("at the daemon's end the other one was not revoked")
	}

	_, err = engine(t, v, l, "mtls", policy.VaultSource{Path: "pki/issue/nobody", Parameters: map[string]string{"common_name": "a"}}).For("a").Read(t.Context())
	fails(t, err, credential.ErrRefused, "pki/issue/nobody")
	_, err = engine(t, v, l, "mtls", policy.VaultSource{Path: "database/creds/readonly"}).For("a").Read(t.Context())
	fails(t, err, credential.ErrNoSecret, "database/creds/readonly")
}

// A secret that Vault has made and nothing can use is revoked, not forgotten.
func TestUnusableSecretIsRevoked(t *testing.T) {
	t.Parallel()
	s := start(t)
	v := connect(t, s.withToken(t, s.withEngines(t)))
	l, told, _ := leases(t, filepath.Join(t.TempDir(), "leases"))
	_, err := engine(t, v, l, "mtls", policy.VaultSource{
		Path: "pki/issue/agent", Field: "password", Parameters: map[string]string{"common_name": "agent.example.com"},
	}).For("a").Read(t.Context())
	fails(t, err, credential.ErrNoSecret, `no field "password"`)
	must.Soon(t, "the revocation", func() bool { return told.all() == "mtls of a true" && len(l.List()) == 0 })
}

// A lease that an upstream did not take is not kept until the sandbox ends.
func TestDiscardedLeaseIsRevoked(t *testing.T) {
	t.Parallel()
	s := start(t)
	v := connect(t, s.withToken(t, s.withEngines(t)))
	l, told, _ := leases(t, filepath.Join(t.TempDir(), "leases"))
	a := engine(t, v, l, "mtls", policy.VaultSource{Path: "pki/issue/agent", Parameters: map[string]string{"common_name": "agent.example.com"}}).For("a")
	first := made(t, a)
	a.(credential.Discarding).Discard(first.Version)
	second := made(t, a)
	for _, lease := range l.List() {
		if want := lease.ID == first.Accessor; lease.Ending != want {
			t.Errorf("the lease %s is to be revoked: %v, want %v", lease.ID, lease.Ending, want)
		}
	}
	if len(l.List()) != 2 || s.isRevoked(t, first.Version) {
		t.Error("requests under way cannot use the discarded lease any more")
	}
	a.End() // which waits for no lease
	must.Soon(t, "the revocations", func() bool { return told.all() == "mtls of a true, mtls of a true" })
	if !s.isRevoked(t, first.Version) || !s.isRevoked(t, second.Version) {
		t.Error("a lease of the sandbox that has ended was not revoked")
	}
}

// A lease is remembered until Vault ends it, even if the token that it was asked for with
// would end before: that can be renewed.
func TestLeaseOutlivesTheLifeOfItsToken(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.withEngines(t)
	token := s.write(t, "auth/token/create", map[string]any{"policies": []string{"agents"}, "ttl": "10m"}).Auth.ClientToken
	l, _, _ := leases(t, filepath.Join(t.TempDir(), "leases"))
	m := made(t, engine(t, connect(t, s.withToken(t, token)), l, "mtls", policy.VaultSource{
		Path: "pki/issue/agent", Parameters: map[string]string{"common_name": "agent.example.com"},
	}).For("a"))
	if left := time.Until(m.Expires); left > 10*time.Minute {
		t.Errorf("the secret is used for %v", left)
	}
	if left := time.Until(m.Ends); left < 59*time.Minute {
		t.Errorf("answers are searched for it for %v", left)
	}
	if left := time.Until(l.List()[0].Expires); left < 59*time.Minute {
		t.Errorf("the lease is forgotten in %v", left)
	}
}

// A lease that could not be revoked before its end is told of once.
func TestLeaseThatExpiredUnrevoked(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "leases")
	must.OK(t, os.WriteFile(file, []byte(`sealed [{"id":"pki/issue/agent/1","credential":"mtls","sandbox":"a","expires":"2020-01-01T00:00:00Z"}]`), 0o600))
	l, told, stop := leases(t, file)
	must.Soon(t, "the failure", func() bool { return told.all() == "mtls of a false" && len(l.List()) == 0 })
	must.Soon(t, "that it is forgotten", func() bool { text, err := os.ReadFile(file); return err == nil && string(text) == "sealed []" })
	stop()
}

// Leases that outlive the daemon, or that Vault could not be told of, are revoked when it
// can be.
func TestLeasesOutliveTheDaemon(t *testing.T) {
	t.Parallel()
	s := lasting(t)
	config := s.withToken(t, s.withEngines(t))
	file := filepath.Join(t.TempDir(), "leases")
	l, _, stop := leases(t, file)
	e := engine(t, connect(t, config), l, "mtls", policy.VaultSource{Path: "pki/issue/agent", Parameters: map[string]string{"common_name": "agent.example.com"}})
	first := made(t, e.For("a"))
	stop() // the daemon is killed

	next, told, _ := leases(t, file)
	if list := next.List(); len(list) != 1 || list[0].ID != first.Accessor || !list[0].Ending || list[0].Sandbox != "a" {
		t.Fatalf("the next start finds %+v", list)
	}
	must.Soon(t, "that it is told why", func() bool { return strings.Contains(next.List()[0].Error, "not in the configuration") })
	v := connect(t, config)
	next.Use(v)
	must.Soon(t, "the revocation", func() bool { return len(next.List()) == 0 })
	if !s.isRevoked(t, first.Version) {
		t.Error("the lease from before the start was not revoked")
	}

	second := made(t, engine(t, v, next, "mtls", policy.VaultSource{Path: "pki/issue/agent", Parameters: map[string]string{"common_name": "agent.example.com"}}).For("b"))
	s.Stop()
	own := engine(t, v, next, "mtls", policy.VaultSource{Path: "pki/issue/agent"}).For("b")
	own.End()
	must.Soon(t, "the failure", func() bool {
		list := next.List()
		return len(list) == 1 && strings.Contains(list[0].Error, "cannot be reached")
	})
	s.Again()
	must.Soon(t, "the revocation after Vault is back", func() bool { return len(next.List()) == 0 })
	if !s.isRevoked(t, second.Version) {
		t.Error("the lease was not revoked when Vault was back")
	}
	if got := told.all(); got != "mtls of a false, mtls of a true, mtls of b false, mtls of b true" {
		t.Errorf("told %q", got)
	}
}

func TestSSHCertificates(t *testing.T) {
	t.Parallel()
	s := start(t)
	v := connect(t, s.withToken(t, s.withEngines(t)))
	l, _, _ := leases(t, filepath.Join(t.TempDir(), "leases"))
	for principal, parameters := range map[string]map[string]string{"git": nil, "deploy": {"valid_principals": "deploy"}} {
		m := made(t, engine(t, v, l, "git", policy.VaultSource{Path: "ssh/sign/git", Parameters: parameters}).For("a"))
		key, err := ssh.ParsePrivateKey([]byte(m.Fields["privateKey"].Reveal()))
		must.OK(t, err)
		parsed, _, _, _, err := ssh.ParseAuthorizedKey([]byte(m.Fields["certificate"].Reveal()))
		must.OK(t, err)
		certificate := parsed.(*ssh.Certificate)
		if _, err := ssh.NewCertSigner(certificate, key); err != nil || certificate.ValidPrincipals[0] != principal {
			t.Errorf("the certificate is for %v, %v", certificate.ValidPrincipals, err)
		}
		if left := time.Until(m.Expires); left < 29*time.Minute || left > 31*time.Minute || m.Version == "" {
			t.Errorf("version %q expires in %v", m.Version, left)
		}
	}
	_, err := engine(t, v, l, "git", policy.VaultSource{Path: "ssh/sign/git", Parameters: map[string]string{"valid_principals": "root"}}).For("a").Read(t.Context())
	fails(t, err, credential.ErrRefused, "ssh/sign/git")
}

// Users of a database are one sandbox's, live as long as it does, and are renewed.
func TestDatabaseUsers(t *testing.T) {
	t.Parallel()
	db := database.Postgres(t, nil)
	db.SQL("create role vault superuser login password 'a-password-of-vault'")
	s := start(t)
	token := s.withEngines(t)
	s.write(t, "sys/mounts/database", map[string]any{"type": "database"})
	s.write(t, "database/config/db", map[string]any{
		"plugin_name": "postgresql-database-plugin", "allowed_roles": "*", "username": "vault", "password": "a-password-of-vault",
		"connection_url": fmt.Sprintf("postgresql://{{username}}:{{password}}@127.0.0.1:%d/postgres?sslmode=disable", db.Port),
	})
	s.write(t, "database/roles/readonly", map[string]any{
		"db_name": "db", "default_ttl": "8s", "max_ttl": "18s",
		"creation_statements": []string{`create role "{{name}}" login password '{{password}}' valid until '{{expiration}}'`},
	})
	v := connect(t, s.withToken(t, token))
	l, told, _ := leases(t, filepath.Join(t.TempDir(), "leases"))
	var mu sync.Mutex
	reads := map[bool]int{} // by whether it was a renewal
	source := engine(t, v, l, "db", policy.VaultSource{Path: "database/creds/readonly"})
	broker := credential.New(credential.Options{
		Sources: map[string]credential.Source{"db": source}, Bound: func(string, string, uint16) bool { return true },
		OnRead: func(_ string, r credential.Reading, err error) {
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				reads[r.Renewed]++
			}
		},
	})
	users := func() int {
		n, err := strconv.Atoi(db.SQL("select count(*) from pg_user where usename like 'v-%'"))
		must.OK(t, err)
		return n
	}
	lease := func(sandbox string) *credential.Lease {
		l, err := broker.Lease(t.Context(), "db", credential.Binding{Host: "db.example.com", Port: 5432, Verified: true, Sandbox: sandbox})
		must.OK(t, err)
		return l
	}
	name := func(l *credential.Lease) string { return l.Material().Fields["username"].Reveal() }
	first := name(lease("a"))
	if other := name(lease("b")); first == other || name(lease("a")) != first || users() != 2 {
		t.Fatalf("users %s and %s of %d", first, other, users())
	}
	// The timer renews, and at the end of a lease's longest life makes another user.
	must.Soon(t, "another user", func() bool { return name(lease("a")) != first })
	mu.Lock()
	if reads[true] == 0 || reads[false] < 3 {
		t.Errorf("%d renewals, %d users made", reads[true], reads[false])
	}
	mu.Unlock()
	broker.Retain(func(_, sandbox string) bool { return sandbox == "b" })
	must.Soon(t, "that the sandbox's users are gone", func() bool { return !strings.Contains(told.all(), "b true") && strings.Contains(told.all(), "a true") })
	if name(lease("b")) == "" || users() == 0 {
		t.Error("the other sandbox has none either")
	}
	broker.Replace(nil, "")
	must.Soon(t, "that all users are gone", func() bool { return users() == 0 && len(l.List()) == 0 })
}

// Requests go on while Vault is sealed, down and back: those with a lease that lives or in
// their grace get it, the others fail and say why, and nothing stays broken.
func TestVaultIsAway(t *testing.T) {
	t.Parallel()
	s := lasting(t)
	v := connect(t, s.withToken(t, s.withEngines(t)))
	l, _, _ := leases(t, filepath.Join(t.TempDir(), "leases"))
	kv := func() credential.Source { return brief{source(t, v, "secret/data/openai", "token")} }
	agent := policy.VaultSource{Path: "pki/issue/agent", Parameters: map[string]string{"common_name": "agent.example.com"}}
	b := credential.New(credential.Options{
		Sources: map[string]credential.Source{
			"lease": engine(t, v, l, "lease", agent), "grace": credential.Lasting{Source: kv(), Grace: time.Hour}, "none": kv(), "new": kv(),
		},
		Bound: func(string, string, uint16) bool { return true },
	})
	t.Cleanup(func() { b.Retain(func(string, string) bool { return false }) })
	lease := func(name string) error {
		_, err := b.Lease(t.Context(), name, credential.Binding{Host: "api.example.com", Port: 443, Verified: true, Sandbox: "a"})
		return err
	}
	for _, name := range []string{"lease", "grace", "none"} {
		must.OK(t, lease(name))
	}
	// away has requests come from all sides until those without grace have failed a while.
	away := func(says string) {
		t.Helper()
		must.Soon(t, "the end of what has no grace", func() bool { return lease("none") != nil })
		var load sync.WaitGroup
		for range 16 {
			load.Go(func() {
				for range 50 {
					for _, name := range []string{"lease", "grace"} {
						if err := lease(name); err != nil {
							t.Errorf("%s: %v", name, err)
						}
					}
					for _, name := range []string{"none", "new"} {
						if err := lease(name); !errors.Is(err, credential.ErrUnavailable) || !strings.Contains(err.Error(), says) {
							t.Errorf("%s: %v, want one that says %q", name, err, says)
						}
					}
					time.Sleep(20 * time.Millisecond)
				}
			})
		}
		load.Wait()
	}
	back := func() {
		t.Helper()
		for _, name := range []string{"lease", "grace", "none", "new"} {
			must.Soon(t, name, func() bool { return lease(name) == nil })
		}
		b.Replace(map[string]credential.Source{
			"lease": engine(t, v, l, "lease", agent), "grace": credential.Lasting{Source: kv(), Grace: time.Hour}, "none": kv(), "new": kv(),
		}, "") // so that "new" is new again
		for _, name := range []string{"lease", "grace", "none"} {
			must.OK(t, lease(name))
		}
	}

	must.OK(t, s.root.Sys().Seal())
	away("is sealed")
	_, err := s.root.Sys().Unseal(s.unsealKey(t))
	must.OK(t, err)
	back()
	s.Stop()
	away("cannot be reached")
	s.Again()
	back()
}

// brief is a source that holds for half a second.
type brief struct{ *vault.Source }

func (brief) TTL() time.Duration { return 500 * time.Millisecond }

// unsealKey is in base64, as the API takes it.
func (s *server) unsealKey(t *testing.T) string {
	t.Helper()
	key, err := hex.DecodeString(s.UnsealKey)
	must.OK(t, err)
	return base64.StdEncoding.EncodeToString(key)
}
