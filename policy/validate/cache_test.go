package validate_test

import (
	"strings"
	"testing"

	"sallyport/internal/config"
)

// A time to keep a secret is for sources that are asked now and then.
func TestCache(t *testing.T) {
	for credential, says := range map[string]string{
		"source: {vault: {path: secret/data/k, field: token}}, cache: 0s":  "",
		"source: {vault: {path: secret/data/k, field: token}}, cache: 24h": "",
		"source: {command: [pass, show, k]}, cache: 5m":                    "",
		"source: {command: [pass, show, k]}, cache: 25h":                   "write one from 0s to 24h",
		"source: {command: [pass, show, k]}, cache: -1s":                   "write one from 0s to 24h",
		"source: {file: /run/secrets/k}, cache: 1s":                        "is for a secret that is in a KV mount of Vault or that a command prints",
		"cache: 1s": "is for a secret that is in a KV mount of Vault or that a command prints",
		"source: {vault: {path: database/creds/k}}, cache: 1s":                                   "is for a secret that is in a KV mount of Vault or that a command prints",
		"source: {vault: {path: secret/data/k}}, exchange: {jwt: {algorithm: ES256}}, cache: 1s": "is not for a secret with an exchange",
	} {
		_, err := config.Parse("sallyport.yaml", []byte("egressAuth: [{destination: a.example.com, authRef: k}]\ncredentials: [{name: k, "+credential+"}]"))
		if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), "credentials[0].cache") || !strings.Contains(err.Error(), says)) {
			t.Errorf("%s: %v, want %q", credential, err, says)
		}
	}
}
