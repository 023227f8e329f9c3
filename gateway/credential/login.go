package credential

import (
	"fmt"
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
	if err := l.allowed(c); err != nil {
		return nil, fmt.Errorf("logging in with %q: %w", l.Name, err)
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
	c := constant(nil, NewSecret(password)).keeps(used, fields)
	return c, map[string]Secret{FieldUsername: NewSecret(user), FieldPassword: NewSecret(password)}, nil
}
