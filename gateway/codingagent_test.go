package gateway_test

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"sallyport/gateway"
	"sallyport/gateway/credential"
	"sallyport/gateway/credential/exchange"
	"sallyport/gateway/placeholder"
	"sallyport/internal/test/must"
	"sallyport/policy"
)

// keptLogin is a login that an operator made on the host: what Claude Code keeps in
// ~/.claude/.credentials.json.
type keptLogin struct {
	mu   sync.Mutex
	json string
}

func (l *keptLogin) Kept(context.Context, string) (credential.Material, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return credential.Material{Fields: map[string]credential.Secret{"refreshToken": credential.NewSecret(l.json)}, Version: "1"}, nil
}

func (l *keptLogin) Read(ctx context.Context) (credential.Material, error) { return l.Kept(ctx, "") }

func (l *keptLogin) Replace(_, _ string, fields map[string]credential.Secret) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.json = fields["refreshToken"].Reveal()
	return true, nil
}

// The agent in a sandbox works with a login that the broker keeps: it holds a placeholder,
// and asking for another token gives it the placeholder again. The servers are written from
// what Claude Code 2.1 sends.
func TestCodingAgentsLogin(t *testing.T) {
	t.Parallel()
	const refresh, access = "sk-ant-ort01-the-refresh-token-of-the-operator", "sk-ant-oat01-the-access-token-of-the-operator"
	held := placeholder.Derive([]byte("a key"), "sb-1", "claude", policy.Shape{Prefix: "sk-ant-oat01-", Alphabet: "abcdefghijklmnopqrstuvwxyz0123456789", Length: 40})
	l := newEnv(t, func(o *gateway.Options) {
		o.Placeholders = func(string) *placeholder.Set { return placeholder.New([]placeholder.Held{held}) }
	})
	l.policy(func(in policy.Input) policy.Decision {
		d := allow(in)
		d.RuleType = "egressAuth"
		if in.Phase == policy.PhaseRequest {
			d.Inject = []policy.Injection{{Credential: "claude", Inject: policy.Inject{TokenEndpoint: in.Destination.Host == "platform.claude.test"}}}
		}
		return d
	})
	l.name("api.anthropic.test")
	l.name("platform.claude.test")

	refreshes := 0
	platform := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var asked map[string]string
		must.OK(t, json.NewDecoder(r.Body).Decode(&asked))
		w.Header().Set("Content-Type", "application/json")
		if asked["grant_type"] != "refresh_token" || asked["refresh_token"] != refresh || asked["client_id"] != "agent" {
			w.WriteHeader(http.StatusBadRequest)
			io.WriteString(w, `{"error":"invalid_grant"}`)
			return
		}
		refreshes++
		fmt.Fprintf(w, `{"token_type":"Bearer","access_token":%q,"expires_in":28800,"refresh_token":%q,"scope":"user:inference"}`, access, refresh+"-2")
	}))
	t.Cleanup(platform.Close)
	l.upstream("platform.claude.test", true, func(http.ResponseWriter, *http.Request) {
		t.Error("a request of the sandbox's came to the token endpoint")
	})
	l.upstream("api.anthropic.test", true, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+access || r.Header.Get("Anthropic-Beta") != "oauth-2025-04-20" {
			w.WriteHeader(http.StatusUnauthorized)
		}
		fmt.Fprint(w, "PONG ", r.Header.Get("Authorization"))
	})
	roots := filepath.Join(t.TempDir(), "roots.pem")
	must.OK(t, os.WriteFile(roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: platform.Certificate().Raw}), 0o600))
	kept := &keptLogin{json: `{"claudeAiOauth":{"accessToken":"old","refreshToken":"` + refresh + `","expiresAt":1,"scopes":["user:inference"]}}`}
	source, err := exchange.New(exchange.Options{
		Credential: "claude", Secret: kept, Keeper: exchange.NewKeeper(kept), Embedded: true, Exchange: policy.Exchange{OAuth2: &policy.OAuth2Exchange{
			TokenURL: platform.URL + "/v1/oauth/token", ClientID: "agent", Grant: policy.GrantRefreshToken, ClientAuth: policy.ClientAuthPost, JSON: true, Roots: roots,
		}},
	})
	must.OK(t, err)
	t.Cleanup(source.Close)
	l.broker = credential.New(credential.Options{
		Sources: map[string]credential.Source{"claude": source},
		Bound:   func(_, host string, port uint16) bool { return strings.HasSuffix(host, ".test") && port == 443 },
	})

	do := func(method, url, contentType, body string) (int, string) {
		r, err := http.NewRequest(method, url, strings.NewReader(body))
		must.OK(t, err)
		r.Header.Set("Authorization", "Bearer "+held.Text)
		r.Header.Set("Anthropic-Beta", "oauth-2025-04-20")
		r.Header.Set("Content-Type", contentType)
		resp, err := l.client().Do(r)
		must.OK(t, err)
		return resp.StatusCode, text(t, resp)
	}
	status, body := do("POST", "https://api.anthropic.test/v1/messages", "application/json", `{"model":"m"}`)
	if status != 200 || !strings.HasPrefix(body, "PONG ") || strings.Contains(body, access) || strings.Contains(body, "of-the-operator") {
		t.Errorf("the agent got %d %q", status, body)
	}
	for kind, request := range map[string]string{
		"application/json":                  `{"grant_type":"refresh_token","refresh_token":"` + held.Text + `","client_id":"agent","scope":"user:inference"}`,
		"application/x-www-form-urlencoded": "grant_type=refresh_token&refresh_token=" + held.Text + "&scope=user:inference",
	} {
		status, body := do("POST", "https://platform.claude.test/v1/oauth/token", kind, request)
		var got struct {
			Access  string `json:"access_token"`
			Refresh string `json:"refresh_token"`
			Scope   string `json:"scope"`
			Life    int    `json:"expires_in"`
		}
		must.OK(t, json.Unmarshal([]byte(body), &got))
		if status != 200 || got.Access != held.Text || got.Refresh != held.Text || got.Scope != "user:inference" || got.Life < 30*24*3600 {
			t.Errorf("%s: %d %s", kind, status, body)
		}
	}
	for kind, request := range map[string]string{
		"application/json":                  `{"grant_type":"authorization_code","code":"x"}`,
		"application/x-www-form-urlencoded": strings.Repeat("x", 65<<10),
		"text/plain":                        "%zz",
	} {
		if status, body := do("POST", "https://platform.claude.test/v1/oauth/token", kind, request); status != 400 || !strings.Contains(body, `"error"`) || strings.Contains(body, "of-the-operator") {
			t.Errorf("%s: %d %s", kind, status, body)
		}
	}
	if refreshes != 1 || kept.json != refresh+"-2" {
		t.Errorf("%d refreshes, and the login is %q", refreshes, kept.json)
	}
	events := l.await(12)
	if last := events[len(events)-1]; !strings.Contains(last.Message, "in the place of the token endpoint of claude") || len(last.Unmapped.Sallyport.Credentials) != 0 {
		t.Errorf("the completion is %q with %v", last.Message, last.Unmapped.Sallyport.Credentials)
	}
	for _, step := range l.steps() {
		if strings.Contains(step, "dial platform.claude.test") {
			t.Error(step)
		}
	}
}
