// Package mitm keeps the TLS configurations that the gateway shows to sandboxes.
//
// It makes the leaves' keys; the certificate authority (package ca) signs the
// leaves, and its keys are never in this package. A leaf is signed again after a
// day. No session ticket of one sandbox or name is accepted at another.
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

// ErrBadName is the error for a name that no certificate is made for.
var ErrBadName = errors.New("not a host name or IP address")

// maxConfigs bounds the configurations in memory. Others are signed again.
const maxConfigs = 8192

// leafUse is how long a leaf, and the key of its session tickets, is used.
const leafUse = 24 * time.Hour

// Signer signs a leaf for a name, in its canonical form, that has the public
// key, and returns it with what is above it up to the root, which is left out
// (DER, the leaf first).
type Signer func(sandboxID, name string, public *ecdsa.PublicKey) (chain [][]byte, err error)

// Leaves keeps one TLS configuration for each sandbox and name, 8192 at most. The
// signer may be in another process. Leaves is safe for concurrent use.
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
	tls      *tls.Config
	from, to time.Time // when it is used
}

// NewLeaves returns an empty Leaves that tells the time by now.
func NewLeaves(sign Signer, now func() time.Time) *Leaves {
	l := &Leaves{sign: sign, now: now}
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
	name, err := Canonical(name)
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

// ForgetAll drops what is kept for all sandboxes.
func (l *Leaves) ForgetAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forgets++
	l.configs.Purge()
}

func (l *Leaves) cached(k leafKey) *tls.Config {
	l.mu.Lock()
	defer l.mu.Unlock()
	c, ok := l.configs.Get(k)
	if now := l.now(); !ok || now.Before(c.from) || !now.Before(c.to) {
		return nil
	}
	return c.tls
}

// make has a leaf signed and keeps it, unless its sandbox may have been
// forgotten meanwhile: then it asks the signer again, which knows.
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
		from: leaf.NotBefore, to: l.now().Add(leafUse),
	}
	if end := leaf.NotAfter; end.Before(c.to) {
		c.to = end
	}
	// Set, not left to crypto/tls: without keys of its own, a configuration
	// that GetConfigForClient returns shares the listener's, and a ticket of
	// one sandbox would be good at another.
	var ticketKey [32]byte
	rand.Read(ticketKey[:]) // never fails
	c.tls.SetSessionTicketKeys([][32]byte{ticketKey})
	return c, nil
}

// Canonical returns a host name in lower case without trailing dot, or the usual text
// of an address. A wildcard is an error.
func Canonical(name string) (string, error) {
	if addr, err := netip.ParseAddr(name); err == nil && addr.Zone() == "" {
		return addr.Unmap().String(), nil
	}
	n := strings.ToLower(strings.TrimSuffix(name, "."))
	if !hostname.Valid(n) {
		return "", fmt.Errorf("%w: %q", ErrBadName, name)
	}
	return n, nil
}
