package bundle_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	opa "github.com/open-policy-agent/opa/v1/bundle"

	"sallyport/internal/bundle"
	"sallyport/internal/test/must"
	"sallyport/policy"
)

// server has one bundle, signed by a key of its own.
type server struct {
	*httptest.Server
	private string
	from    policy.BundleSource

	mu      sync.Mutex
	archive []byte
	asked   []string // If-None-Match and Authorization
	status  int
}

func newServer(t *testing.T) *server {
	t.Helper()
	dir := t.TempDir()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must.OK(t, err)
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		must.OK(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
		return path
	}
	private, _ := x509.MarshalPKCS8PrivateKey(key)
	public, _ := x509.MarshalPKIXPublicKey(key.Public())
	s := &server{private: string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))}
	s.Server = httptest.NewTLSServer(s)
	t.Cleanup(s.Close)
	s.from = policy.BundleSource{
		URL: s.URL + "/egress.tar.gz", Algorithm: "ES256",
		Key: write("key.pem", "PUBLIC KEY", public), Roots: write("roots.pem", "CERTIFICATE", s.Certificate().Raw),
	}
	return s
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, strings.TrimSpace(r.Header.Get("If-None-Match")+" "+r.Header.Get("Authorization")))
	tag := fmt.Sprintf("\"%x\"", sha256.Sum256(s.archive))
	switch {
	case s.status == http.StatusFound:
		http.Redirect(w, r, "/elsewhere", http.StatusFound)
	case s.status != 0:
		w.WriteHeader(s.status)
	case r.Header.Get("If-None-Match") == tag:
		w.WriteHeader(http.StatusNotModified)
	default:
		w.Header().Set("Etag", tag)
		_, _ = w.Write(s.archive)
	}
}

func (s *server) answer(status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status = status
}

func (s *server) publish(t *testing.T, revision string, signed bool) {
	t.Helper()
	b := opa.Bundle{Manifest: opa.Manifest{Revision: revision}, Data: map[string]any{"revision": revision}}
	b.Manifest.Init()
	if signed {
		must.OK(t, b.GenerateSignature(opa.NewSigningConfig(s.private, "ES256", ""), "", false))
	}
	var out bytes.Buffer
	must.OK(t, opa.NewWriter(&out).Write(b))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.archive = out.Bytes()
}

func (s *server) questions() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.asked...)
}

func none(policy.BundleSource) (*policy.Bundle, error) { panic("no file") }

func TestKeeper(t *testing.T) {
	s, dir, log := newServer(t), filepath.Join(t.TempDir(), "policy"), slog.New(slog.DiscardHandler)
	token := func(context.Context) (string, error) { return "t0k3n", nil }
	k := bundle.Open(dir, log)
	if _, err := k.Get(t.Context(), s.from, token, none); err == nil {
		t.Fatal("an empty answer is a bundle")
	}
	s.publish(t, "v1", false)
	if _, err := k.Get(t.Context(), s.from, token, none); err == nil || !strings.Contains(err.Error(), "missing .signatures.json") {
		t.Fatalf("without a signature: %v", err)
	}
	s.publish(t, "v1", true)
	c, err := k.Get(t.Context(), s.from, token, none)
	if err != nil || c.Revision != "v1" {
		t.Fatalf("%+v %v", c, err)
	}
	must.OK(t, k.Accept(c))
	if c, err := k.Ask(t.Context(), s.from, token); c != nil || err != nil {
		t.Errorf("what is held was given again: %+v %v", c, err)
	}
	if q := s.questions(); !strings.Contains(q[len(q)-1], `"`) || !strings.HasSuffix(q[0], "Bearer t0k3n") {
		t.Errorf("asked %q", q)
	}
	checked := k.Status().Checked

	// A bundle that cannot be used changes nothing, and is told of.
	for _, bad := range []struct {
		what string
		make func()
		want string
	}{
		{"unsigned", func() { s.publish(t, "v2-unsigned", false) }, "missing .signatures.json"},
		{"an error", func() { s.answer(500) }, "500"},
		{"a redirect", func() { s.answer(302) }, "sends elsewhere"},
		{"a login", func() { s.answer(401) }, "401"},
	} {
		bad.make()
		if c, err := k.Ask(t.Context(), s.from, token); c != nil || err == nil || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("%s: %+v %v", bad.what, c, err)
		}
		if st := k.Status(); st.Revision != "v1" || !strings.Contains(st.Failure, bad.want) || st.Checked != checked {
			t.Errorf("%s: %+v", bad.what, st)
		}
	}
	if c, err := k.Get(t.Context(), s.from, token, none); err != nil || c.Revision != "v1" {
		t.Errorf("while the server fails: %+v %v", c, err)
	}
	time.Sleep(20 * time.Millisecond)
	if changed, st := k.Grow(10 * time.Millisecond); !changed || !st.Stale {
		t.Errorf("it is not stale: %+v", st)
	}
	if changed, _ := k.Grow(10 * time.Millisecond); changed {
		t.Error("it became stale twice")
	}

	// The next daemon has it from disk, counts from the last check, and verifies it.
	next := bundle.Open(dir, log)
	if c, err = next.Get(t.Context(), s.from, token, none); err != nil || c.Revision != "v1" {
		t.Fatalf("after a restart: %+v %v", c, err)
	}
	must.OK(t, next.Accept(c))
	if changed, _ := next.Grow(10 * time.Millisecond); !changed {
		t.Error("a restart made it fresh")
	}
	s.answer(0)
	s.publish(t, "v2", true)
	if c, err = next.Ask(t.Context(), s.from, token); err != nil || c == nil || c.Revision != "v2" {
		t.Fatalf("%+v %v", c, err)
	}
	must.OK(t, next.Accept(c))
	if changed, st := next.Grow(time.Minute); !changed || st.Stale || st.Failure != "" || st.Revision != "v2" {
		t.Errorf("%+v", st)
	}

	s.answer(500)
	kept := filepath.Join(dir, "bundle.tar.gz")
	archive, err := os.ReadFile(kept)
	must.OK(t, err)
	archive[len(archive)/2] ^= 1
	must.OK(t, os.WriteFile(kept, archive, 0o600))
	if c, err := bundle.Open(dir, log).Get(t.Context(), s.from, token, none); err == nil {
		t.Errorf("a damaged one was used: %+v", c)
	}
	elsewhere := s.from
	elsewhere.URL += "?other"
	if c, err := next.Get(t.Context(), elsewhere, token, none); err == nil {
		t.Errorf("another's was used: %+v", c)
	}
}
