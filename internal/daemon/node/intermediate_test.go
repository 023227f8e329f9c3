package node

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/gateway/ca"
	"sallyport/gateway/credential/vault"
	"sallyport/internal/config"
	"sallyport/internal/seal"
	"sallyport/internal/test/must"
	"sallyport/internal/test/vaultcore"
)

// bed is a node with an audit log and the authority that signs for its pods.
type bed struct {
	*Node
	dir       string
	log       *auditlog.Log
	client    *vault.Client
	authority *ca.Authority
}

// unasked is an API server that nobody asks.
type unasked struct{ Cluster }

func (unasked) Known() []netip.Prefix { return nil }

func newBed(t *testing.T, dir string, of config.PodsCA) *bed {
	t.Helper()
	key, err := seal.Open(filepath.Join(dir, "key"), filepath.Join(dir, "data"))
	must.OK(t, err)
	b := &bed{dir: dir}
	b.log, err = auditlog.Open(filepath.Join(dir, "audit"), auditlog.Options{})
	must.OK(t, err)
	t.Cleanup(func() { must.OK(t, b.log.Close()) })
	b.Node = &Node{Options: Options{
		Config: config.Pods{Node: "n1", CA: of}, Cluster: unasked{}, Dir: filepath.Join(dir, "ca"), Key: key, Logger: slog.New(slog.DiscardHandler),
		Vault:  func() *vault.Client { return b.client },
		Record: func(ctx context.Context, e *audit.Event) error { return b.log.Append(ctx, e) },
		Event:  func(subject, _, state string) *audit.Event { return audit.Change(subject, state) },
	}}
	return b
}

// start opens the node, as a daemon that starts does.
func (b *bed) start(t *testing.T) {
	t.Helper()
	n, i, err := Open(t.Context(), b.Options)
	must.OK(t, err)
	b.Node = n
	b.authority, err = ca.Open(ca.Options{Dir: b.Dir, Sealer: b.Key, Issuer: i, Logger: b.Logger})
	must.OK(t, err)
	_, err = b.authority.Root("pod")
	must.OK(t, err)
}

// renewAt renews the node's intermediate if that is due at a time.
func (b *bed) renewAt(t *testing.T, now time.Time) {
	t.Helper()
	if i := b.intermediate.renewed(t.Context(), now); i != nil {
		b.authority.SetIssuer(i)
	}
}

// shown is the node's certificate in the chain that a pod is shown.
func (b *bed) shown(t *testing.T) *x509.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must.OK(t, err)
	chain, err := b.authority.Sign("pod", "api.example.com", &key.PublicKey)
	must.OK(t, err)
	if len(chain) < 3 {
		t.Fatalf("the chain has %d certificates, want the node's after the pod's", len(chain))
	}
	c, err := x509.ParseCertificate(chain[2])
	must.OK(t, err)
	return c
}

// issued are the states of the events about the node's intermediate.
func (b *bed) issued(t *testing.T) string {
	t.Helper()
	var states []string
	for e, err := range auditlog.Read(t.Context(), filepath.Join(b.dir, "audit"), auditlog.Query{}) {
		must.OK(t, err)
		if x := e.Unmapped.Sallyport; x.Subject == "ca/n1" {
			states = append(states, x.State)
		}
	}
	return strings.Join(states, " ")
}

// A changed pair of files is what pods are shown from then on, at once and without a
// restart; one that cannot be used changes nothing, and is tried again.
func TestIssuerOfFiles(t *testing.T) {
	dir := t.TempDir()
	root, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must.OK(t, err)
	mode := os.FileMode(0o440) // as cert-manager's csi-driver mounts it, for the group root
	if os.Geteuid() != 0 {
		mode = 0o400
	}
	write := func(serial int64, ca bool) {
		t.Helper()
		must.OK(t, os.RemoveAll(filepath.Join(dir, "tls.key")))
		c := &x509.Certificate{
			Subject: pkix.Name{CommonName: "root"}, SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
			IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		}
		above := *c
		c.Subject.CommonName, c.SerialNumber, c.IsCA = "node", big.NewInt(serial), ca
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		must.OK(t, err)
		der, err := x509.CreateCertificate(rand.Reader, c, &above, &key.PublicKey, root)
		must.OK(t, err)
		private, err := x509.MarshalPKCS8PrivateKey(key)
		must.OK(t, err)
		must.OK(t, os.WriteFile(filepath.Join(dir, "tls.key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), mode))
		must.OK(t, os.WriteFile(filepath.Join(dir, "tls.crt"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644))
	}
	write(1, true)
	b := newBed(t, dir, config.PodsCA{Certificate: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key")})
	b.start(t)
	is := func(when string, serial int64, recorded string) {
		t.Helper()
		if got := b.shown(t).SerialNumber.Int64(); got != serial || b.issued(t) != recorded {
			t.Errorf("%s: the node's certificate is %d, recorded %q; want %d and %q", when, got, b.issued(t), serial, recorded)
		}
	}
	now := time.Now()
	b.renewAt(t, now)
	is("unchanged", 1, "")
	write(2, true)
	b.renewAt(t, now)
	is("changed", 2, "renewed")
	write(3, false)
	b.renewAt(t, now)
	is("no authority", 2, "renewed")
	write(4, true)
	b.renewAt(t, now)
	is("not tried again yet", 2, "renewed")
	b.renewAt(t, now.Add(retryAfter))
	is("tried again", 4, "renewed renewed")
}

// Vault signs a node's intermediate once for half of its time, also over restarts, and what
// it has signed is used while it is away.
func TestIssuerOfVault(t *testing.T) {
	s := vaultcore.Start(t, map[string]any{"a": "b"})
	s.Write("sys/mounts/pki", map[string]any{"type": "pki"})
	s.Write("pki/root/generate/internal", map[string]any{"common_name": "agents", "ttl": "48h"})
	dir := t.TempDir()
	b := newBed(t, dir, config.PodsCA{Vault: &config.PodsVault{Mount: "pki", TTL: config.Duration(24 * time.Hour)}})
	var err error
	b.client, err = vault.New(config.Vault{Address: s.Address, Roots: s.CAFile, Auth: config.VaultAuth{TokenFile: s.File("token", s.RootToken)}}, b.Logger)
	must.OK(t, err)
	t.Cleanup(b.client.Close)
	b.start(t)
	first := b.shown(t)
	if first.Subject.CommonName != "Sallyport node n1" || first.MaxPathLen != 1 {
		t.Errorf("Vault signed %s with path length %d", first.Subject, first.MaxPathLen)
	}
	kept, err := os.ReadFile(b.intermediate.file())
	must.OK(t, err)
	if bytes.Contains(kept, []byte("PRIVATE KEY")) {
		t.Error("the key is on disk unsealed")
	}
	b.start(t)
	if !b.shown(t).Equal(first) || b.issued(t) != "issued" {
		t.Errorf("a restart has another one signed: recorded %q", b.issued(t))
	}
	b.renewAt(t, time.Now().Add(11*time.Hour))
	if !b.shown(t).Equal(first) {
		t.Error("it is renewed before half of its time")
	}
	b.renewAt(t, time.Now().Add(13*time.Hour))
	second := b.shown(t)
	if second.Equal(first) || b.issued(t) != "issued renewed" {
		t.Errorf("it is not renewed after half of its time: recorded %q", b.issued(t))
	}

	// An intermediate that cannot be recorded is not in force, nor after a restart.
	log := b.log
	b.log, err = auditlog.Open(t.TempDir(), auditlog.Options{})
	must.OK(t, err)
	must.OK(t, b.log.Close())
	b.renewAt(t, time.Now().Add(13*time.Hour))
	b.log = log
	b.start(t)
	if !b.shown(t).Equal(second) {
		t.Error("one is in force that is not recorded")
	}
	s.Stop()
	b.renewAt(t, time.Now().Add(13*time.Hour))
	b.start(t)
	if !b.shown(t).Equal(second) {
		t.Error("without Vault, what it has signed is not used")
	}
}

// A node that is told of another mount of Vault has an intermediate of that one from its start
// on, or as soon as Vault signs it, and then keeps it.
func TestIssuerOfAnotherMount(t *testing.T) {
	s := vaultcore.Start(t, map[string]any{"a": "b"})
	b := newBed(t, t.TempDir(), config.PodsCA{Vault: &config.PodsVault{Mount: "old", TTL: config.Duration(24 * time.Hour)}})
	var err error
	b.client, err = vault.New(config.Vault{Address: s.Address, Roots: s.CAFile, Auth: config.VaultAuth{TokenFile: s.File("token", s.RootToken)}}, b.Logger)
	must.OK(t, err)
	t.Cleanup(b.client.Close)
	mount := func(name string) {
		t.Helper()
		s.Write("sys/mounts/"+name, map[string]any{"type": "pki"})
		s.Write(name+"/root/generate/internal", map[string]any{"common_name": "agents of " + name, "ttl": "48h"})
	}
	is := func(when, above, recorded string) *x509.Certificate {
		t.Helper()
		c := b.shown(t)
		if got := c.Issuer.CommonName; got != "agents of "+above || b.issued(t) != recorded {
			t.Errorf("%s: the node's certificate is below %q, recorded %q; want the root of %q and %q", when, got, b.issued(t), above, recorded)
		}
		return c
	}
	mount("old")
	b.start(t)
	is("at first", "old", "issued")
	b.Options.Config.CA.Vault = &config.PodsVault{Mount: "new", TTL: config.Duration(24 * time.Hour)}
	b.start(t)
	is("without the new mount", "old", "issued")
	mount("new")
	b.renewAt(t, time.Now())
	first := is("with the new mount", "new", "issued renewed")
	b.start(t)
	if !is("started again", "new", "issued renewed").Equal(first) {
		t.Error("a restart has another one signed")
	}
	mount("newest")
	b.Options.Config.CA.Vault = &config.PodsVault{Mount: "newest", TTL: config.Duration(24 * time.Hour)}
	b.start(t)
	is("with another mount at the start", "newest", "issued renewed renewed")
}
