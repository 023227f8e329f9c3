package credential_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"sallyport/gateway/credential"
	"sallyport/gateway/credential/scrub"
	"sallyport/gateway/credential/sent"
	"sallyport/internal/test/must"
	"sallyport/policy"
)

func printed(values ...any) []string {
	var all []string
	for _, v := range values {
		text, _ := json.Marshal(v)
		all = append(all, string(text), fmt.Sprint(v), fmt.Sprintf("%+v", v), fmt.Sprintf("%#v", v), fmt.Sprintf("%s %q %x", v, v, v))
	}
	return all
}

type fields map[string]string

func (f fields) Read(context.Context) (credential.Material, error) {
	m := credential.Material{Fields: map[string]credential.Secret{}, Version: "7"}
	for k, v := range f {
		m.Fields[k] = credential.NewSecret(v)
	}
	return m, nil
}

func lease(t testing.TB, f fields) *credential.Lease {
	t.Helper()
	l, err := broker(map[string]credential.Source{"key": f}).Lease(t.Context(), "key", api)
	must.OK(t, err)
	return l
}

func request(t testing.TB, url string) *http.Request {
	t.Helper()
	r, err := http.NewRequest("GET", url, nil)
	must.OK(t, err)
	return r
}

func header(name, value string) policy.Inject {
	return policy.Inject{Header: &policy.HeaderInject{Name: name, Value: value}}
}

func basic(user, password string) policy.Inject {
	return policy.Inject{Basic: &policy.BasicInject{Username: user, Password: password}}
}

func query(name, value string) policy.Inject {
	return policy.Inject{Query: &policy.QueryInject{Name: name, Value: value}}
}

func TestApply(t *testing.T) {
	one := fields{"value": "tok-0123456789ab"}
	two := fields{"token": "tok-0123456789ab", "user": "deploy-by-robots"}
	tests := []struct {
		name   string
		fields fields
		inject policy.Inject
		header string // name: value
		query  string
	}{
		{"bearer, only field", one, policy.Inject{}, "Authorization: Bearer tok-0123456789ab", "q=1"},
		{"bearer, field token", two, policy.Inject{}, "Authorization: Bearer tok-0123456789ab", "q=1"},
		{"header", two, header("x-api-key", "{{ .token }}"), "X-Api-Key: tok-0123456789ab", "q=1"},
		{"header with text", two, header("Authorization", "token {{ .user }}/{{.token}}"), "Authorization: token deploy-by-robots/tok-0123456789ab", "q=1"},
		{"basic", two, basic("{{ .user }}", "{{ .token }}"), "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte("deploy-by-robots:tok-0123456789ab")), "q=1"},
		{"basic, no password", two, basic("{{ .token }}", ""), "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte("tok-0123456789ab:")), "q=1"},
		{"query", fields{"k": "a&b=c d+%012345678"}, query("api-key", "{{ .k }}"), "", "q=1&api-key=a%26b%3Dc+d%2B%25012345678"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := request(t, "https://api.example.com/v1?API_key=mine&q=1")
			if tt.query == "q=1" {
				r = request(t, "https://api.example.com/v1?q=1")
			}
			r.Header["Authorization"] = []string{"mine"}
			r.Header["X_api_KEY"] = []string{"mine"}
			l := lease(t, tt.fields)
			must.OK(t, l.Apply(r, tt.inject))
			if name, value, _ := strings.Cut(tt.header, ": "); name != "" {
				if got := r.Header[name]; len(got) != 1 || got[0] != value {
					t.Errorf("%s: %q, want %q", name, got, value)
				}
				if name == "X-Api-Key" && r.Header["X_api_KEY"] != nil {
					t.Error("the sandbox's own X_api_KEY is left")
				}
			}
			if r.URL.RawQuery != tt.query {
				t.Errorf("query %q, want %q", r.URL.RawQuery, tt.query)
			}
			// The values that the upstream saw come back: nothing of them may pass.
			echo := r.Header.Clone()
			echo.Set("X-Echo", r.URL.RawQuery)
			var all sent.BySandbox
			e := all.Of("sb-1")
			if _, _, err := e.Add(context.Background(), l); err != nil {
				t.Fatal(err)
			}
			found := ""
			if e.Scrubber().Header(echo, func(f scrub.Found) { found = f.Name }); found != "key" {
				t.Errorf("an echo of the request is not scrubbed: found %q", found)
			}
		})
	}
}

func TestApplyRefuses(t *testing.T) {
	two := fields{"token": "tok-0123456789ab", "user": "deploy:er", "pem": "line\nline", "end": "tok-0123456789ab\n", "empty": "", "nul": "a\x00b"}
	const url = "https://api.example.com/"
	tests := []struct {
		name   string
		fields fields
		inject policy.Inject
		url    string
		want   error
	}{
		{"no token among several", fields{"a": "tok-0123456789ab", "b": "2"}, policy.Inject{}, url, credential.ErrNoSecret},
		{"missing field", two, header("X-Key", "{{ .nope }}"), url, credential.ErrNoSecret},
		{"empty field", two, header("X-Key", "{{ .empty }}"), url, credential.ErrNoSecret},
		{"empty template", two, header("X-Key", " "), url, nil},
		{"newline within", two, header("X-Key", "{{ .pem }}"), url, nil},
		{"newline at the end", two, header("X-Key", "{{ .end }}"), url, nil},
		{"newline in a bearer", fields{"k": "tok-0123456789ab\r\nX: y"}, policy.Inject{}, url, nil},
		{"NUL", two, header("X-Key", "{{ .nul }}"), url, nil},
		{"newline in the template", two, header("X-Key", "{{ .token }}\r\nX-Evil: 1"), url, nil},
		{"function", two, header("X-Key", `{{ printf "%s" .token }}`), url, nil},
		{"pipeline", two, header("X-Key", `{{ .token | .user }}`), url, nil},
		{"condition", two, header("X-Key", `{{ if .token }}a{{ end }}`), url, nil},
		{"variable", two, header("X-Key", `{{ $x := .token }}`), url, nil},
		{"chain", two, header("X-Key", `{{ .token.value }}`), url, nil},
		{"all", two, header("X-Key", `{{ . }}`), url, nil},
		{"unclosed", two, header("X-Key", `{{ .token`), url, nil},
		{"no header name", two, header("", "{{ .token }}"), url, nil},
		{"bad header name", two, header("X Key", "{{ .token }}"), url, nil},
		{"Host", two, header("host", "{{ .token }}"), url, nil},
		{"Connection", two, header("connection", "{{ .token }}"), url, nil},
		{"Transfer-Encoding", two, header("Transfer_Encoding", "{{ .token }}"), url, nil},
		{"colon in the user", two, basic("{{ .user }}", "{{ .token }}"), url, nil},
		{"newline in a password", two, basic("u", "{{ .pem }}"), url, nil},
		{"no query name", two, query("", "{{ .token }}"), url, nil},
		{"two places", two, policy.Inject{Header: &policy.HeaderInject{Name: "A", Value: "{{ .token }}"}, Query: &policy.QueryInject{Name: "a", Value: "{{ .token }}"}}, url, nil},
		{"plain HTTP", two, policy.Inject{}, "http://api.example.com/", credential.ErrNotBound},
		{"another host", two, policy.Inject{}, "https://evil.example.com/", credential.ErrNotBound},
		{"another port", two, policy.Inject{}, "https://api.example.com:8443/", credential.ErrNotBound},
		{"a longer name", two, policy.Inject{}, "https://api.example.com.evil.example/", credential.ErrNotBound},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := request(t, tt.url)
			l := lease(t, tt.fields)
			err := l.Apply(r, tt.inject)
			if err == nil || tt.want != nil && !errors.Is(err, tt.want) {
				t.Fatalf("Apply: %v, want %v", err, tt.want)
			}
			if strings.Contains(err.Error(), "12345678") {
				t.Errorf("the error has the secret: %v", err)
			}
			if len(r.Header) != 0 || r.URL.RawQuery != "" {
				t.Errorf("the request was changed: %v %v", r.Header, r.URL)
			}
		})
	}
	t.Run("another Host header", func(t *testing.T) {
		r := request(t, url)
		r.Host = "evil.example.com"
		if err := lease(t, two).Apply(r, policy.Inject{}); !errors.Is(err, credential.ErrNotBound) {
			t.Error(err)
		}
	})
	t.Run("same destination, spelt otherwise", func(t *testing.T) {
		r := request(t, "https://API.example.com.:443/")
		r.Host = "api.example.com"
		if err := lease(t, two).Apply(r, policy.Inject{}); err != nil {
			t.Error(err)
		}
	})
}

// The secret part of an injection has 16 bytes or more, unless the configuration names its field.
func TestShortSecrets(t *testing.T) {
	const long, short = "0123456789abcdef", "0123456789abcde"
	both := func(user, password string) fields { return fields{"username": user, "password": password} }
	login := basic("{{ .username }}", "{{ .password }}")
	tests := []struct {
		name    string
		fields  fields
		inject  policy.Inject
		allowed string // field
		refused bool
	}{
		{"bearer", fields{"token": long}, policy.Inject{}, "", false},
		{"short bearer", fields{"token": short}, policy.Inject{}, "", true},
		{"short bearer, allowed", fields{"token": short}, policy.Inject{}, "token", false},
		{"short bearer, another field allowed", fields{"token": short}, policy.Inject{}, "user", true},
		{"white space makes it no longer", fields{"token": " " + short + " "}, policy.Inject{}, "", true},
		{"short field that is not injected", fields{"token": long, "note": short}, header("X-Key", "{{ .token }}"), "", false},
		{"text around it makes it no longer", fields{"token": short}, header("X-Key", "Bearer {{ .token }}"), "", true},
		{"a short field beside a long one", both(short, long), header("X-Key", "{{ .username }}:{{ .password }}"), "", true},
		{"a short field beside a long one, allowed", both(short, long), header("X-Key", "{{ .username }}:{{ .password }}"), "username", false},
		{"basic", both("bot", long), login, "", false},
		{"basic, short password", both(long, short), login, "", true},
		{"basic, short password, allowed", both(long, short), login, "password", false},
		{"basic, the key for a username", fields{"key": long}, basic("{{ .key }}", "x-oauth-basic"), "", false},
		{"basic, a short key for a username", fields{"key": short}, basic("{{ .key }}", "x-oauth-basic"), "", true},
		{"basic, a username that is written", fields{"key": short}, basic("x-access-token", "{{ .key }}"), "", true},
		{"query", fields{"key": long}, query("key", "{{ .key }}"), "", false},
		{"short query", fields{"key": short}, query("key", "{{ .key }}"), "", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := credential.New(credential.Options{
				Sources:    map[string]credential.Source{"key": tt.fields},
				Bound:      func(string, string, uint16) bool { return true },
				AllowShort: func(name, field string) bool { return name == "key" && field == tt.allowed },
			})
			l, err := b.Lease(t.Context(), "key", api)
			must.OK(t, err)
			r := request(t, "https://api.example.com/")
			err = l.Apply(r, tt.inject)
			if errors.Is(err, credential.ErrShort) != tt.refused || !tt.refused && err != nil {
				t.Fatalf("got %v, refused %v", err, tt.refused)
			}
			if !tt.refused {
				return
			}
			if len(r.Header) > 0 || r.URL.RawQuery != "" {
				t.Errorf("the request was changed: %v %v", r.Header, r.URL)
			}
			if strings.Contains(err.Error(), short[:8]) || !strings.Contains(err.Error(), "allowShort") {
				t.Errorf("the error is %v", err)
			}
		})
	}
}

func FuzzApply(f *testing.F) {
	f.Add("X-Api-Key", "Bearer {{ .token }}", "tok", true)
	f.Add("Authorization", "{{ .token }}\r\nX: y", "a\r\nb", true)
	f.Add("key", "{{ .token }}", "a&b=c", false)
	f.Fuzz(func(t *testing.T, name, template, secret string, inHeader bool) {
		inject := header(name, template)
		if !inHeader {
			inject = query(name, template)
		}
		if len(secret) == 0 {
			t.Skip("no secret")
		}
		r := request(t, "https://api.example.com/?a=b")
		if err := lease(t, fields{"token": secret}).Apply(r, inject); err != nil {
			if len(r.Header) != 0 || r.URL.RawQuery != "a=b" {
				t.Errorf("changed in spite of %v", err)
			}
			return
		}
		var wire strings.Builder
		must.OK(t, r.Write(&wire))
		head, body, _ := strings.Cut(wire.String(), "\r\n\r\n")
		want := 2 // request line, Host, User-Agent
		if inHeader && http.CanonicalHeaderKey(name) != "User-Agent" {
			want++
		}
		if got := strings.Count(head, "\n"); got != want || body != "" {
			t.Errorf("%d header lines, want %d, body %q: %q", got, want, body, head)
		}
	})
}

func BenchmarkLeaseAndApply(b *testing.B) {
	secret, err := fields{"token": "tok-0123456789ab"}.Read(b.Context())
	must.OK(b, err)
	br := broker(map[string]credential.Source{"key": had(secret)})
	r := request(b, "https://api.example.com/v1?q=1")
	var all sent.BySandbox
	e := all.Of("sb-1")
	for b.Loop() {
		l, err := br.Lease(b.Context(), "key", api)
		must.OK(b, err)
		credential.StripRequest(r)
		must.OK(b, l.Apply(r, policy.Inject{}))
		use, _, err := e.Add(context.Background(), l)
		must.OK(b, err)
		e.Release(use)
	}
}
