package ca

import (
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"golang.org/x/crypto/ssh"

	"sallyport/gateway/mitm"
)

// errNoHostKey: the sandboxes below an Issuer know no key that certifies hosts of SSH.
var errNoHostKey = errors.New("SSH destinations need a root of Sallyport's own, which pods do not trust: allow HTTPS in place of SSH")

// hostCertLife is how long a certificate for an SSH host is good.
const hostCertLife = 7 * 24 * time.Hour

// Certify signs a certificate of OpenSSH for a host of that name or address and a key, in
// the form of RFC 4253, section 6.6. The sandbox's root signs it, since OpenSSH knows no
// intermediates: its key is in memory meanwhile. Without an authority for the sandbox it
// returns [ErrNoAuthority].
func (a *Authority) Certify(sandboxID, name string, public []byte) ([]byte, error) {
	name, err := mitm.Canonical(name)
	if err != nil {
		return nil, err
	}
	key, err := ssh.ParsePublicKey(public)
	if err != nil || key.Type() != ssh.KeyAlgoED25519 {
		return nil, fmt.Errorf("certifying a host: not a key on Ed25519")
	}
	lineage, ok := a.lineage(sandboxID)
	if !ok {
		return nil, ErrNoAuthority
	}
	if a.currentIssuer() != nil {
		return nil, errNoHostKey
	}
	root, err := a.load(a.rootFile(lineage))
	if err != nil {
		return nil, err
	}
	signer, err := ssh.NewSignerFromKey(root.key)
	if err != nil {
		return nil, err
	}
	now := a.now()
	until := now.Add(hostCertLife)
	if root.cert.NotAfter.Before(until) {
		until = root.cert.NotAfter
	}
	cert := &ssh.Certificate{
		Key: key, CertType: ssh.HostCert, KeyId: name, ValidPrincipals: []string{name},
		ValidAfter: uint64(now.Add(-time.Hour).Unix()), ValidBefore: uint64(until.Unix()),
	}
	if err := cert.SignCert(rand.Reader, signer); err != nil {
		return nil, fmt.Errorf("certifying a host: %w", err)
	}
	return cert.Marshal(), nil
}
