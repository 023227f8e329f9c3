package ca

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net"
	"testing"

	"golang.org/x/crypto/ssh"

	"sallyport/internal/test/must"
)

// TestCertify: a sandbox that trusts its root's key takes the certificate for the host that
// it names and for no other.
func TestCertify(t *testing.T) {
	a := open(t, t.TempDir(), newSealer(t))
	text, err := a.Root("one")
	must.OK(t, err)
	block, _ := pem.Decode(text)
	root, err := x509.ParseCertificate(block.Bytes)
	must.OK(t, err)
	trusted, err := ssh.NewPublicKey(root.PublicKey)
	must.OK(t, err)
	public, _, err := ed25519.GenerateKey(rand.Reader)
	must.OK(t, err)
	key, err := ssh.NewPublicKey(public)
	must.OK(t, err)
	raw, err := a.Certify("one", "Git.example.test", key.Marshal())
	must.OK(t, err)
	cert, err := ssh.ParsePublicKey(raw)
	must.OK(t, err)
	check := ssh.CertChecker{IsHostAuthority: func(k ssh.PublicKey, _ string) bool { return string(k.Marshal()) == string(trusted.Marshal()) }}
	for host, good := range map[string]bool{"git.example.test:22": true, "evil.example.test:22": false} {
		if err := check.CheckHostKey(host, &net.TCPAddr{}, cert); (err == nil) != good {
			t.Errorf("%s: %v", host, err)
		}
	}
	if _, err := a.Certify("another", "git.example.test", key.Marshal()); !errors.Is(err, ErrNoAuthority) {
		t.Errorf("without an authority: %v", err)
	}
	for _, bad := range []struct {
		name string
		key  []byte
	}{{"*.example.test", key.Marshal()}, {"git.example.test", raw}, {"git.example.test", []byte("key")}} {
		if _, err := a.Certify("one", bad.name, bad.key); err == nil {
			t.Errorf("%q and a key of %d bytes were certified", bad.name, len(bad.key))
		}
	}
}
