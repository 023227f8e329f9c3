package exchange_test

import (
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sallyport/gateway/credential"
	"sallyport/gateway/credential/exchange"
	"sallyport/internal/test/must"
	"sallyport/policy"
)

func TestEndpoint(t *testing.T) {
	const value = "a-long-lived-client-secret"
	for name, tt := range map[string]struct {
		answer http.HandlerFunc
		is     error
		want   []string
	}{
		"says why": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadRequest)
			io.WriteString(w, `{"error":"invalid_scope","error_description":"no such scope\u001b[31m","error_uri":"x"}`)
		}, credential.ErrRefused, []string{"400", "invalid_scope no such scope", `\x1b[31m`}},
		"repeats the secret": {func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusUnauthorized)
			_, password, _ := r.BasicAuth()
			io.WriteString(w, `{"error":"invalid_client","error_description":"`+password+` is wrong"}`)
		}, credential.ErrRefused, []string{"401", "left out"}},
		"is no token endpoint": {func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusNotFound)
			io.WriteString(w, "no page "+value)
		}, credential.ErrRefused, []string{"404", "does not say why"}},
		"is busy":  {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTooManyRequests) }, credential.ErrUnavailable, []string{"429"}},
		"fails":    {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }, credential.ErrUnavailable, []string{"500"}},
		"no token": {func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, `{"token_type":"bearer"}`) }, credential.ErrUnavailable, []string{"access_token"}},
		"another clock": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Date", time.Now().Add(5*time.Minute).UTC().Format(http.TimeFormat))
			w.WriteHeader(http.StatusBadRequest)
			io.WriteString(w, `{"error":"invalid_grant"}`)
		}, credential.ErrRefused, []string{"clock of this host", "behind"}},
		"too large": {func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, `{"x":"`+strings.Repeat("x", 300<<10)+`","access_token":"far-behind"}`)
		}, credential.ErrUnavailable, nil},
	} {
		t.Run(name, func(t *testing.T) {
			server, roots := endpoint(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				tt.answer(w, r)
			})
			e := policy.Exchange{OAuth2: &policy.OAuth2Exchange{TokenURL: server.URL, ClientID: "agent", Roots: roots}}
			_, err := source(t, e, fixed{"clientSecret": value}).Read(t.Context())
			if !errors.Is(err, tt.is) || strings.Contains(err.Error(), value) {
				t.Errorf("got %v", err)
			}
			for _, want := range tt.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, want %s", err, want)
				}
			}
		})
	}
}

// A secret is not sent after a redirect, to a server that is not verified, in the clear or
// through a proxy of the environment.
func TestSecretGoesNowhereElse(t *testing.T) {
	other, _ := endpoint(t, func(http.ResponseWriter, *http.Request) { t.Error("a request came to another server") })
	t.Setenv("HTTPS_PROXY", other.URL)
	t.Setenv("NO_PROXY", "")
	answers := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"access_token":"short-lived"}`)
	}
	redirects, roots := endpoint(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
	})
	good, goodRoots := endpoint(t, answers, "auth.example.com")
	for name, tt := range map[string]struct{ url, roots, want string }{
		"redirect":    {redirects.URL, roots, "redirect"},
		"not trusted": {good.URL, roots, "roots of the exchange"},
		"in clear":    {strings.Replace(good.URL, "https:", "http:", 1), goodRoots, "not https"},
	} {
		t.Run(name, func(t *testing.T) {
			e := policy.Exchange{OAuth2: &policy.OAuth2Exchange{TokenURL: tt.url, ClientID: "agent", Roots: tt.roots}}
			if _, err := source(t, e, fixed{"clientSecret": "a-long-lived-client-secret"}).Read(t.Context()); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v", err)
			}
		})
	}
	// By its name: Go goes to no proxy for an address of loopback.
	exchange.DialTo(t, good.Listener.Addr().String())
	e := policy.Exchange{OAuth2: &policy.OAuth2Exchange{TokenURL: "https://auth.example.com/token", ClientID: "agent", Roots: goodRoots}}
	got, m := read(t, source(t, e, fixed{"clientSecret": "a-long-lived-client-secret"}))
	if got["token"] != "short-lived" || time.Until(m.Expires) > time.Hour || time.Until(m.Expires) < 59*time.Minute {
		t.Errorf("got %v until %v", got, m.Expires)
	}
}

func TestRoots(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty.pem")
	must.OK(t, os.WriteFile(empty, []byte("nothing"), 0o600))
	for _, roots := range []string{empty, empty + ".none"} {
		_, err := exchange.New(exchange.Options{Credential: "corp", Exchange: policy.Exchange{GitHubApp: &policy.GitHubAppExchange{Roots: roots}}})
		if err == nil || !strings.Contains(err.Error(), `credential "corp": exchange: roots`) {
			t.Errorf("got %v", err)
		}
	}
	if _, err := exchange.New(exchange.Options{Credential: "corp"}); err == nil {
		t.Error("an exchange for nothing")
	}
}

// The body that some servers want in place of a form.
func TestJSONParameters(t *testing.T) {
	server, roots := endpoint(t, func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		if r.Header.Get("Content-Type") != "application/json" || string(text) != `{"client_id":"agent","client_secret":"a-client-secret","grant_type":"client_credentials","resource":["https://a.example.com","https://b.example.com"]}` {
			t.Errorf("got %s %s", r.Header.Get("Content-Type"), text)
		}
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"access_token":"short-lived","expires_in":"60"}`)
	})
	e := policy.Exchange{OAuth2: &policy.OAuth2Exchange{
		TokenURL: server.URL, ClientID: "agent", ClientAuth: policy.ClientAuthPost, JSON: true, Roots: roots, Resource: []string{"https://a.example.com", "https://b.example.com"},
	}}
	if _, m := read(t, source(t, e, fixed{"clientSecret": "a-client-secret"})); time.Until(m.Expires) > time.Minute {
		t.Errorf("expires %v", m.Expires)
	}
}
