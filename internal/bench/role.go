package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/elazarl/goproxy"
)

// secret is what both proxies inject and the upstream asks for.
const secret = "sk-bench-0123456789abcdef0123456789abcdef"

// document is 1 KB of JSON.
var document = []byte(`{"object":"list","data":"` + strings.Repeat("x", 997) + `"}`)

// upstreamRole serves the document over TLS to requests that carry the secret.
func upstreamRole(ctx context.Context, o options) error {
	cert, root, err := certificate()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(o.dir, "upstream.pem"), root, 0o600); err != nil {
		return err
	}
	s := &http.Server{
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"http/1.1"}},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "Bearer "+secret {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(document)
		}),
	}
	return serve(ctx, s, func(ln net.Listener) error { return s.ServeTLS(ln, "", "") }, "127.0.0.1:%d")
}

// goproxyRole is the proxy of goproxy's documentation, with a store of
// certificates as it recommends, and the header set in a handler.
func goproxyRole(ctx context.Context, o options) error {
	root := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: goproxy.GoproxyCa.Certificate[0]})
	if err := os.WriteFile(filepath.Join(o.dir, "goproxy.pem"), root, 0o600); err != nil {
		return err
	}
	proxy := goproxy.NewProxyHttpServer()
	// Its transport knows the upstream's root, and keeps a connection for each
	// of the load's: with the two that are the default it would be measured
	// shaking hands. Everything else is as it comes.
	roots := x509.NewCertPool()
	trusted, err := os.ReadFile(filepath.Join(o.dir, "upstream.pem"))
	if err != nil {
		return err
	}
	roots.AppendCertsFromPEM(trusted)
	proxy.Tr.TLSClientConfig = &tls.Config{RootCAs: roots}
	proxy.Tr.MaxIdleConnsPerHost = max(o.connections, slices.Max(others))
	proxy.CertStore = &store{certs: map[string]*tls.Certificate{}}
	proxy.OnRequest().HandleConnect(goproxy.AlwaysMitm)
	proxy.OnRequest().DoFunc(func(r *http.Request, _ *goproxy.ProxyCtx) (*http.Request, *http.Response) {
		r.Header.Set("Authorization", "Bearer "+secret)
		return r, nil
	})
	s := &http.Server{Handler: proxy}
	return serve(ctx, s, s.Serve, "http://127.0.0.1:%d")
}

type store struct {
	mu    sync.Mutex
	certs map[string]*tls.Certificate
}

func (s *store) Fetch(host string, make func() (*tls.Certificate, error)) (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c, ok := s.certs[host]; ok {
		return c, nil
	}
	c, err := make()
	if err == nil {
		s.certs[host] = c
	}
	return c, err
}

// serve runs a server on a free loopback port, which it prints, until ctx is done.
func serve(ctx context.Context, s *http.Server, run func(net.Listener) error, ready string) error {
	s.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	fmt.Printf(ready+"\n", port(ln))
	if err := run(ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func port(ln net.Listener) int { return ln.Addr().(*net.TCPAddr).Port }

// certificate signs itself for 127.0.0.1, which needs no resolver.
func certificate() (tls.Certificate, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		NotBefore:    time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key},
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}
