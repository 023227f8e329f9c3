package credential

import (
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
)

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
