// Package exchange trades a credential's long-lived secret for a short-lived token.
//
// A [Source] stands between the secret's own source and the broker: it reads the secret,
// shows it to a token endpoint (or signs a token with it) and returns the token alone, so
// that nothing beyond the daemon ever has the secret. Endpoints are asked over verified
// TLS; redirects are not followed and the proxy environment is not asked. A request is
// bounded in time and its answer in size. Errors say what the endpoint answered by its error
// code and description, and never hold a part of the secret's fields.
//
// It does not cache: the broker keeps a token until it expires, renews it before, and has
// all that wait for one share a request.
package exchange

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"sallyport/gateway/credential"
	"sallyport/policy"
)

const (
	// within bounds an exchange, all its requests together.
	within = 10 * time.Second
	// ttl bounds how long a token is used, whatever its endpoint says.
	ttl = 24 * time.Hour
	// unsaid is how long a token is used whose endpoint does not say.
	unsaid = time.Hour
)

// Source is a credential whose secret is exchanged. Its material has the field token, or
// for AWS accessKeyId, secretAccessKey and sessionToken, and says when it expires.
type Source struct {
	inner    credential.Source
	embedded bool // in the store of refresh tokens
	trade    trade
	login    *login  // of a refresh token, or nil
	client   *client // or nil
}

// trade exchanges a secret.
type trade func(ctx context.Context, s *secret) (*traded, error)

// traded is what a secret was exchanged for.
type traded struct {
	fields  map[string]credential.Secret
	expires time.Time // zero: not said
	refresh string    // the refresh token to use from now on, or empty
}

func token(value string, expires time.Time) *traded {
	return &traded{fields: map[string]credential.Secret{"token": credential.NewSecret(value)}, expires: expires}
}

// Options configure a Source.
type Options struct {
	// Credential is its name.
	Credential string
	// Secret is the source of what is exchanged.
	Secret credential.Source
	// Exchange says for what.
	Exchange policy.Exchange
	// Keeper keeps the refresh tokens that come in place of others. It is needed for
	// the grant refreshToken alone.
	Keeper *Keeper
	// Embedded says that Secret is the Keeper's own store.
	Embedded bool
}

// New returns a Source. It reads the roots and talks to nobody.
func New(o Options) (*Source, error) {
	if _, each := o.Secret.(credential.PerSandbox); each {
		return nil, fmt.Errorf("credential %q: exchange: its source has a secret for each sandbox, which is short-lived already: remove exchange", o.Credential)
	}
	s := &Source{inner: o.Secret, embedded: o.Embedded}
	e := o.Exchange
	var err error
	switch {
	case e.OAuth2 != nil:
		if e.OAuth2.Grant == policy.GrantRefreshToken {
			if s.login, err = o.Keeper.login(o.Credential); err != nil {
				return nil, err
			}
		}
		s.client, err = newClient(e.OAuth2.Roots, e.OAuth2.JSON)
		s.trade = (&oauth2Exchange{*e.OAuth2, s.client}).trade
	case e.JWT != nil:
		s.trade = jwtExchange(*e.JWT).trade
	case e.GitHubApp != nil:
		s.client, err = newClient(e.GitHubApp.Roots, false)
		s.trade = (&gitHubApp{*e.GitHubApp, s.client}).trade
	case e.GCP != nil:
		s.client, err = newClient(e.GCP.Roots, false)
		s.trade = (&gcp{*e.GCP, s.client}).trade
	case e.Azure != nil:
		s.client, err = newClient(e.Azure.Roots, false)
		s.trade = (&azure{*e.Azure, s.client}).trade
	case e.AWS != nil:
		s.client, err = newClient(e.AWS.Roots, false)
		s.trade = (&awsRole{*e.AWS, s.client}).trade
	default:
		err = errors.New("exchange: names nothing to exchange the secret for")
	}
	if err != nil {
		return nil, fmt.Errorf("credential %q: exchange: %w", o.Credential, err)
	}
	return s, nil
}

// Close closes idle connections. Later reads open new ones.
func (s *Source) Close() {
	if s.client != nil {
		s.client.http.CloseIdleConnections()
	}
}

// TTL bounds the use of a token whose own end is further away.
func (s *Source) TTL() time.Duration { return ttl }

// Read exchanges the secret as it is now.
func (s *Source) Read(ctx context.Context) (credential.Material, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	if s.login != nil {
		return s.login.read(ctx, s)
	}
	m, err := s.inner.Read(ctx)
	if err != nil {
		return credential.Material{}, err
	}
	got, err := s.exchange(ctx, m)
	if err != nil {
		return credential.Material{}, err
	}
	return material(got, m), nil
}

// exchange trades the material's secret. Its errors have nothing of the secret in them.
func (s *Source) exchange(ctx context.Context, m credential.Material) (*traded, error) {
	held := &secret{fields: m.Fields}
	got, err := s.trade(ctx, held)
	if err != nil {
		return nil, explain(err, held)
	}
	for name, value := range got.fields {
		if strings.TrimSpace(value.Reveal()) == "" {
			return nil, fmt.Errorf("%w: the endpoint's answer has an empty %s", credential.ErrUnavailable, name)
		}
	}
	return got, nil
}

// material is a token as the broker has it. Its version names the secret's and when
// it was exchanged.
func material(got *traded, from credential.Material) credential.Material {
	now := time.Now().UTC()
	if got.expires.IsZero() {
		got.expires = now.Add(unsaid)
	}
	return credential.Material{
		Fields: got.fields, Accessor: from.Accessor, Expires: got.expires,
		Version: strings.TrimPrefix(from.Version+"@"+now.Format("2006-01-02T15:04:05.000Z"), "@"),
	}
}

// secret is the long-lived one.
type secret struct {
	fields map[string]credential.Secret
	shown  []string // what was made of it and sent
}

// field returns the field of the name, or the only one.
func (s *secret) field(name string) (string, error) {
	value, ok := s.fields[name]
	if !ok && len(s.fields) == 1 {
		for _, only := range s.fields {
			value, ok = only, true
		}
	}
	if !ok || value.Reveal() == "" {
		return "", fmt.Errorf("%w to exchange: it lacks the field %s", credential.ErrNoSecret, name)
	}
	return value.Reveal(), nil
}

// optional returns the field of the name, or nothing.
func (s *secret) optional(name string) string { return s.fields[name].Reveal() }
