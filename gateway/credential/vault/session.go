package vault

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/hashicorp/vault/api"

	"sallyport/gateway/credential"
)

// session is a token: got by a login, renewed when two thirds of its life are over, and
// replaced by another login when that fails or Vault refuses it. All of it happens when a
// call needs it, or while leases hang on it (see Leases); an idle Client does nothing.
type session struct {
	client *Client
	method method
	log    *slog.Logger

	turn    chan struct{} // held by who reads or changes what follows
	current string
	renewAt time.Time // zero: the token does not expire
	renews  bool

	expires atomic.Pointer[time.Time] // nil: not known, or never
	logins  atomic.Int64
}

// method is one way to log in.
type method interface {
	// login returns a token. Its errors are package credential's.
	login(context.Context) (*api.SecretAuth, error)
	// replaced reports whether there is another token than the one that login gave.
	replaced(ctx context.Context, current string) bool
}

func newSession(v *Client, m method, log *slog.Logger) *session {
	return &session{client: v, method: m, log: log, turn: make(chan struct{}, 1)}
}

// serial is another number after each login: leases end with the token of their login.
func (s *session) serial() int64 { return s.logins.Load() }

// until is when the token ends, zero where that is not known or never.
func (s *session) until() (t time.Time) {
	if at := s.expires.Load(); at != nil {
		t = *at
	}
	return t
}

// token is the one to use now.
func (s *session) token(ctx context.Context) (string, error) {
	if err := s.take(ctx); err != nil {
		return "", err
	}
	defer s.give()
	now, expires := time.Now(), s.until()
	switch {
	case s.current == "" || !expires.IsZero() && !now.Before(expires) || s.method.replaced(ctx, s.current):
		return s.login(ctx)
	case s.renewAt.IsZero() || now.Before(s.renewAt):
		return s.current, nil
	}
	if s.renews {
		err := s.renew(ctx)
		if err == nil {
			return s.current, nil
		}
		if errors.Is(err, credential.ErrUnavailable) { // the rest of its life is there for that
			return s.current, nil
		}
		s.log.Warn("the Vault token could not be renewed; logging in again", "error", err)
	}
	token, err := s.login(ctx)
	if err != nil && time.Now().Before(expires) {
		// The rest of the token's life is there for mending the cause.
		s.log.Warn("logging in to Vault failed; the token still lives", "error", err, "until", expires)
		return s.current, nil
	}
	return token, err
}

// renewed logs in again, unless another reader has done so meanwhile.
func (s *session) renewed(ctx context.Context, refused string) (bool, error) {
	if err := s.take(ctx); err != nil {
		return false, err
	}
	defer s.give()
	if s.current != refused {
		return true, nil
	}
	s.log.Info("Vault refused the token; logging in again")
	s.current = ""
	token, err := s.login(ctx)
	return err == nil && token != refused, err
}

func (s *session) take(ctx context.Context) error {
	select {
	case s.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: waiting to log in to Vault: %w", credential.ErrUnavailable, ctx.Err())
	}
}

func (s *session) give() { <-s.turn }

func (s *session) login(ctx context.Context) (string, error) {
	auth, err := s.method.login(ctx)
	if err != nil {
		return "", err
	}
	if auth.ClientToken != s.current {
		s.logins.Add(1)
	}
	s.keep(auth)
	return s.current, nil
}

func (s *session) renew(ctx context.Context) error {
	client, err := s.client.with(s.current)
	if err != nil {
		return err
	}
	got, err := client.Auth().Token().RenewSelfWithContext(ctx, 0)
	if err != nil {
		return s.client.explain("renewing our token", "", err)
	}
	if got == nil || got.Auth == nil {
		return fmt.Errorf("%w: Vault's answer to a renewal has no token", credential.ErrUnavailable)
	}
	// At the end of its longest life Vault renews by ever less.
	before := s.until()
	s.keep(got.Auth)
	if !s.until().After(before) {
		return errors.New("the token has reached its longest life")
	}
	return nil
}

func (s *session) keep(auth *api.SecretAuth) {
	s.current, s.renews = auth.ClientToken, auth.Renewable
	s.renewAt = time.Time{}
	var expires *time.Time
	if life := time.Duration(auth.LeaseDuration) * time.Second; life > 0 {
		end := time.Now().Add(life)
		s.renewAt, expires = end.Add(-life/3), &end
	}
	s.expires.Store(expires)
}
