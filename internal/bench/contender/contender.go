// Package contender starts the proxies that Sallyport is measured beside: goproxy in this
// process, and squid, mitmproxy and iron-proxy where they are installed. Each ends TLS on
// both legs and sets one header.
package contender

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// Options of a start.
type Options struct {
	Dir    string // of the run: has the upstream's root in upstream.pem, and gets the proxy's in NAME.pem
	Listen string // the address that certificates are for, and that goproxy listens on
	Secret string // which is set as a bearer's
}

// Program is a proxy that is not of this repository.
type Program struct {
	// Find says why it cannot be measured here, which is printed with the table.
	Find func(context.Context) error
	// Start is done when it takes requests at the URL.
	Start func(context.Context, Options) (cmd *exec.Cmd, url string, err error)
}

// The programs.
var (
	Squid     = Program{findSquid, startSquid}
	Mitmproxy = Program{installed("mitmdump"), startMitmproxy} // mitmproxy's program without a terminal
	IronProxy = Program{installed("iron-proxy"), startIronProxy}
)

// installed looks for a program.
func installed(name string) func(context.Context) error {
	return func(context.Context) error {
		if _, err := exec.LookPath(name); err != nil {
			return errors.New("not installed")
		}
		return nil
	}
}

// start starts a program, and waits until it listens on the address. Its output goes to
// NAME.log in the run's folder.
func start(ctx context.Context, o Options, name, address string, cmd *exec.Cmd) (*exec.Cmd, string, error) {
	path := filepath.Join(o.Dir, name+".log")
	said, err := os.Create(path)
	if err != nil {
		return nil, "", err
	}
	defer said.Close()
	cmd.Stdout, cmd.Stderr = said, said
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		return nil, "", err
	}
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
		if c, err := net.Dial("tcp", address); err == nil {
			return cmd, "http://" + address, c.Close()
		}
	}
	_ = cmd.Process.Signal(syscall.SIGTERM)
	_ = cmd.Wait()
	raw, _ := os.ReadFile(path)
	return nil, "", fmt.Errorf("%s does not listen: %s", name, raw[max(0, len(raw)-500):])
}

// vacant is an address on loopback that nothing listens on, for a moment.
func vacant() (string, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return ln.Addr().String(), ln.Close()
}

// authority writes a certificate authority of a proxy's own, its key and certificate in one
// file, and its root where the load looks for it.
func authority(o Options, name, path string) error {
	cert, root, err := Certificate(name, o.Listen)
	if err != nil {
		return err
	}
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		return err
	}
	both := append(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), root...)
	return errors.Join(os.WriteFile(path, both, 0o600), os.WriteFile(filepath.Join(o.Dir, name+".pem"), root, 0o600))
}

// Certificate returns a certificate that has signed itself, for an address, which needs no
// resolver, and for localhost and other names; and its PEM.
func Certificate(name, address string, names ...string) (tls.Certificate, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.ParseIP(address)}, DNSNames: append([]string{"localhost"}, names...), IsCA: true, BasicConstraintsValid: true,
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
