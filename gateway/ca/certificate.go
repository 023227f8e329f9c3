package ca

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"fmt"
	"time"
)

// Lifetimes. Every certificate begins in the past for clients whose clock is
// behind, and is renewed long before its end for those whose clock is ahead.
const (
	backdate         = 24 * time.Hour
	rootLife         = 3652 * 24 * time.Hour // ten years
	intermediateLife = 90 * 24 * time.Hour
	intermediateUse  = 60 * 24 * time.Hour
	leafLife         = 7 * 24 * time.Hour // with backdate
)

// pair is a certificate and its private key.
type pair struct {
	cert    *x509.Certificate
	issuers []*x509.Certificate // the chain of the Issuer that signed it, if one did
	key     *ecdsa.PrivateKey
}

// intermediateWindow is when an intermediate is used without renewing it.
func intermediateWindow(c *x509.Certificate) window {
	to := c.NotBefore.Add(backdate + intermediateUse)
	if c.NotAfter.Before(to) { // cut short by its root's
		to = c.NotAfter
	}
	return window{c.NotBefore, to}
}

func newRoot(lineage string, now time.Time) (*pair, error) {
	return newAuthority("root", lineage, nil, now, rootLife)
}

func newIntermediate(sandboxID string, root *Issuer, now time.Time) (*pair, error) {
	return newAuthority("sandbox", sandboxID, root, now, intermediateLife)
}

// newAuthority makes a key and a certificate that may sign, self-signed when
// there is no parent.
func newAuthority(role, id string, parent *Issuer, now time.Time, life time.Duration) (*pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	keyID, err := subjectKeyID(&key.PublicKey)
	if err != nil {
		return nil, err
	}
	// The subject is unique to the key, so that a trust store with several of
	// ours never has two roots of one name.
	t := &x509.Certificate{
		Subject: pkix.Name{
			Organization:       []string{"Sallyport"},
			OrganizationalUnit: []string{id[:min(len(id), 64)]}, // X.520 ub-organizational-unit-name
			CommonName:         fmt.Sprintf("Sallyport %s %s", role, hex.EncodeToString(keyID[:8])),
		},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(life),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		SubjectKeyId:          keyID,
	}
	signer := &Issuer{chain: []*x509.Certificate{t}, key: key}
	if parent == nil {
		t.MaxPathLen = 1
	} else {
		signer = parent
		t.MaxPathLenZero = true
		t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		if until := parent.Expires(); t.NotAfter.After(until) {
			t.NotAfter = until
		}
		if from := parent.chain[0].NotBefore; t.NotBefore.Before(from) { // the one above it is not good before
			t.NotBefore = from
		}
		if now.Before(t.NotBefore) {
			return nil, fmt.Errorf("the certificate above it is good from %s on, and the clock says %s: set the clock", t.NotBefore.Format(time.DateTime), now.UTC().Format(time.DateTime))
		}
		if !now.Before(t.NotAfter) {
			return nil, fmt.Errorf("the certificate above it expired on %s: make a new sandbox, or renew the issuer", t.NotAfter.Format(time.DateOnly))
		}
	}
	cert, err := sign(t, signer, &key.PublicKey)
	if err != nil {
		return nil, err
	}
	return &pair{cert: cert, key: key}, nil
}

// sign leaves the serial number to crypto/x509, which draws one at random.
func sign(t *x509.Certificate, signer *Issuer, public *ecdsa.PublicKey) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, t, signer.chain[0], public, signer.key)
	if err != nil {
		return nil, fmt.Errorf("signing a certificate: %w", err)
	}
	return x509.ParseCertificate(der)
}

// subjectKeyID is method 1 of RFC 7093: the leftmost 160 bits of the SHA-256 of
// the public key.
func subjectKeyID(public *ecdsa.PublicKey) ([]byte, error) {
	point, err := public.Bytes()
	if err != nil {
		return nil, fmt.Errorf("encoding a public key: %w", err)
	}
	sum := sha256.Sum256(point)
	return sum[:20], nil
}
