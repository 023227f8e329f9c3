package exchange

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"golang.org/x/oauth2"

	"sallyport/gateway/credential"
	"sallyport/policy"
)

// Endpoints of Google Cloud.
const (
	gcpSecurityTokens = "https://sts.googleapis.com/v1/token"
	gcpAccounts       = "https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/"
	gcpPlatform       = "https://www.googleapis.com/auth/cloud-platform"
)

// gcp asks for tokens of a service account.
type gcp struct {
	policy.GCPExchange
	client *client
}

func (g *gcp) trade(ctx context.Context, s *secret) (*traded, error) {
	if g.WorkloadIdentity != nil {
		return g.federate(ctx, s)
	}
	text, err := s.field("key")
	if err != nil {
		return nil, err
	}
	var account struct {
		Type     string `json:"type"`
		Email    string `json:"client_email"`
		Key      string `json:"private_key"`
		KeyID    string `json:"private_key_id"`
		TokenURL string `json:"token_uri"`
	}
	if json.Unmarshal([]byte(text), &account) != nil || account.Type != "service_account" || account.Email == "" || account.Key == "" {
		return nil, fmt.Errorf("%w of a service account: set the JSON that Google Cloud gives for its key", credential.ErrNoSecret)
	}
	s.shown = append(s.shown, account.Key)
	endpoint := cmp.Or(g.TokenURL, account.TokenURL)
	if endpoint != g.TokenURL && !googles(endpoint) {
		return nil, fmt.Errorf("%w: the token_uri of its key is not one of https://….googleapis.com; if it is meant, write it as tokenURL of the exchange", credential.ErrRefused)
	}
	more := claims{}
	if g.Audience != "" {
		more["target_audience"] = g.Audience
	} else {
		more["scope"] = strings.Join(g.Scopes, " ")
	}
	signed, err := s.assert("RS256", account.KeyID, account.Key, nil, account.Email, account.Email, endpoint, more)
	if err != nil {
		return nil, err
	}
	params := url.Values{"grant_type": {"urn:ietf:params:oauth:grant-type:jwt-bearer"}, "assertion": {signed}}
	if g.Audience == "" {
		t, err := g.client.grant(ctx, endpoint, "", "", oauth2.AuthStyleInParams, params)
		if err != nil {
			return nil, err
		}
		return token(t.AccessToken, t.Expiry), nil
	}
	var answer struct { // which has no access token
		ID string `json:"id_token"`
	}
	if err := g.client.post(ctx, endpoint, http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}, []byte(params.Encode()), &answer); err != nil {
		return nil, err
	}
	return token(answer.ID, expiry(answer.ID)), nil
}

// googles tells whether a token endpoint is one of Google's.
func googles(endpoint string) bool {
	u, err := url.Parse(endpoint)
	return err == nil && u.Scheme == "https" && u.User == nil && (u.Port() == "" || u.Port() == "443") && strings.HasSuffix(strings.ToLower(u.Hostname()), ".googleapis.com")
}

// federate exchanges another provider's token (RFC 8693), and has the service account
// impersonated with what comes of it.
func (g *gcp) federate(ctx context.Context, s *secret) (*traded, error) {
	subject, err := s.field("token")
	if err != nil {
		return nil, err
	}
	w := g.WorkloadIdentity
	scopes := strings.Join(g.Scopes, " ")
	if w.ServiceAccount != "" {
		scopes = gcpPlatform
	}
	t, err := g.client.grant(ctx, gcpSecurityTokens, "", "", oauth2.AuthStyleInParams, url.Values{
		"grant_type": {"urn:ietf:params:oauth:grant-type:token-exchange"}, "audience": {w.Provider}, "scope": {scopes},
		"requested_token_type": {"urn:ietf:params:oauth:token-type:access_token"},
		"subject_token":        {strings.TrimSpace(subject)}, "subject_token_type": {"urn:ietf:params:oauth:token-type:jwt"},
	})
	if err != nil {
		return nil, err
	}
	if w.ServiceAccount == "" {
		return token(t.AccessToken, t.Expiry), nil
	}
	s.shown = append(s.shown, t.AccessToken)
	header := http.Header{"Authorization": {"Bearer " + t.AccessToken}, "Content-Type": {"application/json"}}
	account := gcpAccounts + url.PathEscape(w.ServiceAccount)
	if g.Audience != "" {
		body, _ := json.Marshal(map[string]any{"audience": g.Audience, "includeEmail": true}) // which cannot fail
		var answer struct {
			Token string `json:"token"`
		}
		if err := g.client.post(ctx, account+":generateIdToken", header, body, &answer); err != nil {
			return nil, err
		}
		return token(answer.Token, expiry(answer.Token)), nil
	}
	body, _ := json.Marshal(map[string]any{"scope": g.Scopes}) // which cannot fail
	var answer struct {
		Token   string    `json:"accessToken"`
		Expires time.Time `json:"expireTime"`
	}
	if err := g.client.post(ctx, account+":generateAccessToken", header, body, &answer); err != nil {
		return nil, err
	}
	return token(answer.Token, answer.Expires), nil
}

// expiry is the claim exp of a JWT that nobody here has to verify, or zero.
func expiry(jwt string) time.Time {
	parts := strings.Split(jwt, ".")
	if len(parts) != 3 {
		return time.Time{}
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	var c struct {
		Expires float64 `json:"exp"`
	}
	if err != nil || json.Unmarshal(text, &c) != nil || c.Expires <= 0 {
		return time.Time{}
	}
	return time.Unix(int64(c.Expires), 0)
}
