// Command provider runs the OAuth 2.0 and OpenID provider of zitadel/oidc on loopback,
// over TLS, with its example storage. It is for tests: everything is lost when it ends,
// which is when standard input does.
//
// One line of JSON on standard output says where it listens. GET /login gives a refresh
// token of the user, GET /count the number of requests at the token endpoint so far.
package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	jose "github.com/go-jose/go-jose/v4"
	"github.com/zitadel/oidc/v3/example/server/storage"
	"github.com/zitadel/oidc/v3/pkg/oidc"
	"github.com/zitadel/oidc/v3/pkg/op"
)

// ready is what standard output gets. The client web has the secret "secret", native none,
// keyed the key; sid1 with "verysecret" may ask for client credentials.
type ready struct {
	Issuer string `json:"issuer"`
	Roots  string `json:"roots"` // a PEM file
	Key    string `json:"key"`   // in PEM, of the client keyed and of the issuer of JWTs keyed; its ID is k1
}

func main() {
	if err := run(os.Args[1]); err != nil {
		log.Fatal(err)
	}
}

func run(dir string) error {
	slog.SetDefault(slog.New(slog.NewTextHandler(io.Discard, nil)))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	out := ready{Issuer: "https://" + l.Addr().String(), Roots: filepath.Join(dir, "roots.pem")}
	if l, err = secure(l, out.Roots); err != nil {
		return err
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	out.Key = string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))

	storage.RegisterClients(storage.WebClient("web", "secret"), storage.NativeClient("native"), storage.WebClient("keyed", "none"))
	kept := &keyed{storage.NewStorage(storage.NewUserStore(out.Issuer)), &key.PublicKey}
	provider, err := op.NewProvider(&op.Config{
		CryptoKey: sha256.Sum256([]byte("test")), AuthMethodPost: true, AuthMethodPrivateKeyJWT: true, GrantTypeRefreshToken: true,
	}, kept, op.StaticIssuer(out.Issuer))
	if err != nil {
		return err
	}
	var asked atomic.Int64
	mux := http.NewServeMux()
	mux.HandleFunc("GET /login", func(w http.ResponseWriter, r *http.Request) {
		_, refresh, _, err := kept.CreateAccessAndRefreshTokens(r.Context(), &storage.AuthRequest{
			ApplicationID: r.FormValue("client"), UserID: "id1", Scopes: []string{oidc.ScopeOpenID, oidc.ScopeOfflineAccess},
		}, "")
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		fmt.Fprint(w, refresh)
	})
	mux.HandleFunc("GET /count", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, asked.Load()) })
	mux.HandleFunc("POST /oauth/token", func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		provider.ServeHTTP(w, r)
	})
	mux.Handle("/", provider)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	if err := json.NewEncoder(os.Stdout).Encode(out); err != nil {
		return err
	}
	return http.Serve(l, mux)
}

// keyed is the example's storage with one key for the client, and the issuer, keyed.
type keyed struct {
	*storage.Storage
	key *rsa.PublicKey
}

// GetKeyByIDAndClientID implements op.Storage.
func (k *keyed) GetKeyByIDAndClientID(_ context.Context, id, client string) (*jose.JSONWebKey, error) {
	if id != "k1" || client != "keyed" {
		return nil, fmt.Errorf("no such key")
	}
	return &jose.JSONWebKey{KeyID: id, Use: "sig", Key: k.key}, nil
}

// GetClientByClientID implements op.Storage.
func (k *keyed) GetClientByClientID(ctx context.Context, id string) (op.Client, error) {
	c, err := k.Storage.GetClientByClientID(ctx, id)
	if err == nil && id == "keyed" {
		return keyClient{c}, nil
	}
	return c, err
}

// keyClient authenticates with a JWT.
type keyClient struct{ op.Client }

// AuthMethod implements op.Client.
func (keyClient) AuthMethod() oidc.AuthMethod { return oidc.AuthMethodPrivateKeyJWT }

// secure puts TLS on a listener, with a certificate of its own that it writes to a file.
func secure(l net.Listener, file string) (net.Listener, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{l.Addr().(*net.TCPAddr).IP}, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, key.Public(), key)
	if err != nil {
		return nil, err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}), os.WriteFile(file, text, 0o600)
}
