package vault

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
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

	mu      sync.Mutex
	expires time.Time
	logins  int
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
func (s *session) serial() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.logins
}

// until is when the token ends, zero where that is not known or never.
func (s *session) until() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.expires
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
		s.mu.Lock()
		s.logins++
		s.mu.Unlock()
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
	var expires time.Time
	if life := time.Duration(auth.LeaseDuration) * time.Second; life > 0 {
		s.renewAt, expires = time.Now().Add(life*2/3), time.Now().Add(life)
	}
	s.mu.Lock()
	s.expires = expires
	s.mu.Unlock()
}

// mountLogin logs in at a mount of one of Vault's auth methods.
type mountLogin struct {
	client *Client
	what   string // AppRole
	key    string // of the configuration
	mount  string
	remedy string // for a login that is refused
	data   func(context.Context) (map[string]any, error)
}

func (m *mountLogin) replaced(context.Context, string) bool { return false }

func (m *mountLogin) login(ctx context.Context) (*api.SecretAuth, error) {
	data, err := m.data(ctx)
	if err != nil {
		return nil, err
	}
	client, err := m.client.with("")
	if err != nil {
		return nil, err
	}
	got, err := client.Logical().WriteWithContext(ctx, "auth/"+m.mount+"/login", data)
	switch code := status(err); {
	case code == http.StatusBadRequest || code == http.StatusForbidden && !says(err, "sealed"):
		return nil, fmt.Errorf("%w: logging in: Vault at %s takes this login not; check %s, %s", credential.ErrRefused, m.client.address, m.key, m.remedy)
	case err != nil:
		return nil, m.client.explain("logging in with "+m.what, "", err)
	case got == nil || got.Auth == nil || got.Auth.ClientToken == "":
		return nil, fmt.Errorf("%w: logging in: Vault at %s has no %s at auth/%s; check %s.mount", credential.ErrRefused, m.client.address, m.what, m.mount, m.key)
	}
	return got.Auth, nil
}

// tokenFile logs in with the token in a file, such as Vault Agent keeps fresh. The file
// is small and calls are rare, so it is read each time.
type tokenFile struct {
	client *Client
	file   *secretFile
	given  string
}

func (f *tokenFile) replaced(ctx context.Context, _ string) bool {
	word, err := f.file.word(ctx)
	return err != nil || word != f.given
}

func (f *tokenFile) login(ctx context.Context) (*api.SecretAuth, error) {
	word, err := f.file.word(ctx)
	if err != nil {
		return nil, err
	}
	f.given = word
	auth := &api.SecretAuth{ClientToken: word}
	client, err := f.client.with(word)
	if err != nil {
		return nil, err
	}
	got, err := client.Auth().Token().LookupSelfWithContext(ctx)
	switch code := status(err); {
	case err != nil && (code == 0 || code == http.StatusTooManyRequests || code >= 500):
		return nil, f.client.explain("asking how long our token lives", "", err)
	case err == nil: // else this token cannot ask
		if life, err := got.TokenTTL(); err == nil {
			auth.LeaseDuration = int(life / time.Second)
		}
		auth.Renewable, _ = got.TokenIsRenewable()
	}
	return auth, nil
}
