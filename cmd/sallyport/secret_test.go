package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sallyport/internal/test/clitest"
	"sallyport/internal/test/must"
)

// pemPair writes a client certificate and its key to files.
func pemPair(t *testing.T, until time.Time) (certificate, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must.OK(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: until.Add(-time.Hour), NotAfter: until}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &k.PublicKey, k)
	must.OK(t, err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(k)
	must.OK(t, err)
	dir := t.TempDir()
	certificate, key = filepath.Join(dir, "client.pem"), filepath.Join(dir, "client.key")
	must.OK(t, os.WriteFile(certificate, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	must.OK(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), 0o600))
	return certificate, key
}

// A secret that its rule cannot give is refused when it is set, and the error says what is
// wrong and not what it is.
func TestSecretThatDoesNotFit(t *testing.T) {
	_, file := clitest.Configured(t, `egressAuth:
- {name: ledger, destination: ledger.example.com, authRef: client, inject: {clientCertificate: {}}}
- {destination: git.example.com, authRef: login, inject: {basic: {username: "{{ .username }}", password: "{{ .password }}"}}}
- {destination: tracker.example.com, authRef: session, inject: {cookie: {name: s, value: "{{ .token }}"}}}
- {destination: storage.googleapis.com, authRef: account}
- {destination: git.example.com, ports: [22], authRef: deploy, inject: {ssh: {user: git, hostKeys: ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"]}}}
credentials:
- name: client
- name: login
- name: session
- name: deploy
- {name: account, exchange: {gcp: {scopes: [devstorage.read_only]}}}
`)
	certificate, key := pemPair(t, time.Now().Add(time.Minute))
	old, oldKey := pemPair(t, time.Now().Add(-time.Minute))
	const canary = "canary-0123456789"
	no := filepath.Join(t.TempDir(), "no")
	must.OK(t, os.WriteFile(no, []byte(canary), 0o600))
	for _, tt := range []struct {
		name, stdin string
		args        []string
		says        string
	}{
		{"a pair", "", []string{"client", "--file", "certificate=" + certificate, "--file", "key=" + key}, ""},
		{"another's key", "", []string{"client", "--file", "certificate=" + certificate, "--file", "key=" + oldKey}, "egressAuth rule ledger: "},
		{"an old pair", "", []string{"client", "--file", "certificate=" + old, "--file", "key=" + oldKey}, "expired on"},
		{"no PEM", "", []string{"client", "--file", "certificate=" + certificate, "--file", "key=" + no}, "from -----BEGIN PRIVATE KEY----- on"},
		{"no key", "", []string{"client", "--file", "certificate=" + certificate}, `no field "key"`},
		{"one field of two", canary, []string{"login"}, `rule login@git.example.com: inject.basic.username: the credential has no secret yet: it has no field "username"`},
		{"both", "me\n" + canary, []string{"login", "--field", "username", "--field", "password"}, ""},
		{"from a file and a prompt", canary, []string{"login", "--file", "username=" + no, "--field", "password"}, ""},
		{"twice", canary, []string{"login", "--file", "password=" + no, "--field", "password"}, "both name password"},
		{"no cookie", canary + ";", []string{"session"}, "a cookie cannot hold"},
		{"no file", "", []string{"session", "--file", "token=" + no + "t"}, "no such file"},
		{"a key of SSH", "", []string{"deploy", "--file", "privateKey=" + key}, ""},
		{"no key of SSH", "", []string{"deploy", "--file", "privateKey=" + certificate}, "no private key of SSH"},
		{"no service account", canary, []string{"account", "--field", "key"}, "set the JSON that Google Cloud gives"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, status, err := run(t, tt.stdin, append([]string{"secret", "set", "--config", file}, tt.args...)...)
			switch {
			case tt.says == "" && status != 0, tt.says != "" && (status == 0 || !strings.Contains(err.Error(), tt.says)):
				t.Errorf("got %d, %v, want %q", status, err, tt.says)
			case err != nil && (strings.Contains(err.Error(), canary) || strings.Contains(err.Error(), "PRIVATE KEY-----\n")):
				t.Errorf("the error has the secret: %v", err)
			}
		})
	}
}
