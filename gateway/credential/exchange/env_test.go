package exchange_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"sallyport/gateway/credential"
	"sallyport/gateway/credential/exchange"
	"sallyport/gateway/credential/file"
	"sallyport/internal/seal"
	"sallyport/internal/test/must"
	"sallyport/policy"
)

// fixed is a source that always has the same.
type fixed map[string]string

func (f fixed) Read(context.Context) (credential.Material, error) {
	return credential.Material{Fields: secrets(f), Version: "7"}, nil
}

func secrets(plain map[string]string) map[string]credential.Secret {
	fields := map[string]credential.Secret{}
	for name, value := range plain {
		fields[name] = credential.NewSecret(value)
	}
	return fields
}

// source is an exchange of a secret that the test holds.
func source(t *testing.T, e policy.Exchange, fields fixed) *exchange.Source {
	t.Helper()
	s, err := exchange.New(exchange.Options{Credential: "cred", Secret: fields, Exchange: e})
	must.OK(t, err)
	t.Cleanup(s.Close)
	return s
}

// read exchanges, and returns the fields in the clear.
func read(t *testing.T, s credential.Source) (map[string]string, credential.Material) {
	t.Helper()
	m, err := s.Read(t.Context())
	must.OK(t, err)
	plain := map[string]string{}
	for name, value := range m.Fields {
		plain[name] = value.Reveal()
	}
	return plain, m
}

// keys are made once, since RSA takes its time.
var keys = sync.OnceValue(func() map[string]any {
	r, err1 := rsa.GenerateKey(rand.Reader, 2048)
	e, err2 := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	_, d, err3 := ed25519.GenerateKey(rand.Reader)
	if err1 != nil || err2 != nil || err3 != nil {
		log.Fatal(err1, err2, err3)
	}
	return map[string]any{"RS256": r, "ES256": e, "EdDSA": d}
})

func pemOf(t *testing.T, key any) string {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	must.OK(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

// endpoint serves TLS on loopback, by its address and the names, and returns its URL and
// the PEM file of its authority.
func endpoint(t *testing.T, handler http.HandlerFunc, names ...string) (server *httptest.Server, roots string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must.OK(t, err)
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), DNSNames: names,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, key.Public(), key)
	must.OK(t, err)
	roots = filepath.Join(t.TempDir(), "roots.pem")
	must.OK(t, os.WriteFile(roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	server = httptest.NewUnstartedServer(handler)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	return server, roots
}

// store is the embedded store of the daemon, as exchanges see it.
type store struct{ *file.Store }

func openStore(t *testing.T) store {
	t.Helper()
	dir := t.TempDir()
	key, err := seal.Open(filepath.Join(dir, "key"), filepath.Join(dir, "data"))
	must.OK(t, err)
	s, err := file.New(filepath.Join(dir, "data"), key)
	must.OK(t, err)
	return store{s}
}

func (s store) Kept(ctx context.Context, name string) (credential.Material, error) {
	return s.Source(name).Read(ctx)
}

// provider is zitadel/oidc's, which is built once.
type provider struct {
	Issuer, Roots, Key string
	http               *http.Client
}

var binary = sync.OnceValues(func() (string, error) {
	cmd := exec.Command("provider/build.sh")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	return strings.TrimSpace(string(out)), err
})

func startProvider(t *testing.T) *provider {
	t.Helper()
	program, err := binary()
	if err != nil {
		t.Fatalf("building the provider: %v", err)
	}
	cmd := exec.Command(program, t.TempDir())
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	must.OK(t, err)
	stdout, err := cmd.StdoutPipe()
	must.OK(t, err)
	must.OK(t, cmd.Start())
	t.Cleanup(func() {
		stdin.Close()
		cmd.Wait()
	})
	p := &provider{}
	must.OK(t, json.NewDecoder(stdout).Decode(p))
	text, err := os.ReadFile(p.Roots)
	must.OK(t, err)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(text)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}
	p.http = &http.Client{Transport: transport}
	t.Cleanup(transport.CloseIdleConnections)
	return p
}

// get asks the provider, with a token or none.
func (p *provider) get(t *testing.T, path, token string) string {
	t.Helper()
	r, err := http.NewRequest(http.MethodGet, p.Issuer+path, nil)
	must.OK(t, err)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := p.http.Do(r)
	must.OK(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	must.OK(t, err)
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %d %s", path, resp.StatusCode, text)
	}
	return string(text)
}

// count is how often the token endpoint was asked.
func (p *provider) count(t *testing.T) int {
	t.Helper()
	n, err := strconv.Atoi(p.get(t, "/count", ""))
	must.OK(t, err)
	return n
}

func (p *provider) exchange(o policy.OAuth2Exchange) policy.Exchange {
	o.TokenURL, o.Roots = p.Issuer+"/oauth/token", p.Roots
	return policy.Exchange{OAuth2: &o}
}
