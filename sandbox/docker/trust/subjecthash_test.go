package trust

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sallyport/internal/test/must"
)

// newCertificate returns the certificate of a new authority.
func newCertificate(t *testing.T, subject pkix.Name) *x509.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must.OK(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1 << 61), Subject: subject, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must.OK(t, err)
	cert, err := x509.ParseCertificate(der)
	must.OK(t, err)
	return cert
}

func TestSubjectHash(t *testing.T) {
	for name, subject := range map[string]pkix.Name{
		"plain":    {CommonName: "root"},
		"spaces":   {CommonName: "  Two   Words\t Here ", Organization: []string{"ACME"}},
		"unicode":  {CommonName: "Zürich ÄÖÜ", Country: []string{"CH"}},
		"repeated": {CommonName: "x", OrganizationalUnit: []string{"b", "A", "c"}},
		"empty":    {},
	} {
		t.Run(name, func(t *testing.T) {
			a := newCertificate(t, subject)
			path := filepath.Join(t.TempDir(), "cert")
			must.OK(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.Raw}), 0o600))
			want, err := exec.Command("openssl", "x509", "-noout", "-subject_hash", "-in", path).Output()
			if err != nil {
				must.Lack(t, "needs openssl: %v", err)
			}
			got, err := subjectHash(a)
			if err != nil || got != strings.TrimSpace(string(want)) {
				t.Errorf("got %s, %v, want %s", got, err, want)
			}
		})
	}
}
