package credential_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"sallyport/gateway/credential"
	"sallyport/internal/test/must"
	"sallyport/policy"
)

func TestStripCarriers(t *testing.T) {
	r := request(t, "https://me:pass@api.example.com/v1")
	gone := []string{
		"Authorization", "authorization", "AUTHORIZATION", "Proxy-Authorization", "Cookie", "Cookie2", "X-Api-Key", "X_Api_Key", "x_api-key",
		"Api-Key", "X-Auth-Token", "X-Amz-Security-Token", "X-Goog-Api-Key", "Private-Token", "X-Vault-Token", "Ocp-Apim-Subscription-Key",
		"Connection", "Keep-Alive", "Proxy-Connection", "Transfer-Encoding", "Upgrade", "Trailer", "Http2-Settings",
		"X-Named", "X-Named-Too", "X-Extra", "x_extra",
	}
	for _, name := range gone {
		r.Header[name] = []string{"mine"}
	}
	r.Header["Connection"] = []string{"close, X-Named", "x-named-too,Content-Type,"}
	r.Header["Te"] = []string{"gzip, Trailers;q=0.5"}
	kept := map[string]string{"Accept": "*/*", "User-Agent": "curl", "X-Request-Id": "1", "Idempotency-Key": "k", "Te": "trailers"}
	for name, value := range kept {
		if name != "Te" {
			r.Header[name] = []string{value}
		}
	}
	r.Header["Content-Type"] = []string{"named by Connection"}
	r.Trailer = http.Header{"Authorization": nil}

	credential.StripRequest(r, "X-Extra")
	for name := range r.Header {
		if want, ok := kept[name]; !ok || r.Header.Get(name) != want {
			t.Errorf("%s: %q is left", name, r.Header[name])
		}
	}
	if len(r.Header) != len(kept) {
		t.Errorf("left %v, want %v", r.Header, kept)
	}
	if r.Trailer != nil || r.URL.User != nil {
		t.Errorf("trailer %v, user %v", r.Trailer, r.URL.User)
	}
}

func TestStripQuery(t *testing.T) {
	for query, want := range map[string]string{
		"":                               "",
		"q=1&a=%2f+x":                    "q=1&a=%2f+x",
		"api_key=mine":                   "",
		"q=1&api_key=mine&a=2":           "q=1&a=2",
		"q=1&api_key=mine":               "q=1",
		"API_KEY=mine&q=1":               "q=1",
		"api%5Fkey=mine&q=1":             "q=1",
		"%61pi-key=mine&q=1":             "q=1",
		"api.key=mine&q=1":               "q=1",
		"api+key=mine&q=1":               "q=1",
		"+api_key=mine&q=1":              "q=1",
		"api_key[]=mine&api_key[0]=mine": "",
		"api_key%5B%5D=mine&q":           "q",
		"q=1;api_key=mine;a=2":           "q=1;a=2",
		"access_token=mine&token=mine":   "",
		"key&q=1":                        "q=1",
		"sig=mine&se=2&q=a=b":            "se=2&q=a=b",
		"X-Amz-Signature=m&X-Amz-Date=d": "X-Amz-Date=d",
		"%zz=1&q=1":                      "q=1",
		"monkey=1&keys=2&tokens=3":       "monkey=1&keys=2&tokens=3",
	} {
		r := request(t, "https://api.example.com/?"+query)
		credential.StripRequest(r)
		if r.URL.RawQuery != want {
			t.Errorf("%q became %q, want %q", query, r.URL.RawQuery, want)
		}
	}
}

// Connection: Authorization would make a proxy between drop what is injected.
func TestConnectionDoesNotUndoInjection(t *testing.T) {
	r := request(t, "https://api.example.com/")
	r.Header.Set("Connection", "Authorization")
	credential.StripRequest(r)
	must.OK(t, lease(t, fields{"token": "tok-0123456789ab"}).Apply(r, policy.Inject{}))
	if got := r.Header; len(got) != 1 || got.Get("Authorization") != "Bearer tok-0123456789ab" {
		t.Errorf("headers %v", got)
	}
}

func FuzzStripQuery(f *testing.F) {
	f.Add("a=1&api_key=2;token=3")
	f.Add("%61pi_key=x&&;;=")
	f.Fuzz(func(t *testing.T, query string) {
		r := &http.Request{URL: &url.URL{Scheme: "https", Host: "api.example.com", RawQuery: query}}
		credential.StripRequest(r)
		got := r.URL.RawQuery
		for _, values := range []string{got, strings.ReplaceAll(got, ";", "&")} {
			parsed, _ := url.ParseQuery(values)
			for key := range parsed {
				switch strings.ToLower(key) {
				case "key", "api_key", "api-key", "access_token", "token", "sig":
					t.Errorf("%q is left in %q of %q", key, got, query)
				}
			}
		}
		credential.StripRequest(r)
		if r.URL.RawQuery != got {
			t.Errorf("a second time changes %q to %q", got, r.URL.RawQuery)
		}
	})
}
