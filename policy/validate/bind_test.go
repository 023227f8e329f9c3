package validate_test

import (
	"strings"
	"testing"

	"sallyport/internal/config"
)

func TestBinding(t *testing.T) {
	for credential, says := range map[string]string{
		"destinations: [a.example.com]":                  "",
		"destinations: ['*.example.com', other.example]": "",
		"kinds: [bearer]":                                "",
		"destinations: []":                               "credentials[0].destinations: is empty",
		"destinations: [https://a.example.com]":          "credentials[0].destinations[0]: \"https://a.example.com\" is a URL",
		"destinations: ['*']":                            "credentials[0].destinations[0]: \"*\" would match every host",
		"destinations: [b.example.com]":                  "egressAuth[0].destination: credential k goes to b.example.com only",
		"destinations: ['a.example.com:8443']":           "egressAuth[0].destination: credential k goes to a.example.com:8443 only",
		"kinds: []":                                      "credentials[0].kinds: is empty",
		"kinds: ['']":                                    "credentials[0].kinds[0]: \"\" is no way to give a credential",
		"kinds: [bearer, headers]":                       "credentials[0].kinds[1]: \"headers\" is no way to give a credential; did you mean header?",
		"kinds: [header]":                                "egressAuth[0].inject: gives the credential k as bearer, and it may be given as header only",
	} {
		_, err := config.Parse("sallyport.yaml", []byte("egressAuth: [{destination: a.example.com, authRef: k}]\ncredentials: [{name: k, "+credential+"}]"))
		if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("%s: %v, want %q", credential, err, says)
		}
	}
}
