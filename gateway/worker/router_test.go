package worker

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net"
	"testing"

	"sallyport/gateway/access"
	"sallyport/gateway/workerapi"
	"sallyport/internal/test/must"
	"sallyport/internal/test/testnet"
)

// Nodes whose certificates are of one name and below the same authority, or the same one, take
// each other for nodes, before and after one is renewed; others they do not.
func TestRouterPeers(t *testing.T) {
	const name = "sallyport-router.sallyport.svc"
	ca, err := testnet.NewCA()
	must.OK(t, err)
	strange, err := testnet.NewCA()
	must.OK(t, err)
	node := func(of *testnet.CA, above []byte, name string) *router {
		leaf, err := of.Leaf(name)
		must.OK(t, err)
		key, err := x509.MarshalPKCS8PrivateKey(leaf.PrivateKey)
		must.OK(t, err)
		r := new(router)
		must.OK(t, r.use(&workerapi.Router{
			Certificate: append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Certificate[0]}), above...),
			Key:         pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}),
			Clients:     []access.RouterClient{access.NewRouterClient("a", []string{"agents"}, []string{"token"})},
		}))
		return r
	}
	one := node(ca, ca.PEM(), name)
	for what, tt := range map[string]struct {
		other *router
		ok    bool
	}{
		"itself": {one, true}, "below the same": {node(ca, ca.PEM(), name), true}, "below another": {node(strange, ca.PEM(), name), false}, "of another name": {node(ca, ca.PEM(), "evil.sallyport.svc"), false},
	} {
		plain, err := net.Listen("tcp", "127.0.0.1:0")
		must.OK(t, err)
		ln := tt.other.listener(plain)
		go func() {
			c, err := ln.Accept()
			if err == nil {
				_ = c.(*tls.Conn).Handshake()
				_ = c.Close()
			}
		}()
		c, err := tls.Dial("tcp", ln.Addr().String(), one.Peer())
		if (err == nil) != tt.ok {
			t.Errorf("%s: %v", what, err)
		}
		if err == nil {
			_ = c.Close()
		}
		_ = ln.Close()
	}
	if one.Client("").Name != "" || one.Client("token").Name != "a" || new(router).Client("token").Name != "" {
		t.Error("a token is another client's, or none's")
	}
}
