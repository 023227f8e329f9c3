package credential_test

import (
	"strings"
	"testing"

	"sallyport/gateway/credential"
	"sallyport/internal/test/must"
	"sallyport/policy"
)

func cookie(name, value string) policy.Inject {
	return policy.Inject{Cookie: &policy.CookieInject{Name: name, Value: value}}
}

// A cookie takes the place of the sandbox's own of that name; others stay.
func TestCookie(t *testing.T) {
	for _, tt := range []struct{ name, sent, want string }{
		{"none", "", "session=tok-0123456789ab"},
		{"others", "a=1; b=2", "a=1; b=2; session=tok-0123456789ab"},
		{"its own", "a=1; session=mine; b=2", "a=1; b=2; session=tok-0123456789ab"},
		{"its own, twice and in other letters", "session=mine;SESSION = mine", "session=tok-0123456789ab"},
		{"one that begins so", "sessions=1", "sessions=1; session=tok-0123456789ab"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := request(t, "https://api.example.com/")
			if tt.sent != "" {
				r.Header["cookie"] = []string{tt.sent}
			}
			must.OK(t, lease(t, fields{"token": "tok-0123456789ab"}).Apply(r, cookie("session", "{{ .token }}")))
			if got := r.Header["Cookie"]; len(got) != 1 || got[0] != tt.want || len(r.Header) != 1 {
				t.Errorf("%v, want Cookie: %s", r.Header, tt.want)
			}
		})
	}
	for _, value := range []string{"tok 0123456789abcdef", "tok;0123456789abcdef", "tok,0123456789abcdef", "tok\n0123456789abcdef", `tok"0123456789abcdef`} {
		r := request(t, "https://api.example.com/")
		if err := lease(t, fields{"token": value}).Apply(r, cookie("session", "{{ .token }}")); err == nil || strings.Contains(err.Error(), "0123456789") || len(r.Header) != 0 {
			t.Errorf("%q: %v, %v", value, err, r.Header)
		}
	}
}

// What a sandbox has put into the injected place is noticed however it is spelt.
func TestOwn(t *testing.T) {
	for _, tt := range []struct {
		name, url, header string
		inject            policy.Inject
		own               bool
	}{
		{"bearer, none", "/", "", policy.Inject{}, false},
		{"bearer", "/", "authorization", policy.Inject{}, true},
		{"basic", "/", "AUTHORIZATION", basic("a", "{{ .token }}"), true},
		{"header, none", "/?x-api-key=1", "Authorization", header("X-Api-Key", "{{ .token }}"), false},
		{"header", "/", "x_api_key", header("X-Api-Key", "{{ .token }}"), true},
		{"query, none", "/?keys=1&q=;", "Key", query("key", "{{ .token }}"), false},
		{"query", "/?q=1&%6bey=2", "", query("key", "{{ .token }}"), true},
		{"query behind a semicolon", "/?q=1;key[]=2", "", query("key", "{{ .token }}"), true},
		{"cookie, none", "/?session=1", "", cookie("session", "{{ .token }}"), false},
		{"cookie of another name", "/", "Cookie: a=session", cookie("session", "{{ .token }}"), false},
		{"cookie", "/", "cookie: a=1; session=2", cookie("session", "{{ .token }}"), true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := request(t, "https://api.example.com"+tt.url)
			if name, value, _ := strings.Cut(tt.header, ": "); name != "" {
				r.Header[name] = []string{value}
			}
			if got := credential.Own(tt.inject, r); got != tt.own {
				t.Errorf("own: %v", got)
			}
		})
	}
}

// The broker's part of a request with a lease that is there already: to check the binding,
// take the lease and put the credential in.
func BenchmarkWarm(b *testing.B) {
	br := broker(map[string]credential.Source{"key": fields{"token": "tok-0123456789ab", "user": "deploy"}})
	for name, inject := range map[string]policy.Inject{
		"bearer": {},
		"header": header("X-Api-Key", "{{ .token }}"),
		"basic":  basic("{{ .user }}", "{{ .token }}"),
		"query":  query("key", "{{ .token }}"),
		"cookie": cookie("session", "{{ .token }}"),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			r := request(b, "https://api.example.com/v1?q=1")
			for b.Loop() {
				l, err := br.Lease(b.Context(), "key", api)
				must.OK(b, err)
				must.OK(b, l.Apply(r, inject))
			}
		})
	}
}
