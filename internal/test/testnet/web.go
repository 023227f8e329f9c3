package testnet

import (
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
)

// HTTPS serves the handler on a port of the host with a certificate of the CA
// for the names, HTTP/1.1 and HTTP/2 as the client offers.
func (h *Host) HTTPS(ca *CA, port int, handler http.Handler, names ...string) (net.Addr, error) {
	leaf, err := ca.Leaf(names...)
	if err != nil {
		return nil, err
	}
	l, err := h.Listen(port)
	if err != nil {
		return nil, err
	}
	s := &http.Server{
		Handler:   handler,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{leaf}},
		ErrorLog:  silent,
	}
	h.serve(s, func() { s.ServeTLS(l, "", "") })
	return l.Addr(), nil
}

// HTTP serves the handler on a port of the host without TLS.
func (h *Host) HTTP(port int, handler http.Handler) (net.Addr, error) {
	l, err := h.Listen(port)
	if err != nil {
		return nil, err
	}
	s := &http.Server{Handler: handler, ErrorLog: silent}
	h.serve(s, func() { s.Serve(l) })
	return l.Addr(), nil
}

// silent: a client that hangs up is a test's business, not the log's.
var silent = log.New(io.Discard, "", 0)

func (h *Host) serve(s *http.Server, run func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		run()
	}()
	h.onClose(func() {
		s.Close()
		<-done
	})
}
