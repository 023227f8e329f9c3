package exchange

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"sallyport/gateway/credential"
)

// Store is the embedded store of secrets, as far as a Keeper needs it.
type Store interface {
	// Kept reads a secret by the name of a credential. Its error wraps
	// credential.ErrNoSecret if nothing is kept.
	Kept(ctx context.Context, name string) (credential.Material, error)
	// Replace durably sets the version of a secret that comes after another one, "" for
	// none. If that is not the newest, it changes nothing and returns false.
	Replace(name, after string, fields map[string]credential.Secret) (bool, error)
}

// Keeper keeps refresh tokens that servers replace (RFC 6749, section 6). A token that
// came in place of another is on disk before its access token is used, and no two
// requests are made with one token, also while a new configuration takes over. It is
// safe for concurrent use.
//
// A crash between a server's answer and the write loses the login where the server
// takes no token twice: no client can prevent that.
type Keeper struct {
	store Store

	mu     sync.Mutex
	logins map[string]*login
}

// NewKeeper returns a Keeper.
func NewKeeper(store Store) *Keeper { return &Keeper{store: store, logins: map[string]*login{}} }

// login is the refresh token of one credential.
type login struct {
	keeper *Keeper
	name   string

	turn    chan struct{} // held while the token is in use
	pending *pending
}

// pending is what could not be kept yet.
type pending struct {
	after  string
	fields map[string]credential.Secret
	used   credential.Material // that it was exchanged for
}

func (k *Keeper) login(name string) (*login, error) {
	if k == nil {
		return nil, errors.New("refreshToken: nothing keeps the refresh tokens that come in place of others")
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.logins[name]
	if l == nil {
		l = &login{keeper: k, name: name, turn: make(chan struct{}, 1)}
		k.logins[name] = l
	}
	return l, nil
}

// Fields of the store for a refresh token whose secret has another source.
const (
	originField  = "origin"       // the source's token
	refreshField = "refreshToken" // what came in its place
)

// read exchanges the newest refresh token and keeps the one that comes in its place.
func (l *login) read(ctx context.Context, s *Source) (credential.Material, error) {
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return credential.Material{}, fmt.Errorf("%w: waiting for another request with its refresh token: %w", credential.ErrUnavailable, ctx.Err())
	}
	if p := l.pending; p != nil {
		if err := l.keep(p); err != nil {
			return credential.Material{}, err
		}
		if time.Now().Before(p.used.Expires) {
			return p.used, nil
		}
	}
	m, err := s.inner.Read(ctx)
	if err != nil {
		return credential.Material{}, err
	}
	refresh, field, err := (&secret{fields: m.Fields}).refreshToken()
	if err != nil {
		return credential.Material{}, err
	}
	p := &pending{after: m.Version}
	if !s.embedded {
		kept, err := l.keeper.store.Kept(ctx, l.name)
		if err != nil && !errors.Is(err, credential.ErrNoSecret) {
			return credential.Material{}, err
		}
		p.after = kept.Version
		if newer := kept.Fields[refreshField].Reveal(); newer != "" && kept.Fields[originField].Reveal() == refresh {
			m.Fields = with(m.Fields, field, newer)
		}
		p.fields = map[string]credential.Secret{originField: credential.NewSecret(refresh)}
	}
	got, err := s.exchange(ctx, m)
	if err != nil {
		return credential.Material{}, err
	}
	p.used = material(got, m)
	if got.refresh == "" {
		return p.used, nil
	}
	if p.fields == nil {
		p.fields = with(m.Fields, field, got.refresh)
	} else {
		p.fields[refreshField] = credential.NewSecret(got.refresh)
	}
	return p.used, l.keep(p)
}

// keep writes a refresh token. One that could not be written is tried again before
// anything else is done with the login.
func (l *login) keep(p *pending) error {
	// Where it is not replaced, an operator has set a login, which is newer.
	_, err := l.keeper.store.Replace(l.name, p.after, p.fields)
	if err == nil {
		l.pending = nil
		return nil
	}
	l.pending = p
	return fmt.Errorf("%w: the refresh token that came in place of the last one could not be kept, and its access token is not used before: %w", credential.ErrUnavailable, err)
}

// with returns the fields with a refresh token in place of the one in a field.
func with(fields map[string]credential.Secret, field, refresh string) map[string]credential.Secret {
	fields = maps.Clone(fields)
	delete(fields, field)
	fields[refreshField] = credential.NewSecret(refresh)
	return fields
}

// refreshToken returns the refresh token and the field that has it. The field may hold
// the JSON in which a program keeps its login, with a refreshToken or refresh_token
// somewhere in it.
func (s *secret) refreshToken() (token, field string, err error) {
	text, err := s.field(refreshField)
	if err != nil {
		return "", "", err
	}
	field = refreshField
	if _, named := s.fields[field]; !named {
		for field = range s.fields {
		}
	}
	var login map[string]any
	if json.Unmarshal([]byte(text), &login) != nil {
		return text, field, nil
	}
	found := refreshTokens(login)
	if len(found) != 1 {
		return "", "", fmt.Errorf("%w to exchange: its JSON has %d refresh tokens in it; set the field %s to the one", credential.ErrNoSecret, len(found), refreshField)
	}
	return found[0], field, nil
}

func refreshTokens(object map[string]any) (found []string) {
	for name, value := range object {
		switch v := value.(type) {
		case string:
			if (name == refreshField || name == "refresh_token") && v != "" {
				found = append(found, v)
			}
		case map[string]any:
			found = append(found, refreshTokens(v)...)
		}
	}
	return found
}
