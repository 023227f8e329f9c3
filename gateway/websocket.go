package gateway

import (
	"crypto/rand"
	"encoding/base64"
	"io"
	"net"
	"net/http"
	"time"
)

// extend turns a WebSocket that is begun inside of HTTP/2 (RFC 8441) into the
// handshake of HTTP/1.1 that it stands for: policy sees it as such, and it is
// what every upstream speaks. golang.org/x/net/http2 offers it to clients when
// GODEBUG has http2xconnect=1.
func (x *exchange) extend(r *http.Request) {
	if r.ProtoMajor != 2 || r.Method != http.MethodConnect || r.Header.Get(":protocol") != "websocket" {
		return
	}
	delete(r.Header, ":protocol")
	r.Method = http.MethodGet
	r.Header["Connection"], r.Header["Upgrade"] = []string{"Upgrade"}, []string{"websocket"}
	var key [16]byte
	_, _ = rand.Read(key[:]) // never fails
	r.Header["Sec-Websocket-Key"] = []string{base64.StdEncoding.EncodeToString(key[:])}
	x.out.tunnel = &tunnelled{ReadCloser: r.Body, w: x.out.ResponseWriter}
	r.Body, r.ContentLength = http.NoBody, 0
}

// tunnelled is a stream of HTTP/2 as a connection.
type tunnelled struct {
	io.ReadCloser
	w http.ResponseWriter
}

// accept turns the header of a 101 response into that of the stream's.
func (t *tunnelled) accept(h http.Header) {
	for _, name := range []string{"Connection", "Upgrade", "Sec-Websocket-Accept"} {
		delete(h, name)
	}
}

func (t *tunnelled) Write(p []byte) (int, error) {
	n, err := t.w.Write(p)
	if err == nil {
		err = http.NewResponseController(t.w).Flush()
	}
	return n, err
}

func (t *tunnelled) LocalAddr() net.Addr  { return &net.TCPAddr{} }
func (t *tunnelled) RemoteAddr() net.Addr { return &net.TCPAddr{} }
func (t *tunnelled) SetReadDeadline(d time.Time) error {
	return http.NewResponseController(t.w).SetReadDeadline(d)
}
func (t *tunnelled) SetWriteDeadline(d time.Time) error {
	return http.NewResponseController(t.w).SetWriteDeadline(d)
}
func (t *tunnelled) SetDeadline(d time.Time) error {
	if err := t.SetReadDeadline(d); err != nil {
		return err
	}
	return t.SetWriteDeadline(d)
}
