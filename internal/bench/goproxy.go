package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/elazarl/goproxy"
)

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
	ln, err := net.Listen("tcp", net.JoinHostPort(o.listen, "0"))
	if err != nil {
		return err
	}
	s := &http.Server{Handler: proxy}
	fmt.Printf("http://%s\n", ln.Addr())
	return serve(ctx, s, s.Serve, ln)
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
