package vault_test

import (
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/vault/api"

	"sallyport/internal/config"
	"sallyport/internal/test/must"
)

// binary builds the Vault server core, which takes minutes the first time.
var binary = sync.OnceValues(func() (string, error) {
	cmd := exec.Command("../../../examples/vault/build.sh")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	return strings.TrimSpace(string(out)), err
})

// server is a real Vault.
type server struct {
	Address, RootToken, RoleID, SecretID, UnsealKey, CAFile string

	dir  string
	root *api.Client
	stop func()
}

// start runs a Vault with TLS and value in secret/data/openai, field token.
func start(t *testing.T, args ...string) *server {
	t.Helper()
	bin, err := binary()
	if err != nil {
		t.Fatalf("building the Vault core: %v", err)
	}
	s := &server{dir: t.TempDir()}
	s.run(t, bin, append([]string{"-tls", s.dir, "-put", "openai", "-until-eof"}, args...))
	return s
}

// run starts the process and waits until it serves.
func (s *server) run(t *testing.T, bin string, args []string) {
	t.Helper()
	cmd := exec.Command(bin, args...)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	must.OK(t, err)
	stdout, err := cmd.StdoutPipe()
	must.OK(t, err)
	must.OK(t, cmd.Start())
	s.stop = sync.OnceFunc(func() {
		stdin.Close()
		cmd.Process.Kill()
		cmd.Wait()
	})
	t.Cleanup(s.stop)
	if _, err := io.WriteString(stdin, `{"token":"`+value+`","count":42,"on":true,"nested":{"a":"b"}}`+"\n"); err != nil {
		t.Fatal(err)
	}
	if err := json.NewDecoder(stdout).Decode(s); err != nil {
		t.Fatalf("the server did not become ready: %v", err)
	}
	c := api.DefaultConfig()
	c.Address = s.Address
	must.OK(t, c.ConfigureTLS(&api.TLSConfig{CACert: s.CAFile}))
	if s.root, err = api.NewClient(c); err != nil {
		t.Fatal(err)
	}
	s.root.SetToken(s.RootToken)
	t.Cleanup(c.HttpClient.CloseIdleConnections)
}

// lasting is a Vault that goes on with what it had when it is started again by again, at
// the same address.
func lasting(t *testing.T) (s *server, again func()) {
	t.Helper()
	data := t.TempDir()
	s = start(t, "-data", data)
	return s, func() {
		t.Helper()
		bin, err := binary()
		must.OK(t, err)
		s.run(t, bin, []string{"-listen", strings.TrimPrefix(s.Address, "https://"), "-tls", s.dir, "-put", "openai", "-until-eof", "-data", data})
	}
}

func (s *server) write(t *testing.T, path string, data map[string]any) *api.Secret {
	t.Helper()
	got, err := s.root.Logical().Write(path, data)
	must.OK(t, err)
	return got
}

func (s *server) file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(s.dir, name)
	must.OK(t, os.WriteFile(path, []byte(text+"\n"), 0o600))
	return path
}

// token makes a token that may read.
func (s *server) token(t *testing.T) string {
	t.Helper()
	return s.write(t, "auth/token/create", map[string]any{"policies": []string{"sallyport"}}).Auth.ClientToken
}

func (s *server) withToken(t *testing.T, token string) config.Vault {
	return config.Vault{Address: s.Address, Roots: s.CAFile, Auth: config.VaultAuth{TokenFile: s.file(t, "token", token)}}
}

func (s *server) withRole(t *testing.T, id, secret string) config.Vault {
	return config.Vault{Address: s.Address, Roots: s.CAFile, Auth: config.VaultAuth{
		AppRole: &config.AppRole{RoleID: id, SecretIDFile: s.file(t, "secret-id", secret)},
	}}
}
