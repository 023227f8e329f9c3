package worker

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"sync/atomic"

	"sallyport/gateway/access"
	"sallyport/gateway/inbound"
	"sallyport/gateway/workerapi"
	"sallyport/internal/ipc"
)

// router is an inbound.Router, as the supervisor says.
type router struct {
	peer *ipc.Peer
	now  atomic.Pointer[routerNow]
}

type routerNow struct {
	clients []access.RouterClient
	serve   tls.Config
	ask     *tls.Config
}

// use takes what the supervisor says; nil: nothing is new.
func (r *router) use(t *workerapi.Router) error {
	if t == nil {
		return nil
	}
	cert, err := tls.X509KeyPair(t.Certificate, t.Key)
	if err != nil {
		return err
	}
	// Another node shows a certificate of the same name below one of these, or this one.
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(t.Certificate)
	r.now.Store(&routerNow{
		clients: t.Clients,
		serve:   tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}},
		ask:     &tls.Config{RootCAs: roots, ServerName: workerapi.RouterName(cert.Leaf), MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}},
	})
	return nil
}

// listener has connections of ln be TLS.
func (r *router) listener(ln net.Listener) net.Listener {
	return tls.NewListener(ln, &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return &r.now.Load().serve, nil },
	})
}

// Client implements inbound.Router.
func (r *router) Client(token string) access.RouterClient {
	if now := r.now.Load(); now != nil && token != "" {
		return access.RouterClientOf(now.clients, token)
	}
	return access.RouterClient{}
}

// Find implements inbound.Router.
func (r *router) Find(ctx context.Context, to inbound.Route) (at inbound.Place, err error) {
	return at, r.peer.Call(ctx, workerapi.MethodFind, to, &at)
}

// Peer implements inbound.Router.
func (r *router) Peer() *tls.Config { return r.now.Load().ask }
