package ca

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"sallyport/internal/test/must"
)

// cluster is an authority whose root the pods of a cluster trust.
type cluster struct {
	t    *testing.T
	root *Issuer
	pem  []byte
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	p, err := newRoot("cluster", time.Now()) // for its key
	must.OK(t, err)
	c := &x509.Certificate{
		Subject: pkix.Name{CommonName: "cluster " + t.Name()}, SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(rootLife),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, SubjectKeyId: p.cert.SubjectKeyId,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, p.key.Public(), p.key)
	must.OK(t, err)
	c, err = x509.ParseCertificate(der)
	must.OK(t, err)
	return &cluster{t, &Issuer{chain: []*x509.Certificate{c}, key: p.key}, pem.EncodeToMemory(&pem.Block{Type: blockCertificate, Bytes: der})}
}

// node signs a node's intermediate, with an RSA key, as cert-manager makes by default.
func (c *cluster) node(change ...func(*x509.Certificate)) (certificates, key []byte) {
	c.t.Helper()
	k, err := rsa.GenerateKey(rand.Reader, 2048)
	must.OK(c.t, err)
	n := &x509.Certificate{
		Subject: pkix.Name{CommonName: "node"}, SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	for _, f := range change {
		f(n)
	}
	der, err := x509.CreateCertificate(rand.Reader, n, c.root.chain[0], &k.PublicKey, c.root.key)
	must.OK(c.t, err)
	private, err := x509.MarshalPKCS8PrivateKey(k)
	must.OK(c.t, err)
	return append(pem.EncodeToMemory(&pem.Block{Type: blockCertificate, Bytes: der}), c.pem...), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})
}

func (c *cluster) issuer() *Issuer {
	c.t.Helper()
	certificates, key := c.node()
	i, err := NewIssuer(certificates, key, time.Now())
	must.OK(c.t, err)
	return i
}

// Each node has an intermediate, each pod one below it, and a pod trusts what any node shows
// it, also after the node's is another one, and after a restart.
func TestGivenIssuer(t *testing.T) {
	c := newCluster(t)
	dir, sealer, now := t.TempDir(), newSealer(t), time.Now()
	a := open(t, dir, sealer)
	a.SetIssuer(c.issuer())
	if got := root(t, a, "pod1"); !bytes.Equal(got, c.pem) {
		t.Errorf("the pod is to trust\n%s, want the cluster's root", got)
	}
	root(t, a, "pod2")
	must.OK(t, verify(t, a, "pod1", "api.example.com", c.pem, now))
	must.OK(t, verify(t, a, "pod2", "api.example.com", c.pem, now))

	first, err := a.intermediate("pod1")
	must.OK(t, err)
	a.SetIssuer(c.issuer())
	must.OK(t, verify(t, a, "pod1", "other.example.com", c.pem, now))
	second, err := a.intermediate("pod1")
	must.OK(t, err)
	if first.issuers[0].Equal(second.issuers[0]) {
		t.Error("the pod's intermediate is still below the node's old one")
	}

	b, err := Open(Options{Dir: dir, Sealer: sealer, Issuer: c.issuer()})
	must.OK(t, err)
	a.Authority = b
	must.OK(t, verify(t, a, "pod1", "third.example.com", c.pem, now))
	public, _, err := ed25519.GenerateKey(rand.Reader)
	must.OK(t, err)
	host, err := ssh.NewPublicKey(public)
	must.OK(t, err)
	if _, err := b.Certify("pod1", "git.example.com", host.Marshal()); !errors.Is(err, errNoHostKey) {
		t.Errorf("a host of SSH is certified: %v", err)
	}
	must.OK(t, b.Forget("pod1"))
	if _, err := b.intermediate("pod1"); !errors.Is(err, ErrNoAuthority) {
		t.Errorf("after Forget: %v", err)
	}
	must.OK(t, verify(t, a, "pod2", "api.example.com", c.pem, now))
}

// meanwhile seals like aesSealer, and does something first.
type meanwhile struct {
	aesSealer
	do func()
}

func (m *meanwhile) Seal(p []byte) ([]byte, error) {
	m.do()
	return m.aesSealer.Seal(p)
}

// An issuer that is set while a pod's intermediate is made is above the next leaf's.
func TestIssuerSetMeanwhile(t *testing.T) {
	c := newCluster(t)
	sealer := &meanwhile{newSealer(t), func() {}}
	a := open(t, t.TempDir(), sealer)
	a.SetIssuer(c.issuer())
	root(t, a, "pod1")
	a.SetIssuer(c.issuer())
	last := c.issuer()
	sealer.do = func() { a.SetIssuer(last) }
	must.OK(t, verify(t, a, "pod1", "api.example.com", c.pem, time.Now()))
	must.OK(t, verify(t, a, "pod1", "other.example.com", c.pem, time.Now()))
	p, err := a.intermediate("pod1")
	must.OK(t, err)
	if !last.has(p.issuers) {
		t.Error("the pod's intermediate is not below the issuer that was set last")
	}
}

// A pod is shown what is above the node's own certificate as it is now, also where that one
// is the same as before.
func TestChainOfIssuerChanges(t *testing.T) {
	c := newCluster(t)
	certificates, key := c.node(func(n *x509.Certificate) { n.Subject.CommonName = "middle" })
	middle, err := NewIssuer(certificates, key, time.Now())
	must.OK(t, err)
	certificates, key = (&cluster{t, middle, certificates}).node()
	own, _ := pem.Decode(certificates)
	a := open(t, t.TempDir(), newSealer(t))
	for _, chain := range []struct {
		name string
		pem  []byte
		ok   bool
	}{{"alone", pem.EncodeToMemory(own), false}, {"whole", certificates, true}, {"alone-again", pem.EncodeToMemory(own), false}} {
		i, err := NewIssuer(chain.pem, key, time.Now())
		must.OK(t, err)
		a.SetIssuer(i)
		root(t, a, "pod1")
		if err := verify(t, a, "pod1", chain.name+".example.com", c.pem, time.Now()); (err == nil) != chain.ok {
			t.Errorf("%s: verifying: %v, want ok %v", chain.name, err, chain.ok)
		}
	}
}

// A node's certificate is refused when it is read, if no client would accept what it signs.
func TestIssuerRefused(t *testing.T) {
	c := newCluster(t)
	for name, tt := range map[string]struct {
		change func(*x509.Certificate)
		want   string
	}{
		"path length 0":     {func(n *x509.Certificate) { n.MaxPathLenZero = true }, "path length"},
		"path length 1":     {func(n *x509.Certificate) { n.MaxPathLen = 1 }, ""},
		"no authority":      {func(n *x509.Certificate) { n.IsCA = false }, "isCA"},
		"may not sign":      {func(n *x509.Certificate) { n.KeyUsage = x509.KeyUsageDigitalSignature }, "key usage"},
		"for clients alone": {func(n *x509.Certificate) { n.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }, "servers"},
		"expired":           {func(n *x509.Certificate) { n.NotAfter = time.Now().Add(-time.Second) }, "good from"},
		"not good yet":      {func(n *x509.Certificate) { n.NotBefore = time.Now().Add(time.Hour) }, "good from"},
	} {
		certificates, key := c.node(tt.change)
		if _, err := NewIssuer(certificates, key, time.Now()); (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", name, err, tt.want)
		}
	}
	certificates, _ := c.node()
	_, key := c.node()
	if _, err := NewIssuer(certificates, key, time.Now()); err == nil {
		t.Error("another certificate's key is taken")
	}
	other := newCluster(t)
	certificates, key = c.node()
	own, _ := pem.Decode(certificates)
	if _, err := NewIssuer(append(pem.EncodeToMemory(own), other.pem...), key, time.Now()); err == nil {
		t.Error("a chain with another root is taken")
	}
}
