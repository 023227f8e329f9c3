package ssh

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"

	"golang.org/x/crypto/ssh"

	"sallyport/internal/durable"
)

// keyName is the content's first line: a sealed file says nothing of its place.
const keyName = "sallyport ssh host key/1\n"

// HostKey is the Ed25519 key (RFC 8709) that the host shows who connects.
type HostKey struct {
	private ed25519.PrivateKey
	public  ssh.PublicKey
}

// OpenHostKey returns the key in a sealed file, made the first time.
func OpenHostKey(path string, s durable.Sealer) (*HostKey, error) {
	k, err := openHostKey(path, s)
	if err != nil {
		return nil, fmt.Errorf("the host key of SSH, %s: %w", path, err)
	}
	public, err := ssh.NewPublicKey(k.Public())
	if err != nil {
		return nil, err
	}
	return &HostKey{k, public}, nil
}

func openHostKey(path string, s durable.Sealer) (ed25519.PrivateKey, error) {
	plain, err := durable.Sealed(path, s, func() ([]byte, error) {
		seed := make([]byte, ed25519.SeedSize)
		_, _ = rand.Read(seed) // never fails (crypto/rand)
		return append([]byte(keyName), seed...), nil
	})
	if err != nil {
		return nil, err
	}
	seed, ok := bytes.CutPrefix(plain, []byte(keyName))
	if !ok || len(seed) != ed25519.SeedSize {
		return nil, errors.New("it holds something else")
	}
	return ed25519.NewKeyFromSeed(seed), nil
}

// Fingerprint is the key's, as ssh shows it to who connects the first time.
func (k *HostKey) Fingerprint() string { return ssh.FingerprintSHA256(k.public) }

// Known is the key as a line of known_hosts has it after the host's name.
func (k *HostKey) Known() string {
	return string(bytes.TrimSpace(ssh.MarshalAuthorizedKey(k.public)))
}

// errDigest refuses to sign what is no exchange hash: those of the key exchanges
// that there are have these sizes.
var errDigest = errors.New("this is no exchange hash")

func (k *HostKey) sign(digest []byte) ([]byte, error) {
	switch len(digest) {
	case 32, 48, 64:
		return ed25519.Sign(k.private, digest), nil
	}
	return nil, errDigest
}
