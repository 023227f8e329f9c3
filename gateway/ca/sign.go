package ca

import (
	"crypto/ecdsa"
	"crypto/elliptic"

	"sallyport/gateway/mitm"
)

// Sign signs a leaf for a host name or an IP address and a key on P-256, and
// returns the chain in DER: the leaf, then the sandbox's intermediate. It is a
// [mitm.Signer]. Without an authority for the sandbox it returns [ErrNoAuthority].
func (a *Authority) Sign(sandboxID, name string, public *ecdsa.PublicKey) (chain [][]byte, err error) {
	name, err = mitm.Canonical(name)
	if err != nil {
		return nil, err
	}
	if public.Curve != elliptic.P256() {
		return nil, errBadKey
	}
	i, err := a.issuer(sandboxID)
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
	return [][]byte{leaf.Raw, i.cert.Raw}, nil
}
