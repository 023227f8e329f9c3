package credential

import (
	"context"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Login is a Source whose secret, a username and a password, may also be given to the
// proxies that a policy's rules name and to registries of images. The others that may lease
// it are unchanged.
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
	fields, err := b.granted(ctx, name, "proxy "+proxy, fmt.Sprintf("no rule with proxyAuthRef %q goes through it", name),
		func(e *entry) bool { return slices.Contains(e.proxies, proxy) })
	if err != nil {
		return Secret{}, Secret{}, err
	}
	username, hasName := fields["username"]
	password, hasPassword := fields["password"]
	if !hasName || !hasPassword {
		return Secret{}, Secret{}, fmt.Errorf("leasing %q: %w for a proxy, which asks for the fields username and password", name, ErrNoSecret)
	}
	return username, password, nil
}

// SinkLogin returns the fields of the named credential for a sink of the audit log. Its
// errors are Lease's: ErrNotBound when the configuration names it for no such sink.
func (b *Broker) SinkLogin(ctx context.Context, name, sink string) (map[string]Secret, error) {
	fields, err := b.granted(ctx, name, "audit sink "+sink, "audit.sinks in sallyport.yaml does not name it for that",
		func(e *entry) bool { return slices.Contains(e.sinks, sink) })
	return maps.Clone(fields), err
}

// granted reads the fields of a credential for a use that may be made of it. The use and
// the hint are for the error of one that may not.
func (b *Broker) granted(ctx context.Context, name, use, hint string, may func(*entry) bool) (map[string]Secret, error) {
	e, ok := b.current.Load().entries[name]
	switch {
	case !ok:
		return nil, fmt.Errorf("leasing %q: %w: add it to credentials in sallyport.yaml", name, ErrUnknown)
	case !may(e):
		return nil, fmt.Errorf("leasing %q for the %s: %w: %s", name, use, ErrNotBound, hint)
	}
	s, err := e.get(ctx)
	if err != nil {
		return nil, fmt.Errorf("leasing %q: %w", name, err)
	}
	return s.material.Fields, nil
}

// RegistryLogin is what a registry of images is shown: a username and a password, or
// a token.
type RegistryLogin struct{ username, password, token Secret }

// RegistryLogin returns the fields username and password of the named credential, or
// else token, to log in with at a registry of images. Its errors are Lease's: ErrNotBound
// when the configuration names it for no such registry, ErrNoSecret also when a field
// is missing.
func (b *Broker) RegistryLogin(ctx context.Context, name, registry string) (*RegistryLogin, error) {
	fields, err := b.granted(ctx, name, "registry "+registry, "registries in sallyport.yaml does not name it for that",
		func(e *entry) bool { return slices.Contains(e.registries, registry) })
	if err != nil {
		return nil, err
	}
	l := &RegistryLogin{username: fields["username"], password: fields["password"], token: fields["token"]}
	if l.username.Reveal() != "" && l.password.Reveal() != "" {
		l.token = Secret{}
		return l, nil
	}
	if l.token.Reveal() == "" {
		return nil, fmt.Errorf("leasing %q: %w for a registry, which asks for the fields username and password, or for token", name, ErrNoSecret)
	}
	l.username, l.password = Secret{}, Secret{}
	return l, nil
}

// Reveal returns the username and the password, or the token. Call it where they are
// sent to the registry, and nowhere else.
func (l *RegistryLogin) Reveal() (username, password, token string) {
	return l.username.Reveal(), l.password.Reveal(), l.token.Reveal()
}

// Hide returns a text that may be the registry's, or that it holds the secret in one of
// the spellings that a Scrubber finds.
func (l *RegistryLogin) Hide(text string) string {
	username, password, token := l.Reveal()
	basic := base64.StdEncoding.EncodeToString([]byte(username + ":" + password))
	// A Scrubber looks for none that is short.
	plain := slices.ContainsFunc([]string{password, token}, func(s string) bool { return s != "" && strings.Contains(text, s) })
	if plain || newScrubber([]Secret{l.password, l.token, NewSecret(basic)}).In(text) {
		return "(this is left out: it holds the secret that the registry was shown)"
	}
	return text
}
