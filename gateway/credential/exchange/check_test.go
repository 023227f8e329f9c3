package exchange

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"strings"
	"testing"

	"sallyport/gateway/credential"
	"sallyport/internal/test/must"
	"sallyport/policy"
)

// A secret of the wrong shape is found without asking anybody, and one that fits is not.
func TestCheck(t *testing.T) {
	k, err := rsa.GenerateKey(rand.Reader, 2048)
	must.OK(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(k)
	must.OK(t, err)
	key := string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	account, err := json.Marshal(map[string]string{
		"type": "service_account", "client_email": "a@b.example", "private_key": key, "private_key_id": "1", "token_uri": "https://oauth2.googleapis.com/token",
	})
	must.OK(t, err)
	gcp := policy.Exchange{GCP: &policy.GCPExchange{Scopes: []string{"x"}}}
	app := policy.Exchange{GitHubApp: &policy.GitHubAppExchange{AppID: "1", InstallationID: "2"}}
	login := policy.Exchange{OAuth2: &policy.OAuth2Exchange{TokenURL: "https://auth.example.com/token", ClientID: "a", Grant: policy.GrantRefreshToken, ClientAuth: "post"}}
	for _, tt := range []struct {
		name     string
		exchange policy.Exchange
		fields   map[string]string
		want     string
	}{
		{"service account", gcp, map[string]string{"key": string(account)}, ""},
		{"no JSON", gcp, map[string]string{"key": key}, "set the JSON that Google Cloud gives"},
		{"another field", gcp, map[string]string{"a": string(account), "b": key}, "lacks the field key"},
		{"login of a program", login, map[string]string{"token": `{"claudeAiOauth": {"refreshToken": "refresh-0123456789"}}`}, ""},
		{"login with two", login, map[string]string{"token": `{"a": {"refreshToken": "refresh-0123456789"}, "b": {"refresh_token": "another-0123456789"}}`}, "2 refresh tokens"},
		{"app", app, map[string]string{"key": key}, ""},
		{"app without a key", app, map[string]string{"key": "0123456789abcdef0123"}, "key"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			fields := map[string]credential.Secret{}
			for name, value := range tt.fields {
				fields[name] = credential.NewSecret(value)
			}
			err := Check(tt.exchange, fields)
			switch {
			case tt.want == "" && err != nil, tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("%v, want %q", err, tt.want)
			case err != nil && strings.Contains(err.Error(), "0123456789"):
				t.Errorf("the error has the secret: %v", err)
			}
		})
	}
}
