package credential

import (
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"

	"sallyport/policy"
)

// The fields of a secret that logs in over SSH, and the names of what a login by name and
// password returns.
const (
	FieldPrivateKey  = "privateKey"  // PEM
	FieldPassphrase  = "passphrase"  // of an encrypted private key
	FieldCertificate = "certificate" // a line of authorized_keys
	FieldSignedKey   = "signed_key"  // the same, as Vault's ssh/sign calls it
	FieldUsername    = "username"
	FieldPassword    = "password"
)

// LogIn returns what an injection that logs in over a protocol of its own does so with: for
// ssh the secret's fields, for postgres and redis a username and a password. Its errors
// are those of Apply, and never have the secret in them. The caller sends it to the
// lease's destination alone, and what is secret only once it has verified the server.
func (l *Lease) LogIn(i policy.Inject) (map[string]Secret, error) {
	c, values, err := composeLogin(i, l.secret.material.Fields)
	if err != nil {
		return nil, fmt.Errorf("logging in with %q: %w", l.Name, err)
	}
	for _, field := range c.short {
		if !l.short(l.Name, field) {
			return nil, fmt.Errorf("logging in with %q: field %q: %w: set a longer one, or name the field in allowShort of the credential", l.Name, field, ErrShort)
		}
	}
	l.applied = append(l.applied, c)
	return values, nil
}

func composeLogin(i policy.Inject, fields map[string]Secret) (*composed, map[string]Secret, error) {
	if i.SSH != nil {
		key := fields[FieldPrivateKey].Reveal()
		if key == "" {
			return nil, nil, fmt.Errorf("%w: it has no field %s", ErrNoSecret, FieldPrivateKey)
		}
		// A terminal has it with other ends of lines.
		c := constant(nil, NewSecret(key), NewSecret(strings.ReplaceAll(strings.TrimSpace(key), "\n", "\r\n")))
		c.secret = []string{FieldPrivateKey}
		if fields[FieldPassphrase].Reveal() != "" {
			c.secret = append(c.secret, FieldPassphrase)
		}
		return c, fields, nil
	}
	in := i.Postgres
	if in == nil {
		in = i.Redis
	}
	if in == nil {
		return nil, nil, fmt.Errorf("the injection is no login")
	}
	user, names, err := execute(in.Username, fields)
	if err != nil && in.Username != "" {
		return nil, nil, fmt.Errorf("username: %w", err)
	}
	password, used, err := execute(in.Password, fields)
	if err != nil {
		return nil, nil, fmt.Errorf("password: %w", err)
	}
	if strings.TrimSpace(password) == "" {
		return nil, nil, fmt.Errorf("%w: the password comes to nothing", ErrNoSecret)
	}
	if len(used) == 0 {
		used = names
	}
	c := constant(nil, NewSecret(password), NewSecret(password)).keeps(used, fields)
	return c, map[string]Secret{FieldUsername: NewSecret(user), FieldPassword: NewSecret(password)}, nil
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
