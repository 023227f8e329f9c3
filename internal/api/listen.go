package api

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"sallyport/internal/connlimit"
	"sallyport/internal/durable"
	"sallyport/internal/quota"
)

// Bounds of a listener that others reach.
const (
	maxHead      = 64 << 10         // bytes of a request's head
	headWithin   = 10 * time.Second // for that to arrive
	bodyWithin   = 30 * time.Second // likewise a body that is no stream
	idleWithin   = 2 * time.Minute
	certificates = 10 * 365 * 24 * time.Hour // how long one that is made is valid
)

// Certificate returns the certificate that is kept sealed at path, made the first
// time for a host's name or address. Clients know it by its [Fingerprint], since
// no authority vouches for it.
func Certificate(path string, s durable.Sealer, host string) (tls.Certificate, error) {
	text, err := durable.Sealed(path, s, func() ([]byte, error) { return newCertificate(host) })
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(text, text)
}

// newCertificate makes a certificate and its key, in PEM.
func newCertificate(host string) ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	now := time.Now()
	want := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "Sallyport API"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(certificates),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true, DNSNames: []string{"localhost"},
	}
	if name, err := os.Hostname(); err == nil {
		want.DNSNames = append(want.DNSNames, name)
	}
	if ip := net.ParseIP(host); ip != nil && !ip.IsUnspecified() {
		want.IPAddresses = append(want.IPAddresses, ip)
	} else if ip == nil && host != "" {
		want.DNSNames = append(want.DNSNames, host)
	}
	der, err := x509.CreateCertificate(rand.Reader, want, want, key.Public(), key)
	if err != nil {
		return nil, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})...), nil
}

// Fingerprint is what a client compares a certificate with: sha256:HEX.
func Fingerprint(c tls.Certificate) string {
	return fmt.Sprintf("sha256:%x", sha256.Sum256(c.Certificate[0]))
}

// Local returns a server for the control socket l, who calls on which the kernel says,
// and the listener to serve.
func Local(l net.Listener, routes http.Handler, log *slog.Logger) (*http.Server, net.Listener) {
	return server(routes, log, PeerContext), newSocketListener(l)
}

func server(routes http.Handler, log *slog.Logger, who func(context.Context, net.Conn) context.Context) *http.Server {
	return &http.Server{
		Handler: routes, ConnContext: who, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		ReadHeaderTimeout: headWithin, IdleTimeout: idleWithin, MaxHeaderBytes: maxHead,
	}
}

// Remote returns a server that speaks TLS on l and asks for API keys, and the
// listener to serve. crowded is called with a source when connections without a key
// begin to have to go.
func Remote(l net.Listener, c tls.Certificate, routes http.Handler, log *slog.Logger, crowded func(source string)) (*http.Server, net.Listener) {
	return server(routes, log, RemoteContext), tls.NewListener(limitListener{l, newConnLimit(crowded)}, &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{c},
		NextProtos: []string{"http/1.1"}, // a command's stream takes its connection over
	})
}

// Bounds of connections to the API's listeners.
const (
	unauthenticatedAll  = 512 // that have not shown a key
	unauthenticatedEach = 128 // of one source
	callersAll          = 1024
	callersEach         = 512  // of one tenant, of one of the host's own keys, or of one of its users
	rootMost            = 4096 // of root, on the socket
)

// connLimit bounds connections. Those that have not shown a key are bounded by the rule of
// package connlimit, where the oldest goes: connections without a key keep out no caller
// that has one.
type connLimit struct {
	unknown *connlimit.Limit
	callers *quota.Places
}

func newConnLimit(begins func(source string)) *connLimit {
	return &connLimit{unknown: connlimit.New(unauthenticatedAll, unauthenticatedEach, begins), callers: quota.New(callersAll, callersEach)}
}

// limitedConn is a connection that a connLimit counts.
type limitedConn struct {
	net.Conn
	limit *connLimit
	known func() // ends that it counts as unauthenticated

	mu     sync.Mutex // guards what follows
	closed bool
	who    string // empty while it is not known
}

// limitListener accepts connections that a connLimit counts.
type limitListener struct {
	net.Listener
	limit *connLimit
}

func (l limitListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	g := &limitedConn{Conn: c, limit: l.limit}
	g.known = l.limit.unknown.Enter(connlimit.Source(c.RemoteAddr()), func() { _ = c.Close() })
	return g, nil
}

// admit makes a connection a caller's.
func (g *limitedConn) admit(p Principal) error {
	who := p.Owner()
	g.known()
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.closed:
		return net.ErrClosed
	case g.who == who:
		return nil
	}
	g.leave()
	if !g.limit.callers.Enter(who, who) {
		return fmt.Errorf("%w: too many connections are open, of this caller or of all", errBusy)
	}
	g.who = who
	return nil
}

// leave takes a connection out of the callers'. g.mu is held.
func (g *limitedConn) leave() {
	if g.who != "" {
		g.limit.callers.Leave(g.who, g.who)
		g.who = ""
	}
}

func (g *limitedConn) Close() error {
	g.known()
	g.mu.Lock()
	g.closed = true
	g.leave()
	g.mu.Unlock()
	return g.Conn.Close()
}

// socketListener accepts on the control socket, where the kernel says who calls: root
// has places of its own, which no other user takes.
type socketListener struct {
	net.Listener
	root, users *quota.Places
}

func newSocketListener(l net.Listener) socketListener {
	return socketListener{l, quota.New(2*rootMost, rootMost), quota.New(callersAll, callersEach)}
}

func (l socketListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		u := c.(*net.UnixConn)
		cred, err := credentials(u)
		if err != nil {
			_ = c.Close()
			continue
		}
		places, who := l.users, strconv.FormatUint(uint64(cred.Uid), 10)
		if cred.Uid == 0 {
			places = l.root
		}
		if !places.Enter(who, who) {
			overfull(c)
			continue
		}
		return &socketConn{UnixConn: u, leave: sync.OnceFunc(func() { places.Leave(who, who) })}, nil
	}
}

// overfull tells a caller why its connection ends.
func overfull(c net.Conn) {
	const text = `{"type":"about:blank","title":"Service Unavailable","status":503,"detail":"this user has too many connections to the control socket: close some"}`
	_ = c.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
	_, _ = io.WriteString(c, fmt.Sprintf("HTTP/1.1 %d %s\r\nConnection: close\r\nContent-Type: application/problem+json\r\nContent-Length: %d\r\n\r\n%s",
		http.StatusServiceUnavailable, http.StatusText(http.StatusServiceUnavailable), len(text), text))
	_ = c.Close()
}

// socketConn is a connection to the control socket.
type socketConn struct {
	*net.UnixConn
	leave func()
}

func (c *socketConn) Close() error {
	c.leave()
	return c.UnixConn.Close()
}
