package upstream

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/crypto/ocsp"
)

// The least sizes of the keys in a chain, in bits (NIST SP 800-57, part 1, table 2: 112 bits of security).
const (
	minRSA   = 2048
	minCurve = 256
)

// certificateError is a certificate that verifies, and is not taken. Its text has nothing in it
// that the server sent.
type certificateError string

func (e certificateError) Error() string { return string(e) }

// acceptable is a tls.Config's VerifyConnection: it refuses what package crypto/tls takes and
// a server should no longer have. It is asked on resumption too.
func acceptable(state tls.ConnectionState) error {
	if len(state.VerifiedChains) == 0 || len(state.PeerCertificates) == 0 {
		return certificateError("was not verified")
	}
	var err error
	for _, chain := range state.VerifiedChains {
		if err = strong(chain); err == nil {
			return stapled(state, chain)
		}
	}
	return err
}

// strong checks the keys of a chain. That of its root counts too: it signs the next.
func strong(chain []*x509.Certificate) error {
	for _, c := range chain {
		switch key := c.PublicKey.(type) {
		case *rsa.PublicKey:
			if n := key.N.BitLen(); n < minRSA {
				return certificateError(fmt.Sprintf("is in a chain with an RSA key of %d bits; %d are the least", n, minRSA))
			}
		case *ecdsa.PublicKey:
			if n := key.Curve.Params().BitSize; n < minCurve {
				return certificateError(fmt.Sprintf("is in a chain with an elliptic curve of %d bits; %d are the least", n, minCurve))
			}
		}
	}
	return nil
}

// tlsFeature is the extension by which a certificate promises what its server sends
// (RFC 7633); 5 is the OCSP response.
var tlsFeature = asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 1, 24}

const statusRequest = 5

// stapled checks the OCSP response that a server sends, or has to send.
func stapled(state tls.ConnectionState, chain []*x509.Certificate) error {
	leaf := chain[0]
	must := false
	for _, e := range leaf.Extensions {
		var features []int
		if e.Id.Equal(tlsFeature) {
			if rest, err := asn1.Unmarshal(e.Value, &features); err != nil || len(rest) > 0 {
				return certificateError("has a TLS feature extension that cannot be read")
			}
			must = must || slices.Contains(features, statusRequest)
		}
	}
	if len(state.OCSPResponse) == 0 {
		if must {
			return certificateError("promises a proof that it is not revoked (must-staple), and its server sends none")
		}
		return nil
	}
	if len(chain) < 2 {
		return nil // it is believed by itself
	}
	answer, err := ocsp.ParseResponseForCert(state.OCSPResponse, leaf, chain[1])
	now := time.Now()
	switch {
	case err == nil && answer.Status == ocsp.Revoked:
		return certificateError("is revoked, as its server's own proof says")
	case !must:
		return nil // a proof that nobody had to send, and is of no use
	case err != nil:
		return certificateError("has to come with a proof that it is not revoked (must-staple); the one that its server sends is not its issuer's")
	case answer.Status != ocsp.Good:
		return certificateError("has to come with a proof that it is not revoked (must-staple); the one that its server sends does not say so")
	case answer.ThisUpdate.After(now) || !answer.NextUpdate.IsZero() && answer.NextUpdate.Before(now):
		return certificateError("has to come with a proof that it is not revoked (must-staple); the one that its server sends is out of date")
	}
	return nil
}

// invalidHints say why a chain was refused.
var invalidHints = map[x509.InvalidReason]string{
	x509.NotAuthorizedToSign:           "is signed by a certificate that is not an authority's",
	x509.CANotAuthorizedForThisName:    "is for a name that its authority may not sign for (name constraint)",
	x509.TooManyIntermediates:          "is in a chain that is longer than an authority in it allows",
	x509.IncompatibleUsage:             "is not for a server (extended key usage)",
	x509.NameConstraintsWithoutSANs:    "has no name that its authority's name constraint could be held against",
	x509.UnconstrainedName:             "has a name that its authority's name constraint cannot be held against",
	x509.TooManyConstraints:            "is in a chain with too many name constraints to check",
	x509.CANotAuthorizedForExtKeyUsage: "is for a use that its authority may not sign for (extended key usage)",
	x509.NoValidChains:                 "has no chain to a known authority in which every certificate is valid",
}

// certificateReason says why a certificate was refused, or nothing.
func certificateReason(err error) string {
	var (
		own     certificateError
		reason  x509.CertificateInvalidError
		unknown x509.UnknownAuthorityError
		verify  *tls.CertificateVerificationError
		old     x509.InsecureAlgorithmError
		strange x509.UnhandledCriticalExtension
	)
	const insecure = "is in a chain with a signature by SHA-1 or MD5, which can be forged"
	switch {
	case errors.As(err, &own):
		return string(own)
	case errors.As(err, &reason):
		return invalidHints[reason.Reason]
	case errors.As(err, &old):
		return insecure
	case errors.As(err, &strange):
		return "is in a chain with a critical extension that is not understood"
	case errors.As(err, &unknown) && errors.As(err, &verify):
		// Package x509 says only that it knows no authority who has signed it.
		for _, c := range verify.UnverifiedCertificates {
			if bytes.Equal(c.RawIssuer, c.RawSubject) {
				continue // nobody looks at its signature
			}
			switch c.SignatureAlgorithm {
			case x509.SHA1WithRSA, x509.ECDSAWithSHA1, x509.DSAWithSHA1, x509.MD5WithRSA, x509.MD2WithRSA:
				return insecure
			}
		}
	}
	return ""
}
