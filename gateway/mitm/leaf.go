package mitm

import (
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"net/netip"
	"strings"
)

// ServerConfig returns the TLS configuration that shows the sandbox a
// certificate for name, a host name or the text of an IP address. The
// configuration is shared: clone it before changing it.
//
// It does not make an authority: a sandbox that Root was not called for, or that
// was forgotten, gets ErrNoAuthority.
func (a *Authority) ServerConfig(sandboxID, name string) (*tls.Config, error) {
	k := leafKey{sandboxID, name}
	if c := a.cachedConfig(k); c != nil {
		return c, nil
	}
	name, err := canonical(name)
	if err != nil {
		return nil, err
	}
	k.name = name
	if c := a.cachedConfig(k); c != nil {
		return c, nil
	}
	// Neither an ID nor a name holds a space.
	v, err, _ := a.signing.Do(sandboxID+" "+name, func() (any, error) {
		if c := a.cachedConfig(k); c != nil {
			return c, nil
		}
		return a.sign(k)
	})
	if err != nil {
		return nil, fmt.Errorf("certificate for %q in sandbox %q: %w", name, sandboxID, err)
	}
	return v.(*tls.Config), nil
}

func (a *Authority) cachedConfig(k leafKey) *tls.Config {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c, ok := a.configs.Get(k); ok && c.fresh.contains(a.now()) {
		return c.tls
	}
	return nil
}

func (a *Authority) sign(k leafKey) (*tls.Config, error) {
	i, err := a.issuer(k.sandbox)
	if err != nil {
		return nil, err
	}
	now := a.now()
	leaf, err := newLeaf(k.name, i, now)
	if err != nil {
		return nil, err
	}
	c := &leafConfig{
		tls: &tls.Config{
			Certificates: []tls.Certificate{{
				Certificate: [][]byte{leaf.cert.Raw, i.cert.Raw},
				PrivateKey:  leaf.key,
				Leaf:        leaf.cert,
			}},
			MinVersion: tls.VersionTLS12,
			NextProtos: []string{"h2", "http/1.1", "http/1.0"},
		},
		fresh: window{leaf.cert.NotBefore, now.Add(leafUse)},
	}
	if end := leaf.cert.NotAfter; end.Before(c.fresh.to) {
		c.fresh.to = end
	}
	// Set, not left to crypto/tls: without keys of its own, a configuration
	// that GetConfigForClient returns shares the listener's, and a ticket of
	// one sandbox would be good at another.
	var ticketKey [32]byte
	rand.Read(ticketKey[:]) // never fails
	c.tls.SetSessionTicketKeys([][32]byte{ticketKey})

	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.members[k.sandbox]; !ok {
		return nil, ErrNoAuthority // forgotten meanwhile
	}
	a.configs.Add(k, c)
	return c.tls, nil
}

// canonical returns a name in lower case without trailing dot, or the usual text
// of an address. A wildcard is no name.
func canonical(name string) (string, error) {
	if addr, err := netip.ParseAddr(name); err == nil && addr.Zone() == "" {
		return addr.Unmap().String(), nil
	}
	n := strings.ToLower(strings.TrimSuffix(name, "."))
	if n == "" || len(n) > 253 {
		return "", fmt.Errorf("%w: %q", errBadName, name)
	}
	for label := range strings.SplitSeq(n, ".") {
		if !hostLabel(label) {
			return "", fmt.Errorf("%w: %q", errBadName, name)
		}
	}
	return n, nil
}

// hostLabel is RFC 1123's, and the underscore that is in use.
func hostLabel(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '_':
		case c == '-' && 0 < i && i < len(s)-1:
		default:
			return false
		}
	}
	return 0 < len(s) && len(s) <= 63
}
