package exchange

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net/url"
	"strings"

	"golang.org/x/oauth2"

	"sallyport/gateway/credential"
	"sallyport/policy"
)

// azure asks for tokens of an application, by its secret or its certificate.
type azure struct {
	policy.AzureExchange
	client *client
}

func (a *azure) trade(ctx context.Context, s *secret) (*traded, error) {
	endpoint := strings.TrimSuffix(cmp.Or(a.Authority, "https://login.microsoftonline.com"), "/") + "/" + url.PathEscape(a.Tenant) + "/oauth2/v2.0/token"
	params := url.Values{"grant_type": {"client_credentials"}, "scope": {strings.Join(a.Scopes, " ")}}
	password := ""
	if certificate := s.optional("certificate"); certificate != "" {
		key, err := s.field("privateKey")
		if err != nil {
			return nil, err
		}
		b, _ := pem.Decode([]byte(certificate))
		if b == nil || b.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("%w: its field certificate is not a certificate in PEM", credential.ErrNoSecret)
		}
		sum := sha256.Sum256(b.Bytes)
		header := claims{"x5t#S256": base64.RawURLEncoding.EncodeToString(sum[:])}
		signed, err := s.assert("PS256", "", key, header, a.ClientID, a.ClientID, endpoint, nil)
		if err != nil {
			return nil, err
		}
		params.Set("client_assertion_type", jwtBearer)
		params.Set("client_assertion", signed)
	} else {
		var err error
		if password, err = s.field("clientSecret"); err != nil {
			return nil, err
		}
	}
	t, err := a.client.grant(ctx, endpoint, a.ClientID, password, oauth2.AuthStyleInParams, params)
	if err != nil {
		return nil, err
	}
	return token(t.AccessToken, t.Expiry), nil
}
