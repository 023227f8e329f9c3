package mitm

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"golang.org/x/sync/singleflight"

	"sallyport/internal/hostname"
)

// Signer signs a leaf for a name, in its canonical form, that has the public
// key, and returns it with what is above it up to the root, which is left out
// (DER, the leaf first).
type Signer func(sandboxID, name string, public *ecdsa.PublicKey) (chain [][]byte, err error)

// Leaves keeps the TLS configurations that sandboxes are shown. It makes the
// leaves' keys; who signs them may be in another process. It is safe for
// concurrent use.
type Leaves struct {
	sign    Signer
	now     func() time.Time
	signing singleflight.Group

	mu      sync.Mutex
	configs *simplelru.LRU[leafKey, *leafConfig]
	forgets uint64 // so far
}

type leafKey struct{ sandbox, name string }

type leafConfig struct {
	tls   *tls.Config
	fresh window
}

// NewLeaves returns an empty Leaves.
func NewLeaves(sign Signer) *Leaves {
	l := &Leaves{sign: sign, now: time.Now}
	// The size is a positive constant, the only thing that can be wrong.
	l.configs, _ = simplelru.NewLRU[leafKey, *leafConfig](maxConfigs, nil)
	return l
}

// ServerConfig returns the TLS configuration that shows the sandbox a
// certificate for name, a host name or the text of an IP address. The
// configuration is shared: clone it before changing it.
func (l *Leaves) ServerConfig(sandboxID, name string) (*tls.Config, error) {
	k := leafKey{sandboxID, name}
	if c := l.cached(k); c != nil {
		return c, nil
	}
	name, err := canonical(name)
	if err != nil {
		return nil, err
	}
	k.name = name
	if c := l.cached(k); c != nil {
		return c, nil
	}
	// Neither an ID nor a name holds a space.
	v, err, _ := l.signing.Do(sandboxID+" "+name, func() (any, error) {
		if c := l.cached(k); c != nil {
			return c, nil
		}
		return l.make(k)
	})
	if err != nil {
		return nil, fmt.Errorf("certificate for %q in sandbox %q: %w", name, sandboxID, err)
	}
	return v.(*tls.Config), nil
}

// Forget drops what is kept for a sandbox.
func (l *Leaves) Forget(sandboxID string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forgets++
	for _, k := range l.configs.Keys() {
		if k.sandbox == sandboxID {
			l.configs.Remove(k)
		}
	}
}

func (l *Leaves) cached(k leafKey) *tls.Config {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c, ok := l.configs.Get(k); ok && c.fresh.contains(l.now()) {
		return c.tls
	}
	return nil
}

// make has a leaf signed and keeps it, unless its sandbox may have been
// forgotten meanwhile: then the signer is asked once more, who knows.
func (l *Leaves) make(k leafKey) (*tls.Config, error) {
	for {
		l.mu.Lock()
		before := l.forgets
		l.mu.Unlock()
		c, err := l.newConfig(k)
		if err != nil {
			return nil, err
		}
		l.mu.Lock()
		if l.forgets == before {
			l.configs.Add(k, c)
			l.mu.Unlock()
			return c.tls, nil
		}
		l.mu.Unlock()
	}
}

func (l *Leaves) newConfig(k leafKey) (*leafConfig, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	chain, err := l.sign(k.sandbox, k.name, &key.PublicKey)
	if err != nil {
		return nil, err
	}
	if len(chain) == 0 {
		return nil, errors.New("the signer returned no certificate")
	}
	leaf, err := x509.ParseCertificate(chain[0])
	if err != nil {
		return nil, err
	}
	c := &leafConfig{
		tls: &tls.Config{
			Certificates:                []tls.Certificate{{Certificate: chain, PrivateKey: key, Leaf: leaf}},
			MinVersion:                  tls.VersionTLS12,
			NextProtos:                  []string{"h2", "http/1.1", "http/1.0"},
			DynamicRecordSizingDisabled: true, // an answer goes in one write
		},
		fresh: window{leaf.NotBefore, l.now().Add(leafUse)},
	}
	if end := leaf.NotAfter; end.Before(c.fresh.to) {
		c.fresh.to = end
	}
	// Set, not left to crypto/tls: without keys of its own, a configuration
	// that GetConfigForClient returns shares the listener's, and a ticket of
	// one sandbox would be good at another.
	var ticketKey [32]byte
	rand.Read(ticketKey[:]) // never fails
	c.tls.SetSessionTicketKeys([][32]byte{ticketKey})
	return c, nil
}

// ServerConfig is [Leaves.ServerConfig] with leaves that this authority signs.
//
// It does not make an authority: a sandbox that Root was not called for, or that
// was forgotten, gets ErrNoAuthority.
func (a *Authority) ServerConfig(sandboxID, name string) (*tls.Config, error) {
	return a.leaves.ServerConfig(sandboxID, name)
}

// Sign is a [Signer], for a Leaves in another process: it takes any name and any
// key on P-256. A sandbox that Root was not called for, or that was forgotten,
// gets ErrNoAuthority.
func (a *Authority) Sign(sandboxID, name string, public *ecdsa.PublicKey) (chain [][]byte, err error) {
	name, err = canonical(name)
	if err != nil {
		return nil, err
	}
	if public.Curve != elliptic.P256() {
		return nil, errBadKey
	}
	i, err := a.issuer(sandboxID)
	if err != nil {
		return nil, err
	}
	leaf, err := newLeaf(name, public, i, a.now())
	if err != nil {
		return nil, err
	}
	if _, ok := a.lineage(sandboxID); !ok {
		return nil, ErrNoAuthority // forgotten meanwhile
	}
	return [][]byte{leaf.Raw, i.cert.Raw}, nil
}

// canonical returns a name in lower case without trailing dot, or the usual text
// of an address. A wildcard is no name.
func canonical(name string) (string, error) {
	if addr, err := netip.ParseAddr(name); err == nil && addr.Zone() == "" {
		return addr.Unmap().String(), nil
	}
	n := strings.ToLower(strings.TrimSuffix(name, "."))
	if !hostname.Valid(n) {
		return "", fmt.Errorf("%w: %q", errBadName, name)
	}
	return n, nil
}
