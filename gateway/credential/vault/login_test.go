package vault_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"sallyport/gateway/credential"
	"sallyport/internal/config"
	"sallyport/internal/test/must"
)

// reads reads the secret with a login.
func (s *server) reads(t *testing.T, a config.VaultAuth) error {
	t.Helper()
	v := connect(t, config.Vault{Address: s.Address, Roots: s.CAFile, Auth: a})
	_, err := source(t, v, "secret/data/openai", "token").Read(t.Context())
	return err
}

// pemKey makes a key and its PEM.
func pemKey(t *testing.T) (*ecdsa.PrivateKey, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must.OK(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	must.OK(t, err)
	return key, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

// sign makes a JWT (ES256).
func sign(t *testing.T, key *ecdsa.PrivateKey, claims map[string]any) string {
	t.Helper()
	claims["nbf"], claims["iat"] = time.Now().Add(-time.Minute).Unix(), time.Now().Add(-time.Minute).Unix()
	payload, err := json.Marshal(claims)
	must.OK(t, err)
	text := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"ES256","typ":"JWT"}`)) + "." + base64.RawURLEncoding.EncodeToString(payload)
	sum := sha256.Sum256([]byte(text))
	r, v, err := ecdsa.Sign(rand.Reader, key, sum[:])
	must.OK(t, err)
	return text + "." + base64.RawURLEncoding.EncodeToString(append(r.FillBytes(make([]byte, 32)), v.FillBytes(make([]byte, 32))...))
}

func TestCertificateLogin(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.write(t, "sys/auth/cert", map[string]any{"type": "cert"})
	key, text := pemKey(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "sallyport"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	must.OK(t, err)
	own := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	a := config.VaultAuth{Certificate: &config.VaultCertificate{Certificate: s.file(t, "own.pem", own), Key: s.file(t, "own-key.pem", text)}}
	fails(t, s.reads(t, a), credential.ErrRefused, "own.pem")
	s.write(t, "auth/cert/certs/sallyport", map[string]any{"certificate": own, "token_policies": "sallyport"})
	must.OK(t, s.reads(t, a))
	a.Certificate.Role = "nobody"
	fails(t, s.reads(t, a), credential.ErrRefused, "vault.auth.certificate")
	must.OK(t, os.Chmod(a.Certificate.Key, 0o644))
	a.Certificate.Role = ""
	if err := s.reads(t, a); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("with a key that others can read: %v", err)
	}
}

// Kubernetes' API server is played: it says whose token it is.
func TestKubernetesLogin(t *testing.T) {
	t.Parallel()
	s := start(t)
	reviewer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review struct{ Spec struct{ Token string } }
		_ = json.NewDecoder(r.Body).Decode(&review)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, `{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","status":{"authenticated":true,"user":{"username":"system:serviceaccount:agents:sallyport","uid":"1","groups":["system:serviceaccounts"]}}}`)
	}))
	defer reviewer.Close()
	s.write(t, "sys/auth/kubernetes", map[string]any{"type": "kubernetes"})
	key, _ := pemKey(t)
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	must.OK(t, err)
	s.write(t, "auth/kubernetes/config", map[string]any{
		"kubernetes_host": reviewer.URL, "disable_local_ca_jwt": true,
		"pem_keys": string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})),
	})
	s.write(t, "auth/kubernetes/role/sallyport", map[string]any{
		"bound_service_account_names": "sallyport", "bound_service_account_namespaces": "agents", "token_policies": "sallyport", "audience": "",
	})
	jwt := sign(t, key, map[string]any{
		"iss": "kubernetes/serviceaccount", "sub": "system:serviceaccount:agents:sallyport", "exp": time.Now().Add(time.Hour).Unix(),
		"kubernetes.io": map[string]any{"namespace": "agents", "serviceaccount": map[string]any{"name": "sallyport", "uid": "1"}},
	})
	path := s.file(t, "jwt", jwt)
	must.OK(t, os.Chmod(path, 0o644)) // as Kubernetes writes it
	must.OK(t, s.reads(t, config.VaultAuth{Kubernetes: &config.VaultRole{Role: "sallyport", TokenFile: path}}))
	fails(t, s.reads(t, config.VaultAuth{Kubernetes: &config.VaultRole{Role: "nobody", TokenFile: path}}), credential.ErrRefused, "vault.auth.kubernetes", jwt)
}

func TestJWTLogin(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.write(t, "sys/auth/jwt", map[string]any{"type": "jwt"})
	key, _ := pemKey(t)
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	must.OK(t, err)
	s.write(t, "auth/jwt/config", map[string]any{"jwt_validation_pubkeys": string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}))})
	s.write(t, "auth/jwt/role/sallyport", map[string]any{"role_type": "jwt", "user_claim": "sub", "bound_audiences": "vault", "token_policies": "sallyport"})
	claims := map[string]any{"sub": "sallyport", "aud": "vault", "exp": time.Now().Add(time.Hour).Unix()}
	a := config.VaultAuth{JWT: &config.VaultRole{Role: "sallyport", TokenFile: s.file(t, "jwt", sign(t, key, claims))}}
	must.OK(t, s.reads(t, a))
	other, _ := pemKey(t)
	forged := sign(t, other, claims)
	s.file(t, "jwt", forged)
	fails(t, s.reads(t, a), credential.ErrRefused, "vault.auth.jwt", forged)
}

// A wrapping token works once: its secret is kept, and a theft is seen.
func TestWrapping(t *testing.T) {
	t.Parallel()
	s := start(t)
	wrap := func(path string, data map[string]any) string {
		t.Helper()
		root, err := s.root.Clone()
		must.OK(t, err)
		root.SetToken(s.RootToken)
		root.SetWrappingLookupFunc(func(string, string) string { return "1m" })
		got, err := root.Logical().Write(path, data)
		must.OK(t, err)
		return got.WrapInfo.Token
	}
	role := func(secret string) config.VaultAuth {
		return config.VaultAuth{Wrapped: true, AppRole: &config.AppRole{RoleID: s.RoleID, SecretIDFile: s.file(t, "secret-id", secret)}}
	}
	a := role(wrap("auth/approle/role/sallyport/secret-id", nil))
	v := connect(t, config.Vault{Address: s.Address, Roots: s.CAFile, Auth: a})
	src := source(t, v, "secret/data/openai", "token")
	for range 2 { // the second time after another login
		_, err := src.Read(t.Context())
		must.OK(t, err)
		got, err := s.root.Logical().List("auth/token/accessors")
		must.OK(t, err)
		for _, accessor := range got.Data["keys"].([]any) {
			if info, err := s.root.Auth().Token().LookupAccessor(accessor.(string)); err == nil && info.Data["display_name"] == "approle" {
				must.OK(t, s.root.Auth().Token().RevokeAccessor(accessor.(string)))
			}
		}
	}
	fails(t, s.reads(t, a), credential.ErrRefused, "used already")
	must.OK(t, s.reads(t, config.VaultAuth{Wrapped: true, TokenFile: s.file(t, "token", wrap("auth/token/create", map[string]any{"policies": []string{"sallyport"}}))}))
}

// A token from a file is renewed while it is used.
func TestTokenOfAFileIsRenewed(t *testing.T) {
	t.Parallel()
	s := start(t)
	token := s.write(t, "auth/token/create", map[string]any{"policies": []string{"sallyport"}, "ttl": "9s"}).Auth.ClientToken
	v := connect(t, s.withToken(t, token))
	src := source(t, v, "secret/data/openai", "token")
	for began := time.Now(); time.Since(began) < 15*time.Second; time.Sleep(200 * time.Millisecond) {
		if _, err := src.Read(t.Context()); err != nil {
			t.Fatalf("after %v: %v", time.Since(began), err)
		}
	}
}
