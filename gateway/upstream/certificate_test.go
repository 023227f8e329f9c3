package upstream

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ocsp"

	"sallyport/internal/test/must"
)

// issue signs a certificate for a key.
func issue(t *testing.T, c, parent *x509.Certificate, key crypto.Signer, signer crypto.Signer) *x509.Certificate {
	t.Helper()
	c.SerialNumber, c.NotBefore, c.NotAfter = big.NewInt(time.Now().UnixNano()), time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, c, parent, key.Public(), signer)
	must.OK(t, err)
	leaf, err := x509.ParseCertificate(der)
	must.OK(t, err)
	return leaf
}

// A chain that crypto/tls would take, or refuses without a word, is refused with its reason.
func TestWeakCertificates(t *testing.T) {
	t.Parallel()
	ca, z := newAuthority(t), newZone(t)
	z.set("api.example.test", []string{"127.0.0.1"})
	key := func(s crypto.Signer, err error) crypto.Signer {
		t.Helper()
		must.OK(t, err)
		return s
	}
	short := key(rsa.GenerateKey(rand.Reader, 1024))
	long := key(rsa.GenerateKey(rand.Reader, 2048))
	p224, p256 := key(ecdsa.GenerateKey(elliptic.P224(), rand.Reader)), key(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	server := func() *x509.Certificate {
		return &x509.Certificate{DNSNames: []string{"api.example.test"}, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	}
	authorityOf := func(edit func(*x509.Certificate)) *x509.Certificate {
		c := &x509.Certificate{Subject: pkix.Name{CommonName: "intermediate"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
		if edit != nil {
			edit(c)
		}
		return c
	}
	of := func(key crypto.Signer, chain ...*x509.Certificate) tls.Certificate {
		c := tls.Certificate{PrivateKey: key}
		for _, x := range chain {
			c.Certificate = append(c.Certificate, x.Raw)
		}
		return c
	}
	// below has a leaf signed by an intermediate.
	below := func(k crypto.Signer, edit, leaf func(*x509.Certificate)) tls.Certificate {
		middle := issue(t, authorityOf(edit), ca.cert, k, ca.key)
		c := server()
		if leaf != nil {
			leaf(c)
		}
		return of(p256, issue(t, c, middle, p256, k), middle)
	}
	staple := server()
	staple.ExtraExtensions = []pkix.Extension{{Id: tlsFeature, Value: []byte{0x30, 3, 2, 1, 5}}}
	stapled := issue(t, staple, ca.cert, p256, ca.key)
	proof := func(status int, next time.Duration, signer crypto.Signer) tls.Certificate {
		c := of(p256, stapled)
		var err error
		c.OCSPStaple, err = ocsp.CreateResponse(ca.cert, ca.cert, ocsp.Response{
			Status: status, SerialNumber: stapled.SerialNumber, ThisUpdate: time.Now().Add(-30 * time.Minute), NextUpdate: time.Now().Add(next), RevokedAt: time.Now(),
		}, signer)
		must.OK(t, err)
		return c
	}
	revoked := of(p256, issue(t, server(), ca.cert, p256, ca.key))
	revoked.OCSPStaple, _ = ocsp.CreateResponse(ca.cert, ca.cert, ocsp.Response{
		Status: ocsp.Revoked, SerialNumber: mustParse(t, revoked).SerialNumber, ThisUpdate: time.Now().Add(-time.Minute), NextUpdate: time.Now().Add(time.Hour), RevokedAt: time.Now(),
	}, ca.key)
	for _, tt := range []struct {
		name string
		cert tls.Certificate
		says string // empty: it is taken
	}{
		{"RSA of 2048 bits", of(long, issue(t, server(), ca.cert, long, ca.key)), ""},
		{"RSA of 1024 bits", of(short, issue(t, server(), ca.cert, short, ca.key)), "RSA key of 1024 bits"},
		{"P-224", of(p224, issue(t, server(), ca.cert, p224, ca.key)), ""}, // which crypto/tls does not speak at all
		{"an authority's RSA of 1024 bits", below(short, nil, nil), "RSA key of 1024 bits"},
		{"must-staple with it", proof(ocsp.Good, time.Hour, ca.key), ""},
		{"must-staple without", of(p256, stapled), "must-staple"},
		{"must-staple, out of date", proof(ocsp.Good, -time.Minute, ca.key), "out of date"},
		{"must-staple, by a stranger", proof(ocsp.Good, time.Hour, p256), "not its issuer's"},
		{"must-staple, unknown", proof(ocsp.Unknown, time.Hour, ca.key), "does not say so"},
		{"must-staple, revoked", proof(ocsp.Revoked, time.Hour, ca.key), "revoked"},
		{"revoked, as it says itself", revoked, "revoked"},
		{"usage", below(p256, nil, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }), "usage"},
		{"name constraint", below(p256, func(c *x509.Certificate) {
			c.PermittedDNSDomains, c.PermittedDNSDomainsCritical = []string{"other.test"}, true
		}, nil), "name constraint"},
		{"length", func() tls.Certificate {
			first := issue(t, authorityOf(func(c *x509.Certificate) { c.MaxPathLenZero = true }), ca.cert, p256, ca.key)
			second := issue(t, authorityOf(func(c *x509.Certificate) { c.Subject.CommonName = "second" }), first, p256, p256)
			return of(p256, issue(t, server(), second, p256, p256), second, first)
		}(), "longer"},
		{"SHA-1", below(long, func(c *x509.Certificate) { c.SignatureAlgorithm = x509.ECDSAWithSHA1 }, nil), "SHA-1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			served := false
			s := newSite(t, "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{tt.cert}},
				http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served = true }))
			p := newPool(t, Options{})
			r := Route{Sandbox: "a", Host: "api.example.test", Port: s.port, TLS: true, Upstream: loopback(z, ca.file(t))}
			_, err := get(t, p, r)
			s.Close()
			switch {
			case tt.name == "P-224":
				if err == nil || served {
					t.Error("it is taken")
				}
			case tt.says == "":
				if err != nil || !served {
					t.Errorf("it is refused: %v", err)
				}
			case err == nil || kind(t, err) != KindCertificate || !strings.Contains(err.Error(), tt.says):
				t.Errorf("%v (%v) does not say %q", err, errors.Unwrap(err), tt.says)
			case served:
				t.Error("a request has reached it")
			}
		})
	}
}

func mustParse(t *testing.T, c tls.Certificate) *x509.Certificate {
	t.Helper()
	leaf, err := x509.ParseCertificate(c.Certificate[0])
	must.OK(t, err)
	return leaf
}
