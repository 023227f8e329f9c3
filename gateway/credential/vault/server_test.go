package vault_test

import (
	"testing"

	"github.com/hashicorp/vault/api"

	"sallyport/internal/config"
	"sallyport/internal/test/must"
	"sallyport/internal/test/vaultcore"
)

// server is a real Vault, and its API's client with the root token.
type server struct {
	*vaultcore.Server
	root *api.Client
}

var fields = map[string]any{"token": value, "count": 42, "on": true, "nested": map[string]any{"a": "b"}}

// start runs a Vault with TLS and value in secret/data/openai, field token.
func start(t *testing.T) *server {
	t.Helper()
	return connected(t, vaultcore.Start(t, fields))
}

// lasting is a Vault that goes on with what it had when it is started again.
func lasting(t *testing.T) *server {
	t.Helper()
	return connected(t, vaultcore.Lasting(t, fields))
}

func connected(t *testing.T, s *vaultcore.Server) *server {
	t.Helper()
	c := api.DefaultConfig()
	c.Address = s.Address
	must.OK(t, c.ConfigureTLS(&api.TLSConfig{CACert: s.CAFile}))
	root, err := api.NewClient(c)
	must.OK(t, err)
	root.SetToken(s.RootToken)
	t.Cleanup(c.HttpClient.CloseIdleConnections)
	return &server{s, root}
}

func (s *server) write(t *testing.T, path string, data map[string]any) *api.Secret {
	t.Helper()
	got, err := s.root.Logical().Write(path, data)
	must.OK(t, err)
	return got
}

func (s *server) file(t *testing.T, name, text string) string {
	t.Helper()
	return s.File(name, text)
}

// token makes a token that may read.
func (s *server) token(t *testing.T) string {
	t.Helper()
	return s.Token("sallyport")
}

func (s *server) withToken(t *testing.T, token string) config.Vault {
	return config.Vault{Address: s.Address, Roots: s.CAFile, Auth: config.VaultAuth{TokenFile: s.file(t, "token", token)}}
}

func (s *server) withRole(t *testing.T, id, secret string) config.Vault {
	return config.Vault{Address: s.Address, Roots: s.CAFile, Auth: config.VaultAuth{
		AppRole: &config.AppRole{RoleID: id, SecretIDFile: s.file(t, "secret-id", secret)},
	}}
}
