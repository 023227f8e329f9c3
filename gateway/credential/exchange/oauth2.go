package exchange

import (
	"cmp"
	"context"
	"net/url"
	"strings"

	"golang.org/x/oauth2"

	"sallyport/policy"
)

const jwtBearer = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"

// oauth2Exchange asks a token endpoint of OAuth 2.0.
type oauth2Exchange struct {
	policy.OAuth2Exchange
	client *client
}

func (o *oauth2Exchange) trade(ctx context.Context, s *secret) (*traded, error) {
	params := url.Values{}
	if len(o.Scopes) > 0 {
		params.Set("scope", strings.Join(o.Scopes, " "))
	}
	if o.Audience != "" {
		params.Set("audience", o.Audience)
	}
	if len(o.Resource) > 0 {
		params["resource"] = o.Resource
	}
	refresh := ""
	var err error
	switch o.Grant {
	case policy.GrantRefreshToken:
		if refresh, _, err = s.refreshToken(); err != nil {
			return nil, err
		}
		s.shown = append(s.shown, refresh)
		params.Set("grant_type", "refresh_token")
		params.Set("refresh_token", refresh)
	case policy.GrantJWTBearer:
		params.Set("grant_type", "urn:ietf:params:oauth:grant-type:jwt-bearer")
		a := o.assertion()
		issuer := cmp.Or(a.Issuer, o.ClientID)
		signed, err := o.sign(s, issuer, cmp.Or(a.Subject, issuer))
		if err != nil {
			return nil, err
		}
		params.Set("assertion", signed)
	default:
		params.Set("grant_type", "client_credentials")
	}

	id, password, style := o.ClientID, "", oauth2.AuthStyleInParams
	switch {
	case o.ClientAuth == policy.ClientAuthPrivateKeyJWT:
		signed, err := o.sign(s, o.ClientID, o.ClientID)
		if err != nil {
			return nil, err
		}
		params.Set("client_assertion_type", jwtBearer)
		params.Set("client_assertion", signed)
	case o.Grant == "" || o.Grant == policy.GrantClientCredentials:
		if password, err = s.field("clientSecret"); err != nil {
			return nil, err
		}
	default: // a public client has none
		password = s.optional("clientSecret")
	}
	if password != "" && cmp.Or(o.ClientAuth, policy.ClientAuthBasic) == policy.ClientAuthBasic {
		style = oauth2.AuthStyleInHeader
	}
	t, err := o.client.grant(ctx, o.TokenURL, id, password, style, params)
	if err != nil {
		return nil, err
	}
	got := token(t.AccessToken, t.Expiry)
	if t.RefreshToken != refresh && refresh != "" {
		got.refresh = t.RefreshToken
	}
	return got, nil
}

func (o *oauth2Exchange) assertion() policy.Assertion {
	if o.Assertion == nil {
		return policy.Assertion{}
	}
	return *o.Assertion
}

// sign returns a JWT for the token endpoint.
func (o *oauth2Exchange) sign(s *secret, issuer, subject string) (string, error) {
	a := o.assertion()
	name := "privateKey"
	if a.Algorithm == "HS256" {
		name = "key"
	}
	key, err := s.field(name)
	if err != nil {
		return "", err
	}
	return s.assert(cmp.Or(a.Algorithm, "RS256"), a.KeyID, key, nil, issuer, subject, cmp.Or(a.Audience, o.TokenURL), nil)
}
