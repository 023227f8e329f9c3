package gateway_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/rclone/gofakes3"
	"github.com/rclone/gofakes3/s3mem"

	"sallyport/gateway/credential"
	"sallyport/gateway/credential/vault"
	"sallyport/internal/config"
	"sallyport/internal/test/must"
	"sallyport/internal/test/vaultcore"
	"sallyport/policy"
)

// unsealed is a seal for tests.
type unsealed struct{}

func (unsealed) Seal(b []byte) ([]byte, error) { return b, nil }
func (unsealed) Open(b []byte) ([]byte, error) { return b, nil }

// vaultSide is a real Vault and the daemon's side of it.
type vaultSide struct {
	*vaultcore.Server
	client *vault.Client
	leases *vault.Leases

	mu     sync.Mutex
	failed map[string]error // readings, by credential, of which the daemon makes events
}

const engineRights = `
path "secret/data/*" { capabilities = ["read"] }
path "+/creds/*" { capabilities = ["read"] }
path "aws/sts/*" { capabilities = ["read"] }
path "pki/issue/*" { capabilities = ["update"] }
path "ssh/sign/*" { capabilities = ["update"] }
path "sys/leases/renew" { capabilities = ["update"] }
path "sys/leases/revoke" { capabilities = ["update"] }`

func newVaultSide(t *testing.T) *vaultSide {
	t.Helper()
	v := &vaultSide{Server: vaultcore.Lasting(t, map[string]any{"token": token}), failed: map[string]error{}}
	v.Write("sys/policies/acl/engines", map[string]any{"policy": engineRights})
	for _, engine := range []string{"database", "ssh", "pki", "aws"} {
		v.Write("sys/mounts/"+engine, map[string]any{"type": engine, "config": map[string]any{"max_lease_ttl": "24h"}})
	}
	var err error
	v.client, err = vault.New(config.Vault{
		Address: v.Address, Roots: v.CAFile, Auth: config.VaultAuth{TokenFile: v.File("token", v.Token("engines"))},
	}, slog.New(slog.NewTextHandler(t.Output(), nil)))
	must.OK(t, err)
	t.Cleanup(v.client.Close)
	v.leases, err = vault.OpenLeases(filepath.Join(t.TempDir(), "leases"), vault.LeasesOptions{Sealer: unsealed{}})
	must.OK(t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	running.Go(func() { _ = v.leases.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	return v
}

// engine is the source of a role.
func (v *vaultSide) engine(t *testing.T, name, path string, parameters map[string]string) credential.Source {
	t.Helper()
	e, err := v.client.Engine(name, policy.VaultSource{Path: path, Parameters: parameters}, v.leases)
	must.OK(t, err)
	return e
}

// broker leases them. At the test's end it gives up what sandboxes have.
func (v *vaultSide) broker(t *testing.T, sources map[string]credential.Source) *credential.Broker {
	t.Helper()
	b := credential.New(credential.Options{
		Sources: sources, Bound: func(string, string, uint16) bool { return true }, AllowShort: func(string, string) bool { return true },
		OnRead: func(name string, _ credential.Reading, err error) {
			if err != nil {
				v.mu.Lock()
				defer v.mu.Unlock()
				v.failed[name] = err
			}
		},
	})
	t.Cleanup(func() { retainNone(b) })
	return b
}

// retainNone is the end of all sandboxes.
func retainNone(b *credential.Broker) { b.Retain(func(string, string) bool { return false }) }

// ends has all sandboxes end, and waits until Vault has none of their leases.
func (v *vaultSide) ends(t *testing.T, b *credential.Broker) {
	t.Helper()
	var ids []string
	for _, l := range v.leases.List() {
		if !v.Leased(l.ID) {
			t.Errorf("Vault has no lease %s", l.ID)
		}
		ids = append(ids, l.ID)
	}
	retainNone(b)
	must.Soon(t, "the revocations", func() bool { return len(v.leases.List()) == 0 })
	for _, id := range ids {
		if v.Leased(id) {
			t.Errorf("Vault still has the lease %s", id)
		}
	}
}

// A secret that each engine of Vault makes for a sandbox is given to a real server through the
// gateway, and is worth nothing when the sandbox has ended.
func TestVaultEngines(t *testing.T) {
	v := newVaultSide(t)
	for _, test := range []struct {
		name string
		run  func(*testing.T, *vaultSide)
	}{
		{"database", vaultDatabases},
		{"ssh", vaultSSH},
		{"pki", vaultCertificates},
		{"aws", vaultAWS},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, v) })
	}
}

// vaultDatabases: psql and redis-cli work without a password, as users of the sandbox's own.
func vaultDatabases(t *testing.T, v *vaultSide) {
	e := newDatabaseEnv(t)
	e.postgres.SQL("create role vault superuser login password 'a-password-of-vault'")
	roots := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: e.public.cert.Raw}))
	v.Write("database/config/postgres", map[string]any{
		"plugin_name": "postgresql-database-plugin", "allowed_roles": "*", "username": "vault", "password": "a-password-of-vault",
		"connection_url": fmt.Sprintf("postgresql://{{username}}:{{password}}@127.0.0.1:%d/postgres?sslmode=disable", e.postgres.Port),
	})
	v.Write("database/roles/readonly", map[string]any{
		"db_name": "postgres", "default_ttl": "1h", "creation_statements": []string{`create role "{{name}}" login password '{{password}}' valid until '{{expiration}}'`},
	})
	v.Write("database/config/redis", map[string]any{
		"plugin_name": "redis-database-plugin", "allowed_roles": "*", "username": "default", "password": "the-default-users-own",
		"host": "127.0.0.1", "port": e.redis.Port, "tls": true, "insecure_tls": true, "ca_cert": roots,
	})
	v.Write("database/roles/cache", map[string]any{"db_name": "redis", "default_ttl": "1h", "creation_statements": []string{`["~*", "+ping"]`}})
	e.broker = v.broker(t, map[string]credential.Source{
		"db": v.engine(t, "db", "database/creds/readonly", nil), "cache": v.engine(t, "cache", "database/creds/cache", nil),
	})
	e.policy(func(in policy.Input) policy.Decision {
		d := e.judge(in)
		if in.Destination.Host == cacheHost {
			for i := range d.Inject {
				d.Inject[i].Credential = "cache"
			}
		}
		return d
	})
	const mine = "select count(*) from pg_user where usename = session_user and usename like 'v-%'"
	cached := func() string {
		out, err := e.run("redis-cli", "-p", fmt.Sprint(e.redis.Port), "--tls", "--insecure", "--no-auth-warning", "-a", "the-default-users-own", "acl", "users")
		must.OK(t, err)
		return out
	}
	for range 2 {
		if out, err := e.psql(e.port[databaseHost], "dbname=app sslmode=verify-full", "-c", mine); err != nil || out != "1" {
			t.Errorf("psql: %v %s", err, out)
		}
		if out, err := e.redisCLI("ping"); err != nil || out != "PONG" {
			t.Errorf("redis-cli: %v %s", err, out)
		}
	}
	const users = "select count(*) from pg_user where usename like 'v-%'"
	if n := e.postgres.SQL(users); n != "1" || strings.Count("\n"+cached(), "\nV_") != 1 {
		t.Errorf("%s users of PostgreSQL, and of Redis %s", n, cached())
	}
	_, completions := e.settled(t)
	for _, c := range completions {
		if used := c.Unmapped.Sallyport.Credentials; len(used) != 1 || !strings.HasPrefix(used[0].Lease, "database/creds/") {
			t.Errorf("a completion has the credentials %+v", used)
		}
	}
	v.ends(t, e.broker)
	if n := e.postgres.SQL(users); n != "0" || strings.Contains(cached(), "V_") {
		t.Errorf("%s users of PostgreSQL are left, and of Redis %s", n, cached())
	}
}

// vaultSSH: a real sshd that trusts Vault's authority alone takes a certificate of the
// sandbox's own.
func vaultSSH(t *testing.T, v *vaultSide) {
	v.Write("ssh/config/ca", map[string]any{"generate_signing_key": true})
	v.Write("ssh/roles/agent", map[string]any{"key_type": "ca", "allow_user_certificates": true, "default_user": "root", "allowed_users": "root", "ttl": "30m"})
	_, ca := v.Do(http.MethodGet, "ssh/config/ca", nil)
	l := newSSHEnv(t, execRule, func(l *sshEnv, _ fields) {
		must.OK(t, os.WriteFile(l.folder+"/ca.pub", []byte(ca.Data["public_key"].(string)), 0o600))
		must.OK(t, os.WriteFile(l.folder+"/authorized", nil, 0o600))
	})
	if out, err := l.ssh(t, "echo in"); err == nil {
		t.Fatalf("without Vault's certificate: %s", out)
	}
	l.broker = v.broker(t, map[string]credential.Source{"key": v.engine(t, "key", "ssh/sign/agent", nil)})
	if out, err := l.ssh(t, "echo in"); err != nil || out != "in\n" {
		t.Errorf("%v %s", err, out)
	}
	retainNone(l.broker)
	l.broker = v.broker(t, map[string]credential.Source{"key": v.engine(t, "key", "ssh/sign/agent", map[string]string{"valid_principals": "nobody"})})
	if out, err := l.ssh(t, "echo in"); exitOf(err) != 128 || strings.Contains(out, "principals") {
		t.Errorf("a principal that the role does not have: %v %s", err, out)
	}
}

// vaultCertificates: an upstream that wants a certificate of Vault's authority gets one of
// the sandbox's own.
func vaultCertificates(t *testing.T, v *vaultSide) {
	root := v.Write("pki/root/generate/internal", map[string]any{"common_name": "agents", "ttl": "24h"}).Data["certificate"].(string)
	v.Write("pki/roles/agent", map[string]any{"allow_any_name": true, "generate_lease": true, "ttl": "1h", "key_type": "ec", "key_bits": 256})
	w := newNetEnv(t)
	w.asks = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: x509.NewCertPool()}
	w.asks.ClientCAs.AppendCertsFromPEM([]byte(root))
	w.broker = v.broker(t, map[string]credential.Source{"client": v.engine(t, "client", "pki/issue/agent", map[string]string{"common_name": "agent.example.test"})})
	w.policy(func(in policy.Input) policy.Decision {
		d := w.allow(in)
		if in.Request != nil {
			d.Inject = []policy.Injection{{Credential: "client", Inject: policy.Inject{ClientCertificate: &policy.ClientCertificateInject{}}}}
		}
		return d
	})
	for _, version := range []string{"h1", "h2"} {
		o := w.origin("api-"+version+".example.test", version, true)
		o.handle("/", func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, r.TLS.PeerCertificates[0].Subject.CommonName)
		})
		resp, body := get(t, w.agent(version, true, w.steer, false), o.url("https", "/"))
		if resp.StatusCode != 200 || body != "agent.example.test" {
			t.Errorf("%s: %d, %q is shown", version, resp.StatusCode, body)
		}
	}
	if n := len(v.leases.List()); n != 1 {
		t.Errorf("%d certificates were made for one sandbox", n)
	}
	v.ends(t, w.broker)
}

// fakeAWS plays the part of STS and IAM that Vault's engine asks, in place of Amazon's, and
// gives each question a new key.
type fakeAWS struct {
	mu      sync.Mutex
	keys    map[string]string // secrets by ID
	deleted []string          // users
}

func (f *fakeAWS) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	action, result := r.FormValue("Action"), ""
	key := func(kind string) string {
		id, secret := fmt.Sprintf("%s%016d", kind, len(f.keys)), fmt.Sprintf("secret+of/vault-%024d", len(f.keys))
		f.keys[id] = secret
		return fmt.Sprintf("<AccessKeyId>%s</AccessKeyId><SecretAccessKey>%s</SecretAccessKey>", id, secret)
	}
	switch action {
	case "GetFederationToken":
		result = fmt.Sprintf("<Credentials>%s<SessionToken>session-token-of-vault</SessionToken><Expiration>%s</Expiration></Credentials>", key("ASIA"), time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
	case "CreateAccessKey":
		result = fmt.Sprintf("<AccessKey><UserName>%s</UserName>%s<Status>Active</Status></AccessKey>", r.FormValue("UserName"), key("AKIA"))
	case "DeleteUser":
		f.deleted = append(f.deleted, r.FormValue("UserName"))
	}
	w.Header().Set("Content-Type", "text/xml")
	fmt.Fprintf(w, "<%[1]sResponse><%[1]sResult>%[2]s</%[1]sResult></%[1]sResponse>", action, result)
}

// vaultAWS: what Vault's aws engine makes, under the names that it gives the fields, signs
// requests that a server of S3 takes. Amazon's side of the engine is fakeAWS.
func vaultAWS(t *testing.T, v *vaultSide) {
	fake := &fakeAWS{keys: map[string]string{}}
	amazon := httptest.NewServer(fake)
	defer amazon.Close()
	v.Write("aws/config/root", map[string]any{
		"access_key": "AKIAVAULTVAULTVAULT", "secret_key": "vaults+own/secret", "region": "eu-central-1", "iam_endpoint": amazon.URL, "sts_endpoint": amazon.URL, "sts_region": "eu-central-1",
	})
	document := `{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"s3:*","Resource":"*"}]}`
	v.Write("aws/roles/user", map[string]any{"credential_type": "iam_user", "policy_document": document})
	v.Write("aws/roles/brief", map[string]any{"credential_type": "federation_token", "policy_document": document})
	for _, path := range []string{"aws/creds/user", "aws/sts/brief"} {
		t.Run(path, func(t *testing.T) {
			w := newNetEnv(t)
			w.broker = v.broker(t, map[string]credential.Source{"aws": v.engine(t, "aws", path, nil)})
			w.policy(func(in policy.Input) policy.Decision {
				d := w.allow(in)
				if in.Request != nil {
					d.Inject = []policy.Injection{{Credential: "aws", Inject: policy.Inject{AWS: &policy.AWSInject{Service: "s3", Region: "eu-central-1"}}}}
				}
				return d
			})
			o := w.origin("s3.example.test", "h1", true)
			var sessions []string
			o.handle("/", func(w http.ResponseWriter, r *http.Request) {
				sessions = append(sessions, r.Header.Get("X-Amz-Security-Token"))
				fake.mu.Lock()
				server := gofakes3.New(s3mem.New(), gofakes3.WithV4Auth(fake.keys)).Server()
				fake.mu.Unlock()
				server.ServeHTTP(w, r)
			})
			c := sdk(w, o, "h1")
			for range 2 {
				_, err := c.ListBuckets(t.Context(), &s3.ListBucketsInput{})
				must.OK(t, err)
			}
			want := "session-token-of-vault"
			if path == "aws/creds/user" {
				want = ""
			}
			if !slices.Equal(sessions, []string{want, want}) {
				t.Errorf("the requests have the session tokens %q, want %q", sessions, want)
			}
			v.ends(t, w.broker)
		})
	}
	fake.mu.Lock()
	defer fake.mu.Unlock()
	if len(fake.keys) != 2 || len(fake.deleted) != 1 {
		t.Errorf("%d keys were made, and the users %q deleted", len(fake.keys), fake.deleted)
	}
}
