package contender

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"os"
	"path/filepath"
	"sync"

	"github.com/elazarl/goproxy"
)

// Goproxy returns the proxy of goproxy's documentation, with a store of certificates as it
// recommends, and the header set in a handler. It keeps so many idle connections to the
// upstream.
func Goproxy(o Options, idle int) (http.Handler, error) {
	root := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: goproxy.GoproxyCa.Certificate[0]})
	if err := os.WriteFile(filepath.Join(o.Dir, "goproxy.pem"), root, 0o600); err != nil {
		return nil, err
	}
	proxy := goproxy.NewProxyHttpServer()
	// Its transport knows the upstream's root, and keeps a connection for each
	// of the load's: with the two that are the default it would be measured
	// shaking hands. Everything else is as it comes.
	roots := x509.NewCertPool()
	trusted, err := os.ReadFile(filepath.Join(o.Dir, "upstream.pem"))
	if err != nil {
		return nil, err
	}
	roots.AppendCertsFromPEM(trusted)
	proxy.Tr.TLSClientConfig = &tls.Config{RootCAs: roots}
	proxy.Tr.MaxIdleConnsPerHost = idle
	proxy.CertStore = &store{certs: map[string]*tls.Certificate{}}
	proxy.OnRequest().HandleConnect(goproxy.AlwaysMitm)
	proxy.OnRequest().DoFunc(func(r *http.Request, _ *goproxy.ProxyCtx) (*http.Request, *http.Response) {
		r.Header.Set("Authorization", "Bearer "+o.Secret)
		return r, nil
	})
	return proxy, nil
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
