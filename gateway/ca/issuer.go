package ca

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Issuer is a certificate and key from somebody else, for the intermediates of
// all sandboxes.
type Issuer struct {
	chain []*x509.Certificate // from the key's own upwards
	key   crypto.Signer
}

// NewIssuer reads an issuer in PEM: its certificate, then those above it, perhaps up to the
// root, and its key. It refuses what could not sign an intermediate that a client accepts.
func NewIssuer(certificates, key []byte, now time.Time) (*Issuer, error) {
	pair, err := tls.X509KeyPair(certificates, key)
	if err != nil {
		return nil, fmt.Errorf("reading the issuer: %w", err)
	}
	i := new(Issuer)
	var ok bool
	if i.key, ok = pair.PrivateKey.(crypto.Signer); !ok {
		return nil, errors.New("reading the issuer: its key cannot sign")
	}
	for depth, der := range pair.Certificate {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, fmt.Errorf("reading the issuer: %w", err)
		}
		// A sandbox's intermediate is below them too.
		if err := mayIssue(c, depth+1, now); err != nil {
			return nil, fmt.Errorf("the issuer's certificate %q: %w", c.Subject, err)
		}
		if depth > 0 {
			if err := i.chain[depth-1].CheckSignatureFrom(c); err != nil {
				return nil, fmt.Errorf("the issuer's certificate %q is not signed by the one that follows it: %w", i.chain[depth-1].Subject, err)
			}
		}
		i.chain = append(i.chain, c)
	}
	return i, nil
}

// mayIssue reports why a certificate cannot be above so many other authorities and a
// server's (RFC 5280, section 4.2.1).
func mayIssue(c *x509.Certificate, below int, now time.Time) error {
	serverAuth := len(c.ExtKeyUsage)+len(c.UnknownExtKeyUsage) == 0 ||
		slices.Contains(c.ExtKeyUsage, x509.ExtKeyUsageAny) || slices.Contains(c.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	switch {
	case !c.IsCA || !c.BasicConstraintsValid:
		return errors.New("it is not an authority's: ask for one with isCA")
	case c.KeyUsage != 0 && c.KeyUsage&x509.KeyUsageCertSign == 0:
		return errors.New("its key usage is not to sign certificates")
	case (c.MaxPathLen > 0 || c.MaxPathLenZero) && c.MaxPathLen < below:
		return fmt.Errorf("its path length is %d, and %d authorities come below it: each sandbox has one of its own", c.MaxPathLen, below)
	case !serverAuth:
		return errors.New("its extended key usage leaves out servers")
	case now.Before(c.NotBefore) || !now.Before(c.NotAfter):
		return fmt.Errorf("it is good from %s to %s", c.NotBefore.Format(time.DateTime), c.NotAfter.Format(time.DateTime))
	}
	return nil
}

// Expires is when the first certificate of the chain ends.
func (i *Issuer) Expires() time.Time {
	return slices.MinFunc(i.chain, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) }).NotAfter
}

// Renew is when half of the time is over that the issuer's own certificate is good for.
func (i *Issuer) Renew() time.Time {
	c := i.chain[0]
	return c.NotBefore.Add(c.NotAfter.Sub(c.NotBefore) / 2)
}

// has reports whether it is the one with a chain.
func (i *Issuer) has(chain []*x509.Certificate) bool {
	return slices.EqualFunc(i.chain, chain, (*x509.Certificate).Equal)
}

// root is the PEM of the topmost certificate of its chain.
func (i *Issuer) root() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: blockCertificate, Bytes: i.chain[len(i.chain)-1].Raw})
}

// NewRequest makes a key on P-256 and a certificate signing request for it, both in PEM:
// somebody else signs the request, and NewIssuer takes the certificate and the key.
func NewRequest() (request, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, err
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, private)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csr}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}
