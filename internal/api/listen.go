package api

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"time"

	"sallyport/internal/durable"
)

// Bounds of a listener that others reach.
const (
	maxHead      = 64 << 10         // bytes of a request's head
	headWithin   = 10 * time.Second // for that to arrive
	bodyWithin   = 30 * time.Second // likewise a body that is no stream
	idleWithin   = 2 * time.Minute
	certificates = 10 * 365 * 24 * time.Hour // how long one that is made is valid
)

// Sealer encrypts what lasts.
type Sealer interface {
	Seal(plain []byte) ([]byte, error)
	Open(sealed []byte) ([]byte, error)
}

// Certificate returns the certificate that is kept sealed at path, made the first
// time for a host's name or address. Clients know it by its [Fingerprint], since
// no authority vouches for it.
func Certificate(path string, key Sealer, host string) (tls.Certificate, error) {
	sealed, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return newCertificate(path, key, host)
	}
	if err != nil {
		return tls.Certificate{}, err
	}
	text, err := key.Open(sealed)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("reading %s: %w", path, err)
	}
	return tls.X509KeyPair(text, text)
}

func newCertificate(path string, sealer Sealer, host string) (none tls.Certificate, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return none, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return none, err
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
		return none, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return none, err
	}
	text := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})...)
	sealed, err := sealer.Seal(text)
	if err != nil {
		return none, err
	}
	if err := durable.WriteFile(path, sealed, 0o600); err != nil {
		return none, err
	}
	return tls.X509KeyPair(text, text)
}

// Fingerprint is what a client compares a certificate with: sha256:HEX.
func Fingerprint(c tls.Certificate) string {
	return fmt.Sprintf("sha256:%x", sha256.Sum256(c.Certificate[0]))
}

// Local returns a server for the control socket l, who calls on which the kernel says,
// and the listener to serve.
func Local(l net.Listener, routes http.Handler, log *slog.Logger) (*http.Server, net.Listener) {
	return &http.Server{
		Handler: routes, ConnContext: PeerContext, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		ReadHeaderTimeout: headWithin, IdleTimeout: idleWithin, MaxHeaderBytes: maxHead,
	}, newSocketListener(l)
}

// Remote returns a server that speaks TLS on l and asks for API keys, and the
// listener to serve. crowded is called with a source when connections without a key
// begin to have to go.
func Remote(l net.Listener, c tls.Certificate, routes http.Handler, log *slog.Logger, crowded func(source string)) (*http.Server, net.Listener) {
	s := &http.Server{
		Handler: routes, ConnContext: RemoteContext, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		ReadHeaderTimeout: headWithin, IdleTimeout: idleWithin, MaxHeaderBytes: maxHead,
	}
	return s, tls.NewListener(limitListener{l, newConnLimit(crowded)}, &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{c},
		NextProtos: []string{"http/1.1"}, // a command's stream takes its connection over
	})
}
