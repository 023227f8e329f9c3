package ca

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/x509"
	"crypto/x509/pkix"
	"net"
	"net/netip"
	"time"

	"sallyport/gateway/mitm"
)

// Sign signs a leaf for a host name or an IP address and a key on P-256, and
// returns the chain in DER: the leaf, the sandbox's intermediate, and what an Issuer has
// above it but for a root. It is a
// [mitm.Signer]. Without an authority for the sandbox it returns [ErrNoAuthority].
func (a *Authority) Sign(sandboxID, name string, public *ecdsa.PublicKey) (chain [][]byte, err error) {
	name, err = mitm.Canonical(name)
	if err != nil {
		return nil, err
	}
	if public.Curve != elliptic.P256() {
		return nil, errBadKey
	}
	i, err := a.intermediate(sandboxID)
	if err != nil {
		return nil, err
	}
	leaf, err := newLeaf(name, public, i, a.now())
	if err != nil {
		return nil, err
	}
	if _, ok := a.lineage(sandboxID); !ok {
		return nil, ErrNoAuthority // forgotten meanwhile
	}
	chain = [][]byte{leaf.Raw, i.cert.Raw}
	for _, c := range i.issuers {
		if !bytes.Equal(c.RawSubject, c.RawIssuer) {
			chain = append(chain, c.Raw)
		}
	}
	return chain, nil
}

// newLeaf makes a certificate for one host name or one IP address.
func newLeaf(name string, public *ecdsa.PublicKey, by *pair, now time.Time) (*x509.Certificate, error) {
	keyID, err := subjectKeyID(public)
	if err != nil {
		return nil, err
	}
	// No common name: it is limited to 64 characters and no client that checks
	// the subject alternative name (RFC 9525) looks at it.
	t := &x509.Certificate{
		Subject:               pkix.Name{Organization: []string{"Sallyport"}},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(leafLife - backdate),
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		SubjectKeyId:          keyID,
	}
	if t.NotAfter.After(by.cert.NotAfter) {
		t.NotAfter = by.cert.NotAfter
	}
	if addr, err := netip.ParseAddr(name); err == nil {
		t.IPAddresses = []net.IP{addr.AsSlice()}
	} else {
		t.DNSNames = []string{name}
	}
	if t.NotBefore.Before(by.cert.NotBefore) {
		t.NotBefore = by.cert.NotBefore
	}
	return sign(t, &Issuer{chain: []*x509.Certificate{by.cert}, key: by.key}, public)
}
