package credential

import (
	"context"
	"fmt"
	"slices"
)

// Login is a Source whose secret, a username and a password, may also be given to the
// proxies that a policy's rules name and to registries of images. Who else may lease it is
// unchanged.
type Login struct {
	Source
	// Proxies lists them as scheme://host:port.
	Proxies []string
	// Registries are those of images that are logged in to with it, as names begin.
	Registries []string
	// Sinks are those of the audit log that send it to their receivers. With one, nobody
	// leases it.
	Sinks []string
}

// Login returns the fields username and password of the named credential, to log
// in with at a proxy. Its errors are Lease's: ErrNotBound when no rule uses the
// credential for this proxy, ErrNoSecret also when a field is missing.
func (b *Broker) Login(ctx context.Context, name, proxy string) (username, password Secret, err error) {
	e, ok := b.current.Load().entries[name]
	switch {
	case !ok:
		return Secret{}, Secret{}, fmt.Errorf("leasing %q: %w: add it to credentials in sallyport.yaml", name, ErrUnknown)
	case !slices.Contains(e.proxies, proxy):
		return Secret{}, Secret{}, fmt.Errorf("leasing %q for the proxy %s: %w: no rule with proxyAuthRef %q goes through it", name, proxy, ErrNotBound, name)
	}
	s, err := e.get(ctx, b.timeout)
	if err != nil {
		return Secret{}, Secret{}, fmt.Errorf("leasing %q: %w", name, err)
	}
	username, hasName := s.material.Fields["username"]
	password, hasPassword := s.material.Fields["password"]
	if !hasName || !hasPassword {
		return Secret{}, Secret{}, fmt.Errorf("leasing %q: %w for a proxy, which asks for the fields username and password", name, ErrNoSecret)
	}
	return username, password, nil
}
