package rego_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/bundle"

	"sallyport/internal/test/must"
	"sallyport/policy"
	"sallyport/policy/engine"
	"sallyport/policy/rego"
	"sallyport/policy/validate"
)

// signer makes bundles with OPA's own writer and signer.
type signer struct {
	private, public string // PEM, and the file of the other
}

func newSigner(t *testing.T) *signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must.OK(t, err)
	encode := func(kind string, der []byte, err error) string {
		must.OK(t, err)
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	s := &signer{public: filepath.Join(t.TempDir(), "public.pem")}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	s.private = encode("PRIVATE KEY", der, err)
	der, err = x509.MarshalPKIXPublicKey(crypto.PublicKey(key.Public()))
	must.OK(t, os.WriteFile(s.public, []byte(encode("PUBLIC KEY", der, err)), 0o600))
	return s
}

// pack writes a bundle; a nil signer signs none.
func (s *signer) pack(t *testing.T, scope, revision string, data map[string]any, modules map[string]string) []byte {
	t.Helper()
	b := bundle.Bundle{Manifest: bundle.Manifest{Revision: revision}, Data: data}
	if data == nil {
		b.Data = map[string]any{}
	}
	b.Manifest.Init()
	b.Manifest.SetRegoVersion(ast.RegoV1)
	for path, text := range modules {
		b.Modules = append(b.Modules, bundle.ModuleFile{URL: path, Path: path, RelativePath: path, Raw: []byte(text)})
	}
	if s != nil {
		config := bundle.NewSigningConfig(s.private, "ES256", "")
		if scope != "" {
			claims := filepath.Join(t.TempDir(), "claims.json")
			must.OK(t, os.WriteFile(claims, []byte(`{"scope": "`+scope+`"}`), 0o600))
			config.ClaimsPath = claims
		}
		must.OK(t, b.GenerateSignature(config, "team", false))
	}
	var out bytes.Buffer
	must.OK(t, bundle.NewWriter(&out).DisableFormat(true).Write(b))
	return out.Bytes()
}

const bundled = "package sallyport.team.bundled\n\nallow contains {\"rule\": \"bundled\", \"reason\": \"listed\"} if input.destination.host in data.hosts\n"

func TestBundle(t *testing.T) {
	s, other := newSigner(t), newSigner(t)
	data := map[string]any{"hosts": []any{"api.example.com"}}
	files := map[string]string{"/team/egress.rego": bundled, "/team/egress_test.rego": "package sallyport.team.bundled_test\n\nimport data.sallyport.team.bundled\n\ntest_it if count(bundled.allow) == 0 with input as {}\n"}
	signed := s.pack(t, "prod", "v7", data, files)
	from := func(change func(*policy.BundleSource)) policy.BundleSource {
		b := policy.BundleSource{File: "x", Key: s.public, Algorithm: "ES256", Scope: "prod", KeyID: "team"}
		if change != nil {
			change(&b)
		}
		return b
	}
	for _, test := range []struct {
		name    string
		archive []byte
		from    policy.BundleSource
		want    string // of the error
	}{
		{"signed", signed, from(nil), ""},
		{"any key id", signed, from(func(b *policy.BundleSource) { b.KeyID = "" }), ""},
		{"no key", signed, policy.BundleSource{File: "x"}, ""},
		{"unsigned without key", (*signer)(nil).pack(t, "", "v7", data, files), policy.BundleSource{File: "x"}, ""},
		{"unsigned", (*signer)(nil).pack(t, "", "v7", data, files), from(nil), "missing .signatures.json"},
		{"another's signature", other.pack(t, "prod", "v7", data, files), from(nil), "failed to verify"},
		{"another key id", signed, from(func(b *policy.BundleSource) { b.KeyID = "ops" }), "verification key corresponding to ID team not found"},
		{"another scope", signed, from(func(b *policy.BundleSource) { b.Scope = "test" }), "scope mismatch"},
		{"another algorithm", signed, from(func(b *policy.BundleSource) { b.Algorithm = "RS256" }), ""},
		{"a file changed", tamper(t, signed, func(name string, text []byte) []byte {
			return bytes.ReplaceAll(text, []byte("api.example.com"), []byte("bad.example.com"))
		}), from(nil), "digest mismatch"},
		{"a file more", tamper(t, signed, nil), from(nil), "not included in bundle signature"},
		{"not an archive", []byte("hello"), from(nil), "not an archive"},
		{"cut off", signed[:len(signed)/2], from(nil), "not an archive"},
		{"a bomb", bomb(t), from(nil), "unfolds to more than"},
		{"no key there", signed, from(func(b *policy.BundleSource) { b.Key = "/nonexistent" }), "reading its key"},
	} {
		t.Run(test.name, func(t *testing.T) {
			b, err := rego.ReadBundle(test.archive, test.from)
			if test.name == "another algorithm" {
				test.want = "verif"
			}
			switch {
			case test.want != "":
				if !errors.Is(err, policy.ErrBundle) || !strings.Contains(err.Error(), test.want) {
					t.Errorf("%v, want %q", err, test.want)
				}
				return
			case err != nil:
				t.Fatal(err)
			}
			if b.Revision != "v7" || b.Signed != (test.from.Key != "") {
				t.Errorf("revision %q, signed %v", b.Revision, b.Signed)
			}
			p, err := engine.Compile(t.Context(), policy.Document{Policy: policy.Source{Bundle: &test.from, Verified: b}}, engine.Options{})
			must.OK(t, err)
			decide := func(host string) policy.Decision {
				return p.Decide(context.Background(), policy.Input{Phase: policy.PhaseConnect, Protocol: policy.ProtocolTLS, Destination: policy.Destination{Host: host, Port: 443}})
			}
			if d := decide("api.example.com"); d.Action != policy.Allow || d.Rule != "bundled" {
				t.Errorf("%+v", d)
			}
			if d := decide("other.example.com"); d.Action != policy.Deny {
				t.Errorf("%+v", d)
			}
		})
	}
}

// tamper changes each file of a bundle, or adds one that nobody signed.
func tamper(t *testing.T, archive []byte, change func(string, []byte) []byte) []byte {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(archive))
	must.OK(t, err)
	var out bytes.Buffer
	zw := gzip.NewWriter(&out)
	w, r := tar.NewWriter(zw), tar.NewReader(z)
	add := func(name string, text []byte) {
		must.OK(t, w.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(text))}))
		_, _ = w.Write(text)
	}
	for {
		h, err := r.Next()
		if err != nil {
			break
		}
		var text bytes.Buffer
		_, _ = text.ReadFrom(r)
		if change != nil {
			add(h.Name, change(h.Name, text.Bytes()))
		} else {
			add(h.Name, text.Bytes())
		}
	}
	if change == nil {
		add("/more.rego", []byte("package sallyport.team.more\nallow contains {\"rule\": \"x\", \"reason\": \"y\"}\n"))
	}
	_, _ = w.Close(), zw.Close()
	return out.Bytes()
}

func bomb(t *testing.T) []byte {
	t.Helper()
	var out bytes.Buffer
	zw := gzip.NewWriter(&out)
	w := tar.NewWriter(zw)
	must.OK(t, w.WriteHeader(&tar.Header{Name: "/data.json", Mode: 0o600, Size: 1 << 30}))
	zeros := make([]byte, 1<<20)
	for range 100 {
		_, _ = w.Write(zeros)
	}
	_ = zw.Close()
	return out.Bytes()
}

// A bundle is bound by what binds a team's folder, and does not come into force
// without having been read.
func TestBundleIsBound(t *testing.T) {
	for _, test := range []struct {
		name  string
		data  map[string]any
		rego  string
		wants string
	}{
		{"another package", nil, "package sallyport.decision\nx := 1\n", "not below sallyport.team"},
		{"the network", nil, "package sallyport.team.x\ndeny contains \"x\" if http.send({\"url\": \"http://x\", \"method\": \"get\"})\n", "http.send"},
		{"our data", map[string]any{"sallyport": map[string]any{"x": 1}}, "package sallyport.team.x\n", "Sallyport's own"},
		{"no set", nil, "package sallyport.team.x\ndeny := true\n", "must be a set"},
	} {
		t.Run(test.name, func(t *testing.T) {
			archive := (*signer)(nil).pack(t, "", "v1", test.data, map[string]string{"/x.rego": test.rego})
			from := policy.BundleSource{File: "x"}
			b, err := rego.ReadBundle(archive, from)
			if err == nil {
				_, err = engine.Compile(t.Context(), policy.Document{Policy: policy.Source{Bundle: &from, Verified: b}}, engine.Options{})
			}
			if err == nil || !strings.Contains(err.Error(), test.wants) {
				t.Errorf("%v, want %q", err, test.wants)
			}
		})
	}
	if _, err := engine.Compile(t.Context(), policy.Document{Policy: policy.Source{Bundle: &policy.BundleSource{File: "x"}}}, engine.Options{}); err == nil {
		t.Error("a policy without its bundle was compiled")
	}
}

// A bundle's content counts for the revision, and not where it comes from.
func TestRevisionOfABundle(t *testing.T) {
	revision := func(from policy.BundleSource, hosts ...any) string {
		b, err := rego.ReadBundle((*signer)(nil).pack(t, "", "v1", map[string]any{"hosts": hosts}, map[string]string{"/x.rego": bundled}), from)
		must.OK(t, err)
		p, err := engine.Compile(t.Context(), policy.Document{Policy: policy.Source{Bundle: &from, Verified: b}}, engine.Options{})
		must.OK(t, err)
		return p.Revision()
	}
	a, b := policy.BundleSource{File: "a"}, policy.BundleSource{File: "b"}
	if x, y := revision(a, "x.example.com"), revision(b, "x.example.com"); x != y {
		t.Errorf("%s and %s for one bundle in two places", x, y)
	}
	if x, y := revision(a, "x.example.com"), revision(a, "y.example.com"); x == y {
		t.Error("one revision for two bundles")
	}
}

func TestBundleSource(t *testing.T) {
	for _, test := range []struct {
		source policy.BundleSource
		want   string
	}{
		{policy.BundleSource{}, "nowhere"},
		{policy.BundleSource{File: "a", URL: "https://x.example.com", Key: "k"}, "both"},
		{policy.BundleSource{File: "a", Poll: policy.Duration(60e9)}, "for a url"},
		{policy.BundleSource{File: "a"}, "whoever can write"},
		{policy.BundleSource{URL: "https://x.example.com/b"}, "signature only"},
		{policy.BundleSource{URL: "http://x.example.com/b", Key: "k"}, "in the clear"},
		{policy.BundleSource{URL: "http://127.0.0.1:8000/b", Key: "k"}, ""},
		{policy.BundleSource{URL: "https://u:p@x.example.com/b", Key: "k"}, "user or password"},
		{policy.BundleSource{URL: "x", Key: "k"}, "not a URL"},
		{policy.BundleSource{URL: "https://x.example.com/b", Key: "k", Algorithm: "HS256"}, "not one of"},
		{policy.BundleSource{URL: "https://x.example.com/b", Key: "k", AuthRef: "nobody"}, "not among the credentials"},
		{policy.BundleSource{URL: "https://x.example.com/b", Key: "k", Poll: 1}, "from 1s"},
		{policy.BundleSource{URL: "https://x.example.com/b", Key: "k", StaleAfter: policy.Duration(1e9)}, "less than the time between"},
		{policy.BundleSource{File: "a", Scope: "x"}, "nothing is verified"},
	} {
		var said []string
		for _, f := range validate.Document(policy.Document{Policy: policy.Source{Bundle: &test.source}}) {
			said = append(said, f.Message)
		}
		if got := strings.Join(said, "\n"); !strings.Contains(got, test.want) || test.want == "" && got != "" {
			t.Errorf("%+v: %q, want %q", test.source, got, test.want)
		}
	}
}
