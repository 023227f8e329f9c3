package vault_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"sallyport/gateway/ca"
	"sallyport/gateway/credential"
	"sallyport/internal/test/must"
)

// A node's intermediate is signed by Vault's PKI engine, with room for the sandboxes' below
// it, for a key that Vault never has.
func TestSignIntermediate(t *testing.T) {
	s := start(t)
	s.withEngines(t)
	s.write(t, "sys/policies/acl/node", map[string]any{"policy": `path "pki/root/sign-intermediate" { capabilities = ["update"] }`})
	token := s.write(t, "auth/token/create", map[string]any{"policies": []string{"node"}}).Auth.ClientToken
	request, key, err := ca.NewRequest()
	must.OK(t, err)
	chain, err := connect(t, s.withToken(t, token)).SignIntermediate(t.Context(), "pki/", "Sallyport node n1", request, time.Hour)
	must.OK(t, err)
	if n := strings.Count(string(chain), "BEGIN CERTIFICATE"); n != 2 {
		t.Errorf("the chain has %d certificates, want the node's and the root:\n%s", n, chain)
	}
	i, err := ca.NewIssuer(chain, key, time.Now())
	must.OK(t, err)
	if left := time.Until(i.Expires()); left < 50*time.Minute || left > time.Hour {
		t.Errorf("it is good for %v, want an hour", left)
	}

	other := s.write(t, "auth/token/create", map[string]any{"policies": []string{"agents"}}).Auth.ClientToken
	if _, err := connect(t, s.withToken(t, other)).SignIntermediate(t.Context(), "pki", "n1", request, time.Hour); !errors.Is(err, credential.ErrRefused) || !strings.Contains(err.Error(), "pki/root/sign-intermediate") {
		t.Errorf("got %v, want what the token may not", err)
	}
}
