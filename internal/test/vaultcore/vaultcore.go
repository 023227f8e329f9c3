// Package vaultcore runs the real Vault server core of examples/vault on loopback for a
// test.
package vaultcore

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sallyport/internal/test/must"
)

// Binary builds the server, which takes minutes the first time.
var Binary = sync.OnceValues(func() (string, error) {
	root, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		script := filepath.Join(root, "examples/vault/build.sh")
		if _, err := os.Stat(script); err == nil {
			cmd := exec.Command(script)
			cmd.Stderr = os.Stderr
			out, err := cmd.Output()
			return strings.TrimSpace(string(out)), err
		}
		if root == "/" {
			return "", fmt.Errorf("no folder above this one has %s", "examples/vault")
		}
		root = filepath.Dir(root)
	}
})

// Server is a Vault that is initialised and unsealed.
type Server struct {
	Address, RootToken, RoleID, SecretID string
	UnsealKey                            string // hexadecimal
	CAFile                               string
	Dir                                  string `json:"-"` // for files of the test, too

	t      testing.TB
	fields []byte
	args   []string
	client *http.Client
	stop   func()
}

// Start runs a Vault in memory, with fields in secret/data/openai, until the test ends.
func Start(t testing.TB, fields map[string]any) *Server {
	t.Helper()
	s := newServer(t, fields)
	s.run()
	return s
}

// Lasting is a Vault that keeps what it has on a disk, and goes on with that after Stop
// and Again, at the same address.
func Lasting(t testing.TB, fields map[string]any) *Server {
	t.Helper()
	s := newServer(t, fields)
	s.args = append(s.args, "-data", t.TempDir())
	s.run()
	s.args = append(s.args, "-listen", strings.TrimPrefix(s.Address, "https://"))
	return s
}

func newServer(t testing.TB, fields map[string]any) *Server {
	t.Helper()
	text, err := json.Marshal(fields)
	must.OK(t, err)
	dir := t.TempDir()
	return &Server{t: t, Dir: dir, fields: text, args: []string{"-tls", dir, "-put", "openai", "-until-eof"}}
}

// Stop kills it.
func (s *Server) Stop() { s.stop() }

// Again starts it after Stop.
func (s *Server) Again() {
	s.t.Helper()
	s.run()
}

// run starts the process and waits until it serves.
func (s *Server) run() {
	t := s.t
	t.Helper()
	bin, err := Binary()
	if err != nil {
		t.Fatalf("building the Vault core: %v", err)
	}
	cmd := exec.Command(bin, s.args...)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	must.OK(t, err)
	stdout, err := cmd.StdoutPipe()
	must.OK(t, err)
	must.OK(t, cmd.Start())
	s.stop = sync.OnceFunc(func() {
		stdin.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	t.Cleanup(s.stop)
	_, err = stdin.Write(append(s.fields, '\n'))
	must.OK(t, err)
	if err := json.NewDecoder(stdout).Decode(s); err != nil {
		t.Fatalf("the Vault core did not become ready: %v", err)
	}
	root, err := os.ReadFile(s.CAFile)
	must.OK(t, err)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(root)
	s.client = &http.Client{Timeout: 2 * time.Minute, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, DisableKeepAlives: true}}
}

// Answer is Vault's.
type Answer struct {
	LeaseID string `json:"lease_id"`
	Data    map[string]any
	Auth    struct {
		Token string `json:"client_token"`
	}
	Errors []string
}

// Do calls Vault's API with the root token, and returns the status of its answer.
func (s *Server) Do(method, path string, in any) (int, Answer) {
	s.t.Helper()
	body, err := json.Marshal(in)
	must.OK(s.t, err)
	// It is called at a test's end, too.
	req, err := http.NewRequestWithContext(context.Background(), method, s.Address+"/v1/"+path, bytes.NewReader(body))
	must.OK(s.t, err)
	req.Header.Set("X-Vault-Token", s.RootToken)
	resp, err := s.client.Do(req)
	must.OK(s.t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	must.OK(s.t, err)
	var got Answer
	if len(text) > 0 {
		must.OK(s.t, json.Unmarshal(text, &got))
	}
	return resp.StatusCode, got
}

// Write is Do for what must succeed.
func (s *Server) Write(path string, data map[string]any) Answer {
	s.t.Helper()
	code, got := s.Do(http.MethodPut, path, data)
	if code >= 300 {
		s.t.Fatalf("writing %s: %d %q", path, code, got.Errors)
	}
	return got
}

// Token makes a token with policies.
func (s *Server) Token(policies ...string) string {
	s.t.Helper()
	return s.Write("auth/token/create", map[string]any{"policies": policies}).Auth.Token
}

// Leased reports whether Vault has a lease.
func (s *Server) Leased(id string) bool {
	s.t.Helper()
	code, _ := s.Do(http.MethodPut, "sys/leases/lookup", map[string]any{"lease_id": id})
	return code == http.StatusOK
}

// File makes a file with text and a newline in Dir, and returns its path.
func (s *Server) File(name, text string) string {
	s.t.Helper()
	path := filepath.Join(s.Dir, name)
	must.OK(s.t, os.WriteFile(path, []byte(text+"\n"), 0o600))
	return path
}
