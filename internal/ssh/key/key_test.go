package key_test

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"

	"sallyport/internal/ssh/key"
	"sallyport/internal/test/must"
)

func line(t *testing.T, public any) string {
	t.Helper()
	k, err := ssh.NewPublicKey(public)
	must.OK(t, err)
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(k)))
}

func TestParse(t *testing.T) {
	public, private, _ := ed25519.GenerateKey(nil)
	curve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must.OK(t, err)
	long, err := rsa.GenerateKey(rand.Reader, 2048)
	must.OK(t, err)
	t.Setenv("GODEBUG", "rsa1024min=0")
	short, err := rsa.GenerateKey(rand.Reader, 1024)
	must.OK(t, err)
	own := line(t, public)
	signer, err := ssh.NewSignerFromKey(private)
	must.OK(t, err)
	certificate := &ssh.Certificate{Key: signer.PublicKey(), CertType: ssh.UserCert, ValidBefore: ssh.CertTimeInfinity}
	must.OK(t, certificate.SignCert(rand.Reader, signer))
	// As `ssh-keygen -t ed25519-sk` writes it.
	const touched = "sk-ssh-ed25519@openssh.com AAAAGnNrLXNzaC1lZDI1NTE5QG9wZW5zc2guY29tAAAAIFtnEJ+tN4tPqKQ6ZKfJ8V4l9L3EYPpyQKn4bYAfLrNDAAAABHNzaDo= touch"
	for name, tt := range map[string]struct{ line, want string }{
		"Ed25519":         {own, ""},
		"with a comment":  {"  " + own + " alice at work\t", ""},
		"ECDSA":           {line(t, &curve.PublicKey), ""},
		"RSA":             {line(t, &long.PublicKey), ""},
		"a security key":  {touched, ""},
		"short RSA":       {line(t, &short.PublicKey), "RSA key of 1024 bits"},
		"a certificate":   {string(ssh.MarshalAuthorizedKey(certificate)), "is of the type ssh-ed25519-cert"},
		"options":         {"restrict " + own, "has options"},
		"a command":       {`command="a b",no-pty ` + own, "has options"},
		"an unknown type": {"ssh-foo " + strings.Fields(own)[1], "is not a public key"},
		"another's type":  {"ssh-rsa " + strings.Fields(own)[1], "is not a public key"},
		"two lines":       {own + "\n" + own, "more than one line"},
		"a comment":       {"# " + own, "is not a public key"},
		"nothing":         {" ", "is empty"},
		"long":            {own + strings.Repeat(" x", key.MaxLine), "bytes, more than"},
		"a private key":   {"-----BEGIN OPENSSH PRIVATE KEY-----", "private key"},
		"half a key":      {own[:50], "is not a public key"},
	} {
		k, err := key.Parse(tt.line)
		got := ""
		if err != nil {
			got = err.Error()
		}
		if tt.want == "" && got != "" || !strings.Contains(got, tt.want) {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
		if err == nil && !strings.HasPrefix(key.Fingerprint(k), "SHA256:") {
			t.Errorf("%s: fingerprint %s", name, key.Fingerprint(k))
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBpdnfnovTSFdGdY2rVZXh9TlO4PUsfZmTi6yQ4zQrLT alice")
	f.Add(`command="x" ssh-rsa AAAA`)
	f.Fuzz(func(t *testing.T, line string) {
		k, err := key.Parse(line)
		if err != nil {
			return
		}
		again, err := key.Parse(string(ssh.MarshalAuthorizedKey(k)))
		if err != nil || key.Fingerprint(again) != key.Fingerprint(k) {
			t.Errorf("%q is not the key that it was: %v", line, err)
		}
	})
}
