package kubernetes

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"sallyport/internal/test/must"
)

// authority runs ca.sh, and returns the bundle and the pair of the nodes that it prints.
func authority(t *testing.T, dir string) (bundle []byte, nodes tls.Certificate) {
	t.Helper()
	out, err := exec.Command("./ca.sh", dir).Output()
	must.OK(t, err)
	if key, err := os.ReadFile(filepath.Join(dir, "root.key")); err != nil || bytes.Contains(out, bytes.TrimSpace(key[30:80])) {
		t.Errorf("the root's key is printed, or not kept: %v", err)
	}
	d := yaml.NewDecoder(bytes.NewReader(out))
	var trust struct {
		Kind string `yaml:"kind"`
		Spec struct {
			Bundle string `yaml:"trustBundle"`
		} `yaml:"spec"`
	}
	must.OK(t, d.Decode(&trust))
	var secret struct {
		Kind string            `yaml:"kind"`
		Data map[string]string `yaml:"stringData"`
	}
	must.OK(t, d.Decode(&secret))
	if trust.Kind != "ClusterTrustBundle" || secret.Kind != "Secret" {
		t.Errorf("kinds %s, %s", trust.Kind, secret.Kind)
	}
	nodes, err = tls.X509KeyPair([]byte(secret.Data["tls.crt"]), []byte(secret.Data["tls.key"]))
	must.OK(t, err)
	return []byte(trust.Spec.Bundle), nodes
}

// issue signs a certificate with a pair.
func issue(t *testing.T, by tls.Certificate, template *x509.Certificate) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must.OK(t, err)
	template.SerialNumber, template.NotBefore, template.NotAfter = big.NewInt(1), time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, err := x509.ParseCertificate(by.Certificate[0])
	must.OK(t, err)
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, by.PrivateKey)
	must.OK(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// A sandbox that has the bundle trusts a leaf below its own authority, below the nodes'.
func TestAuthority(t *testing.T) {
	dir := t.TempDir()
	bundle, nodes := authority(t, dir)
	again, _ := authority(t, dir)
	if !bytes.Equal(bundle, again) {
		t.Error("a second run made another root")
	}
	sandbox := issue(t, nodes, &x509.Certificate{IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign})
	leaf := issue(t, sandbox, &x509.Certificate{DNSNames: []string{"api.example.com"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})

	roots, between := x509.NewCertPool(), x509.NewCertPool()
	if !roots.AppendCertsFromPEM(bundle) {
		t.Fatalf("no bundle: %s", bundle)
	}
	for _, pair := range []tls.Certificate{nodes, sandbox} {
		c, err := x509.ParseCertificate(pair.Certificate[0])
		must.OK(t, err)
		between.AddCert(c)
	}
	c, err := x509.ParseCertificate(leaf.Certificate[0])
	must.OK(t, err)
	if _, err := c.Verify(x509.VerifyOptions{DNSName: "api.example.com", Roots: roots, Intermediates: between}); err != nil {
		t.Error(err)
	}
}
