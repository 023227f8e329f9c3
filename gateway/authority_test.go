package gateway_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"sync"
	"testing"
	"time"

	"sallyport/internal/test/must"
)

// authority signs leaves for any name; as gateway.Certificates it is the double
// of the sandboxes' authorities.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool

	mu     sync.Mutex
	leaves map[string]tls.Certificate
	asked  []string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must.OK(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must.OK(t, err)
	cert, err := x509.ParseCertificate(der)
	must.OK(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return &authority{cert: cert, key: key, pool: pool, leaves: map[string]tls.Certificate{}}
}

func (a *authority) leaf(name string) tls.Certificate {
	a.mu.Lock()
	defer a.mu.Unlock()
	if leaf, ok := a.leaves[name]; ok {
		return leaf
	}
	leaf := a.sign(name, int64(len(a.leaves)+2), time.Now().Add(time.Hour))
	a.leaves[name] = leaf
	return leaf
}

// sign makes a certificate that is good from two hours before its end.
func (a *authority) sign(name string, serial int64, until time.Time) tls.Certificate {
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial),
		NotBefore:    until.Add(-2 * time.Hour), NotAfter: until,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if ip := net.ParseIP(name); ip != nil {
		template.IPAddresses = []net.IP{ip}
	} else {
		template.DNSNames = []string{name}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &a.key.PublicKey, a.key)
	if err != nil {
		panic(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: a.key}
}

func (a *authority) ServerConfig(sandboxID, name string) (*tls.Config, error) {
	leaf := a.leaf(name)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = append(a.asked, sandboxID+" "+name)
	return &tls.Config{Certificates: []tls.Certificate{leaf}, NextProtos: []string{"h2", "http/1.1"}}, nil
}
