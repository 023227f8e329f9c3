package config_test

import (
	"fmt"
	"strings"
	"testing"

	"sallyport/internal/config"
)

// urls are the keys that the daemon, or the command line, sends requests by.
var urls = map[string]string{
	"webhooks[0].url":   "webhooks: [{url: %q, secretFile: s}]",
	"policy.bundle.url": "policy: {bundle: {url: %q, key: k.pem}}",
	"vault.address":     "vault: {address: %q, auth: {tokenFile: t}}",
	"remote.host":       "remote: {host: %q, keyFile: k}",
}

// A URL has one reading only: a host that others take for another one, or for none,
// is refused where it is written.
func TestURLs(t *testing.T) {
	for key, form := range urls {
		for _, text := range []string{"https://a.example.com:8443", "https://a.example.com", "https://[2001:db8::1]:8443", "https://198.51.100.7"} {
			if _, err := config.Parse("sallyport.yaml", fmt.Appendf(nil, form+"\n", text)); err != nil && strings.Contains(err.Error(), key) {
				t.Errorf("%s: %q: %v", key, text, err)
			}
		}
		for _, text := range []string{
			"a.example.com", "//a.example.com", "https:a.example.com", "https:///a.example.com", "unix:///run/x", "file:///etc/passwd", "gopher://a.example.com",
			"https://user@a.example.com", "https://user:word@a.example.com", `https://a.example.com\@b.example.com`, `https://a.example.com\.b.example.com`,
			"https://a.example.com#@b.example.com", "https://2130706433", "https://0x7f000001", "https://127.1", "https://[fe80::1%25eth0]", "https://::1",
			"https://a..example.com", "https://-a.example.com", "https://*.example.com", "https://a.example.com:", "https://a.example.com:0", "https://a.example.com:99999",
			"https://ａ.example.com", "https://１２７.0.0.1", "https://a.example.com\u3002b", "https://a%00.example.com", "https://a.example.com/\t", " https://a.example.com",
		} {
			_, err := config.Parse("sallyport.yaml", fmt.Appendf(nil, form+"\n", text))
			if err == nil || !strings.Contains(err.Error(), key) {
				t.Errorf("%s: %q passes: %v", key, text, err)
			}
		}
	}
}

// A Vault path is one of names, and any other is told of at load.
func TestVaultPaths(t *testing.T) {
	forms := map[string]string{
		"credentials[0].source.vault": "vault: {address: 'https://v', auth: {tokenFile: t}}\ncredentials: [{name: a, source: {vault: {path: %q}}}]",
		"vault.namespace":             "vault: {address: 'https://v', namespace: %q, auth: {tokenFile: t}}",
		"vault.auth.appRole.mount":    "vault: {address: 'https://v', auth: {appRole: {roleID: r, secretIDFile: f, mount: %q}}}",
	}
	for key, form := range forms {
		for _, text := range []string{"team/data/a b", "team/data/ä.1", "team/data/a_b-c/d"} {
			if _, err := config.Parse("sallyport.yaml", fmt.Appendf(nil, form+"\n", text)); err != nil {
				t.Errorf("%s: %q: %v", key, text, err)
			}
		}
		for _, text := range []string{
			"team/data/../../sys/seal", "team/data/./a", "team/data//a", "team/data/a?version=1", "team/data/a#b", "team/data/%2e%2e/a", `team/data/..\a`,
			"team/data/a\r\nX-Vault-Token: b", "team/data/a\x00", "team/data/a\u202e", "../data/a", strings.Repeat("a/", 600) + "data/a",
		} {
			if _, err := config.Parse("sallyport.yaml", fmt.Appendf(nil, form+"\n", text)); err == nil || !strings.Contains(err.Error(), key) {
				t.Errorf("%s: %q passes: %v", key, text, err)
			}
		}
	}
}
