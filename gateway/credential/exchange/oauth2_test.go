package exchange_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"sallyport/gateway/credential"
	"sallyport/gateway/credential/exchange"
	"sallyport/internal/test/must"
	"sallyport/policy"
)

// Each grant and each way to authenticate, against a real provider.
func TestOAuth2(t *testing.T) {
	p := startProvider(t)
	signed := &policy.Assertion{KeyID: "k1", Audience: p.Issuer}
	for name, tt := range map[string]struct {
		exchange policy.OAuth2Exchange
		fields   fixed
		login    string // of the client whose user has logged in
	}{
		"client credentials, basic": {policy.OAuth2Exchange{ClientID: "sid1", Scopes: []string{"openid"}}, fixed{"clientSecret": "verysecret"}, ""},
		"client credentials, post":  {policy.OAuth2Exchange{ClientID: "sid1", ClientAuth: policy.ClientAuthPost}, fixed{"anything": "verysecret"}, ""},
		"JWT bearer":                {policy.OAuth2Exchange{Grant: policy.GrantJWTBearer, ClientID: "keyed", Scopes: []string{"openid"}, Assertion: signed}, fixed{"privateKey": p.Key}, ""},
		"refresh token, basic":      {policy.OAuth2Exchange{Grant: policy.GrantRefreshToken, ClientID: "web"}, fixed{"clientSecret": "secret"}, "web"},
		"refresh token, post":       {policy.OAuth2Exchange{Grant: policy.GrantRefreshToken, ClientID: "web", ClientAuth: policy.ClientAuthPost}, fixed{"clientSecret": "secret"}, "web"},
		"refresh token, no secret":  {policy.OAuth2Exchange{Grant: policy.GrantRefreshToken, ClientID: "native"}, fixed{}, "native"},
		"refresh token, key":        {policy.OAuth2Exchange{Grant: policy.GrantRefreshToken, ClientID: "keyed", ClientAuth: policy.ClientAuthPrivateKeyJWT, Assertion: signed}, fixed{"privateKey": p.Key}, "keyed"},
	} {
		t.Run(name, func(t *testing.T) {
			kept := openStore(t)
			if tt.login != "" {
				tt.fields["refreshToken"] = p.get(t, "/login?client="+tt.login, "")
			}
			_, err := kept.Set("cred", secrets(tt.fields))
			must.OK(t, err)
			s, err := exchange.New(exchange.Options{
				Credential: "cred", Secret: kept.Source("cred"), Exchange: p.exchange(tt.exchange), Keeper: exchange.NewKeeper(kept), Embedded: true,
			})
			must.OK(t, err)
			defer s.Close()
			got, m := read(t, s)
			if len(got) != 1 || got["token"] == "" || time.Until(m.Expires) > 6*time.Minute || time.Until(m.Expires) < 4*time.Minute || !strings.HasPrefix(m.Version, "1@") {
				t.Errorf("got %d fields, version %s, expires %v", len(got), m.Version, m.Expires)
			}
			for name, value := range tt.fields {
				if got["token"] == value {
					t.Errorf("the token is the field %s", name)
				}
			}
			if tt.login != "" {
				var user struct {
					Subject string `json:"sub"`
				}
				must.OK(t, json.Unmarshal([]byte(p.get(t, "/userinfo", got["token"])), &user))
				if user.Subject != "id1" {
					t.Errorf("the token is %q's", user.Subject)
				}
			}
		})
	}
}

// A refresh token that came in place of another is used from then on, by a new process too.
func TestRotatedRefreshToken(t *testing.T) {
	p := startProvider(t)
	web := p.exchange(policy.OAuth2Exchange{Grant: policy.GrantRefreshToken, ClientID: "web"})
	t.Run("embedded", func(t *testing.T) {
		kept := openStore(t)
		login := `{"claudeAiOauth":{"accessToken":"old","refreshToken":"` + p.get(t, "/login?client=web", "") + `","expiresAt":1}}`
		_, err := kept.Set("cred", secrets(map[string]string{"login": login, "clientSecret": "secret"}))
		must.OK(t, err)
		if _, err := exchange.New(exchange.Options{Credential: "cred", Secret: kept.Source("cred"), Exchange: web}); err == nil {
			t.Error("nothing keeps the refresh token")
		}
		// Two fields, and none is named refreshToken.
		if _, err := fresh(t, kept, kept.Source("cred"), web, true).Read(t.Context()); !errors.Is(err, credential.ErrNoSecret) || !strings.Contains(err.Error(), "refreshToken") {
			t.Error(err)
		}
		_, err = kept.Set("cred", secrets(map[string]string{"refreshToken": login, "clientSecret": "secret"}))
		must.OK(t, err)
		for i, version := range []string{"2@", "3@", "4@"} {
			if _, m := read(t, fresh(t, kept, kept.Source("cred"), web, true)); !strings.HasPrefix(m.Version, version) {
				t.Errorf("exchange %d has version %s", i, m.Version)
			}
		}
		if m, err := kept.Kept(t.Context(), "cred"); err != nil || m.Version != "5" || m.Fields["clientSecret"].Reveal() != "secret" || len(m.Fields) != 2 {
			t.Errorf("kept version %s with %d fields, %v", m.Version, len(m.Fields), err)
		}
	})
	t.Run("elsewhere", func(t *testing.T) {
		kept := openStore(t)
		inner := fixed{"refreshToken": p.get(t, "/login?client=web", ""), "clientSecret": "secret"}
		for range 3 {
			read(t, fresh(t, kept, inner, web, false))
		}
		// A login that was made anew counts more than what is kept of the last one.
		inner["refreshToken"] = p.get(t, "/login?client=web", "")
		for range 2 {
			read(t, fresh(t, kept, inner, web, false))
		}
	})
	t.Run("at once, over a reload", func(t *testing.T) {
		kept := openStore(t)
		_, err := kept.Set("cred", secrets(map[string]string{"refreshToken": p.get(t, "/login?client=web", ""), "clientSecret": "secret"}))
		must.OK(t, err)
		keeper := exchange.NewKeeper(kept)
		var wg sync.WaitGroup
		for range 4 {
			s, err := exchange.New(exchange.Options{Credential: "cred", Secret: kept.Source("cred"), Exchange: web, Keeper: keeper, Embedded: true})
			must.OK(t, err)
			t.Cleanup(s.Close)
			for range 4 {
				wg.Go(func() {
					if _, err := s.Read(t.Context()); err != nil {
						t.Error(err)
					}
				})
			}
		}
		wg.Wait()
	})
}

// fresh is a source as a new process has it.
func fresh(t *testing.T, kept store, inner credential.Source, e policy.Exchange, embedded bool) *exchange.Source {
	t.Helper()
	s, err := exchange.New(exchange.Options{Credential: "cred", Secret: inner, Exchange: e, Keeper: exchange.NewKeeper(kept), Embedded: embedded})
	must.OK(t, err)
	t.Cleanup(s.Close)
	return s
}

// full is a store that cannot be written to for some time.
type full struct {
	store
	refuse bool
}

func (f *full) Replace(name, after string, fields map[string]credential.Secret) (bool, error) {
	if f.refuse {
		return false, errors.New("no space left on device")
	}
	return f.store.Replace(name, after, fields)
}

// No access token is used before its refresh token is on disk, and none is lost.
func TestRefreshTokenThatCannotBeKept(t *testing.T) {
	p := startProvider(t)
	kept := &full{openStore(t), true}
	_, err := kept.Set("cred", secrets(map[string]string{"refreshToken": p.get(t, "/login?client=web", ""), "clientSecret": "secret"}))
	must.OK(t, err)
	s, err := exchange.New(exchange.Options{
		Credential: "cred", Secret: kept.Source("cred"), Keeper: exchange.NewKeeper(kept), Embedded: true,
		Exchange: p.exchange(policy.OAuth2Exchange{Grant: policy.GrantRefreshToken, ClientID: "web"}),
	})
	must.OK(t, err)
	defer s.Close()
	for range 2 {
		if _, err := s.Read(t.Context()); !errors.Is(err, credential.ErrUnavailable) || !strings.Contains(err.Error(), "no space left") {
			t.Fatalf("got %v", err)
		}
	}
	if n := p.count(t); n != 1 {
		t.Errorf("%d requests, want 1: the next would have ended the login", n)
	}
	kept.refuse = false
	read(t, s) // the token that came with the first answer
	if n := p.count(t); n != 1 {
		t.Errorf("%d requests, want 1", n)
	}
	read(t, s)
	if n := p.count(t); n != 2 {
		t.Errorf("%d requests, want 2", n)
	}
	// A secret that an operator sets meanwhile counts more.
	kept.refuse = true
	_, _ = s.Read(t.Context())
	_, err = kept.Set("cred", secrets(map[string]string{"refreshToken": p.get(t, "/login?client=web", ""), "clientSecret": "secret"}))
	must.OK(t, err)
	kept.refuse = false
	read(t, s)
	read(t, s)
}

// A thousand requests that need one token ask for it once.
func TestOneRequestForMany(t *testing.T) {
	p := startProvider(t)
	s := source(t, p.exchange(policy.OAuth2Exchange{ClientID: "sid1"}), fixed{"clientSecret": "verysecret"})
	b := credential.New(credential.Options{
		Sources: map[string]credential.Source{"cred": s},
		Bound:   func(string, string, uint16) bool { return true },
	})
	var wg sync.WaitGroup
	start := make(chan struct{})
	for range 1000 {
		wg.Go(func() {
			<-start
			if _, err := b.Lease(context.Background(), "cred", credential.Binding{Host: "api.example.com", Port: 443, Verified: true}); err != nil {
				t.Error(err)
			}
		})
	}
	close(start)
	wg.Wait()
	if n := p.count(t); n != 1 {
		t.Errorf("%d requests for 1,000 leases", n)
	}
}

// The provider's error reaches the operator, and nothing of the secret does.
func TestOAuth2Refused(t *testing.T) {
	p := startProvider(t)
	const wrong = "a-client-secret-that-is-wrong"
	for name, tt := range map[string]struct {
		exchange policy.OAuth2Exchange
		fields   fixed
		want     string
	}{
		"client": {policy.OAuth2Exchange{ClientID: "sid1"}, fixed{"clientSecret": wrong}, "invalid_client"},
		"key ID": {policy.OAuth2Exchange{Grant: policy.GrantJWTBearer, ClientID: "keyed", Assertion: &policy.Assertion{KeyID: "k2", Audience: p.Issuer}}, fixed{"privateKey": p.Key}, ""},
		"key":    {policy.OAuth2Exchange{Grant: policy.GrantJWTBearer, ClientID: "keyed"}, fixed{"privateKey": wrong}, "PEM"},
		"field":  {policy.OAuth2Exchange{ClientID: "sid1"}, fixed{"a": wrong, "b": wrong}, "clientSecret"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := source(t, p.exchange(tt.exchange), tt.fields).Read(t.Context())
			if !errors.Is(err, credential.ErrRefused) && !errors.Is(err, credential.ErrNoSecret) || err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), wrong) {
				t.Errorf("got %v", err)
			}
		})
	}
}
