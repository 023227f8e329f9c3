// Package key reads the keys that operators of sandboxes log in with over SSH,
// as lines of an authorized_keys file (sshd(8)).
//
// It guarantees that a key it returns is of a kind and size that is safe to let
// in, and that a line says nothing that would not be heeded: options and
// certificates are errors.
package key

import (
	"crypto/rsa"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"
)

// Types are the kinds of key that are let in: those of RFC 8709 and RFC 5656, RSA
// (RFC 8332, with SHA-2 only), and those of security keys (PROTOCOL.u2f of
// OpenSSH), which have to be touched.
var Types = []string{
	ssh.KeyAlgoED25519, ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521, ssh.KeyAlgoRSA,
	ssh.KeyAlgoSKED25519, ssh.KeyAlgoSKECDSA256,
}

// Algorithms are the signatures that these keys may give.
var Algorithms = []string{
	ssh.KeyAlgoED25519, ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521, ssh.KeyAlgoRSASHA256, ssh.KeyAlgoRSASHA512,
	ssh.KeyAlgoSKED25519, ssh.KeyAlgoSKECDSA256,
}

// Bounds of a key.
const (
	MaxLine = 16 << 10 // bytes of a line
	minRSA  = 2048     // bits
	maxRSA  = 8192     // a signature of a longer one takes long to verify
)

// Parse reads one line of an authorized_keys file.
func Parse(line string) (ssh.PublicKey, error) {
	line = strings.TrimSpace(line)
	switch {
	case line == "":
		return nil, errors.New("is empty: write a public key, as ~/.ssh/id_ed25519.pub has it")
	case len(line) > MaxLine:
		return nil, fmt.Errorf("has %d bytes, more than %d", len(line), MaxLine)
	case strings.ContainsAny(line, "\n\r\x00"):
		return nil, errors.New("has more than one line: give each key an entry of its own")
	case strings.Contains(line, "PRIVATE KEY"):
		return nil, errors.New("is a private key: write the public one, of the file that ends in .pub")
	}
	k, _, options, rest, err := ssh.ParseAuthorizedKey([]byte(line))
	if err != nil {
		return nil, errors.New("is not a public key: write it as ~/.ssh/id_ed25519.pub has it")
	}
	if len(options) > 0 || !strings.HasPrefix(line, k.Type()) {
		return nil, errors.New("has options, which are not heeded here: remove them, and write what the key may do beside it")
	}
	if len(rest) > 0 {
		return nil, errors.New("has something after the key")
	}
	return k, safe(k)
}

// safe says what is wrong with a key.
func safe(k ssh.PublicKey) error {
	if !slices.Contains(Types, k.Type()) {
		return fmt.Errorf("is of the type %s: use one of %s", k.Type(), strings.Join(Types, ", "))
	}
	if c, ok := k.(ssh.CryptoPublicKey); ok {
		if r, ok := c.CryptoPublicKey().(*rsa.PublicKey); ok && (r.N.BitLen() < minRSA || r.N.BitLen() > maxRSA) {
			return fmt.Errorf("is an RSA key of %d bits: use one of %d to %d, or Ed25519", r.N.BitLen(), minRSA, maxRSA)
		}
	}
	return nil
}

// Fingerprint is a key's, SHA256: and Base64, as ssh-keygen -l shows it.
func Fingerprint(k ssh.PublicKey) string { return ssh.FingerprintSHA256(k) }
