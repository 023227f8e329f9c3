package gateway_test

import (
	"compress/gzip"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/audit"
	"sallyport/gateway/credential"
	"sallyport/gateway/upstream"
	"sallyport/internal/test/must"
	"sallyport/policy"
)

const token = "sk-live-0123456789abcdef"

// inject allows everything with a bearer credential.
func inject(names ...string) func(policy.Input) policy.Decision {
	return func(in policy.Input) policy.Decision {
		d := allow(in)
		d.RuleType = "egressAuth"
		if in.Phase == policy.PhaseRequest {
			for _, name := range names {
				d.Inject = append(d.Inject, policy.Injection{Credential: name, Inject: policy.Inject{
					Header: &policy.HeaderInject{Name: "Authorization", Value: "Bearer {{ .token }}"}}})
			}
		}
		return d
	}
}

func (l *env) secrets(sources map[string]credential.Source) {
	l.broker = credential.New(credential.Options{
		Sources: sources,
		Bound: func(name, host string, port uint16) bool {
			return host == "api.example.test" && port == 443
		},
	})
}

func TestCredentialReplacesTheSandboxesOwn(t *testing.T) {
	t.Parallel()
	l := newEnv(t)
	l.policy(inject("openai"))
	l.secrets(map[string]credential.Source{"openai": secret(token)})
	l.name("api.example.test")
	var got *http.Request
	l.upstream("api.example.test", true, func(w http.ResponseWriter, r *http.Request) { got = r })
	r, _ := http.NewRequest("GET", "https://api.example.test/v1?api_key=mine&q=1", nil)
	r.Header.Set("Authorization", "Bearer mine")
	r.Header.Set("Cookie", "session=mine")
	r.Header.Set("X-Api-Key", "mine")
	r.Header.Set("Range", "bytes=0-3")
	r.Header.Set("Accept-Encoding", "gzip, br")
	r.Header.Set("Connection", "X-Absent")
	resp, err := l.client().Do(r)
	must.OK(t, err)
	resp.Body.Close()
	if auth := got.Header.Values("Authorization"); len(auth) != 1 || auth[0] != "Bearer "+token {
		t.Errorf("Authorization %q", auth)
	}
	for _, name := range []string{"Cookie", "X-Api-Key", "Range", "Connection"} {
		if v := got.Header.Get(name); v != "" {
			t.Errorf("%s: %s went out", name, v)
		}
	}
	if got.Header.Get("Accept-Encoding") != "identity" || got.URL.RawQuery != "q=1" {
		t.Errorf("%s, query %s", got.Header.Get("Accept-Encoding"), got.URL.RawQuery)
	}
	events := l.await(2)
	if diff := cmp.Diff(l.steps(), []string{
		"append allow", "lease openai for api.example.test:443 verified=true", "dial api.example.test:443", "enqueue completion allow",
	}); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(events[0].Unmapped.Sallyport.Credentials, []audit.CredentialUse{{Name: "openai"}}); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(events[1].Unmapped.Sallyport.Credentials, []audit.CredentialUse{{Lease: "reading-1", Name: "openai", Version: "v7"}}); diff != "" {
		t.Error(diff)
	}
	for _, e := range events {
		if strings.Contains(fmt.Sprintf("%+v", *e), token) {
			t.Error("the secret is in an event")
		}
	}
	for route := range l.rounds {
		if route != (upstream.Route{Sandbox: "sb-1", Credential: "openai", Host: "api.example.test", Port: 443, TLS: true}) {
			t.Errorf("route %+v", route)
		}
	}
}

// A secret that is short enough to be guessed does not leave, and whoever has to mend
// it is told how.
func TestShortSecretStays(t *testing.T) {
	t.Parallel()
	const short = "hunter2-hunter2"
	for _, version := range []string{"h1", "h2"} {
		m := newVersionEnv(t, "transparent", version, version, "https")
		m.credential("key", short)
		m.policy(func(in policy.Input) policy.Decision {
			d := inject("key")(in)
			d.Upstream = m.reach
			return d
		})
		arrived := m.arrivals()
		resp := m.do(t, m.request(t, "GET", "/", nil))
		body := text(t, resp)
		if resp.StatusCode != 503 || !strings.Contains(body, "shorter than 16 bytes") || !strings.Contains(body, `An operator must set a longer secret for "key"`) || strings.Contains(body, short) {
			t.Errorf("%s: %d %s", version, resp.StatusCode, body)
		}
		if n := arrived.Load(); n > 0 {
			t.Errorf("%s: %d requests have left", version, n)
		}
		_, completions := m.settled(t)
		for _, c := range completions {
			if !strings.Contains(c.Detail, "shorter than 16 bytes, which is not injected unless allowShort") || strings.Contains(fmt.Sprintf("%+v", *c), short) {
				t.Errorf("%s: completed with %q", version, c.Detail)
			}
		}
	}
}

func TestSecretThatComesBackIsScrubbed(t *testing.T) {
	t.Parallel()
	basic := base64.StdEncoding.EncodeToString([]byte("Bearer " + token))
	tests := []struct {
		name   string
		serve  http.HandlerFunc
		method string
		status int
		want   string
	}{
		{"body of known length", func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, "you sent "+r.Header.Get("Authorization")+".")
		}, "GET", 200, "you sent ******"},
		{"chunked body", func(w http.ResponseWriter, r *http.Request) {
			for _, c := range r.Header.Get("Authorization") {
				fmt.Fprintf(w, "%c", c)
				w.(http.Flusher).Flush()
			}
		}, "GET", 200, "*****"},
		{"encoded", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "<"+basic+">") }, "GET", 200, "<"},
		{"header", func(w http.ResponseWriter, r *http.Request) { w.Header().Set("X-Echo", token) }, "GET", 200, ""},
		{"header of HEAD", func(w http.ResponseWriter, r *http.Request) { w.Header().Set("X-Echo", token) }, "HEAD", 200, ""},
		{"redirect", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "https://evil.example.test/?"+token)
			w.WriteHeader(302)
		}, "GET", 302, ""},
		{"trailer", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Trailer", "X-Echo")
			io.WriteString(w, "x")
			w.(http.Flusher).Flush()
			w.Header().Set("X-Echo", token)
		}, "GET", 200, "x"},
		{"compressed although identity was asked for", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			io.WriteString(z, token)
			z.Close()
		}, "GET", 200, "***"},
		{"in a coding that nobody knows", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "rot13")
			io.WriteString(w, token)
		}, "GET", 502, "cannot be searched"},
		{"in a part of a body", func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusPartialContent)
			io.WriteString(w, token[:8])
		}, "GET", 502, "cannot be searched"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			l := newEnv(t)
			l.policy(inject("openai"))
			l.secrets(map[string]credential.Source{"openai": secret(token)})
			l.name("api.example.test")
			l.upstream("api.example.test", true, test.serve)
			r, _ := http.NewRequest(test.method, "https://api.example.test/", nil)
			resp, err := l.client().Do(r)
			must.OK(t, err)
			body := text(t, resp)
			seen := fmt.Sprint(resp.Header, resp.Trailer, body)
			if strings.Contains(seen, token) || strings.Contains(seen, basic) {
				t.Errorf("the sandbox sees %s", seen)
			}
			if resp.StatusCode != test.status || !strings.Contains(body, test.want) {
				t.Errorf("%d %s", resp.StatusCode, body)
			}
			if test.name == "body of known length" && resp.ContentLength != int64(len(body)) {
				t.Errorf("Content-Length %d of %d bytes", resp.ContentLength, len(body))
			}
			c := l.await(2)[1]
			if found := c.Message != ""; found != (test.status != 502) {
				t.Errorf("completion %+v", c)
			}
			findings := l.found()
			if found := len(findings) == 1; found != (test.status != 502) {
				t.Fatalf("%d findings", len(findings))
			}
			for _, f := range findings {
				x := &f.Unmapped.Sallyport
				if x.State != audit.FindingInAnswer || f.FindingInfo.Related[0].UID != c.ID() || x.Found[0].Name != "openai" || x.Sandbox != "demo" {
					t.Errorf("the finding is %+v", f)
				}
			}
		})
	}
}

// unreachable is a source that fails in words of its own.
type unreachable struct{ error }

func (u unreachable) Read(context.Context) (credential.Material, error) {
	return credential.Material{}, fmt.Errorf("dialling vault.internal:8200 with role-id 77: %w", u.error)
}

func TestCredentialThatCannotBeHad(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, credential, want string
		url                    string
		status                 int
	}{
		{"unknown", "missing", "must add \"missing\" to credentials", "https://api.example.test/", 503},
		{"without a secret", "empty", "sallyport secret set empty", "https://api.example.test/", 503},
		{"unreachable source", "vault", "source cannot be reached", "https://api.example.test/", 503},
		{"refused by the source", "refused", "source refused", "https://api.example.test/", 503},
		{"not bound", "openai", "bind \"openai\" to this destination", "https://api.example.test:8443/", 503},
		{"without TLS", "openai", "a credential goes over TLS only", "http://api.example.test/", 403},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			l := newEnv(t)
			l.policy(inject(test.credential))
			l.secrets(map[string]credential.Source{
				"openai": secret(token), "empty": secret(""),
				"vault": unreachable{credential.ErrUnavailable}, "refused": unreachable{credential.ErrRefused},
			})
			l.name("api.example.test")
			l.upstream("api.example.test", true, func(http.ResponseWriter, *http.Request) { t.Error("reached") })
			resp, body := get(t, l.client(), test.url)
			if resp.StatusCode != test.status || !strings.Contains(body, test.want) {
				t.Errorf("%d %s", resp.StatusCode, body)
			}
			if strings.Contains(body, "vault.internal") || strings.Contains(body, "role-id") {
				t.Errorf("the cause is the operator's: %s", body)
			}
			if l.dials() != 0 {
				t.Error("dialled")
			}
			if test.status == 403 {
				l.await(1)
				return
			}
			c := l.await(2)[1]
			if c.StatusID != audit.StatusFailure || c.HTTPResponse.Code != 503 || c.Unmapped.Sallyport.Credentials[0].Name != test.credential {
				t.Errorf("completion %+v", c)
			}
		})
	}
}

// TestWebSocketIsScrubbed: an upstream that is sent the credential with the
// handshake gives it back in the handshake's header and in frames.
func TestWebSocketIsScrubbed(t *testing.T) {
	t.Parallel()
	l := newEnv(t)
	l.policy(inject("openai"))
	l.secrets(map[string]credential.Source{"openai": secret(token)})
	l.upstream("api.example.test", true, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+token || r.Header.Get("Sec-WebSocket-Extensions") != "" {
			t.Errorf("the upstream got %v", r.Header)
		}
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", "websocket")
		w.Header().Set("Sec-WebSocket-Accept", acceptOf(r))
		w.Header().Set("X-Echo", r.Header.Get("Authorization"))
		w.WriteHeader(101)
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		// A text message in two fragments, the token across them (RFC 6455, section 5.2).
		io.WriteString(c, "\x01\x0c< "+token[:10])
		fmt.Fprintf(c, "\x80%c%s >", len(token)-10+2, token[10:])
		io.WriteString(c, "\x88\x00")
	})
	c, err := l.secure(l.name("api.example.test").String()+":443", "api.example.test")
	must.OK(t, err)
	io.WriteString(c, "GET / HTTP/1.1\r\nHost: api.example.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n")
	seen, _ := io.ReadAll(c)
	if got := string(seen); !strings.HasPrefix(got, "HTTP/1.1 101") || strings.Contains(got, token) || strings.Contains(got, token[10:]) ||
		strings.Count(got, "*") < 2*len(token) || !strings.Contains(got, " >") {
		t.Errorf("the sandbox sees %q", got)
	}
	if c := l.await(2)[1]; !strings.Contains(c.Message, "2 times") {
		t.Errorf("completion says %q", c.Message)
	}
}

func TestUpstreamErrorsKeepTheirStatusAndNothingElse(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		err    error
		status int
	}{
		{"denied address", &upstream.Error{Kind: upstream.KindAddress, Host: "api.example.test", Port: 443, Err: &upstream.AddressError{Host: "api.example.test"}}, 403},
		{"timeout", &upstream.Error{Kind: upstream.KindTimeout, Host: "api.example.test", Port: 443, Err: context.DeadlineExceeded}, 504},
		{"lookup", &upstream.Error{Kind: upstream.KindLookup, Host: "api.example.test", Port: 443}, 502},
		{"too many connections", &upstream.Error{Kind: upstream.KindBusy, Host: "api.example.test", Port: 443}, 429},
		{"pool closed", &upstream.Error{Kind: upstream.KindClosed, Host: "api.example.test", Port: 443}, 503},
		{"proxy", &upstream.Error{Kind: upstream.KindProxy, Host: "api.example.test", Port: 443, Err: &upstream.ProxyError{Err: errors.New(token)}}, 502},
		{"login at a proxy", &upstream.Error{Kind: upstream.KindLogin, Host: "api.example.test", Port: 443, Err: &upstream.LoginError{Credential: "corp", Err: fmt.Errorf("%w: %s", credential.ErrNoSecret, token)}}, 503},
		{"text of the upstream's", errors.New("malformed HTTP response " + token), 502},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			l := newEnv(t)
			l.policy(inject("openai"))
			l.secrets(map[string]credential.Source{"openai": secret(token)})
			l.name("api.example.test")
			l.fail = test.err
			resp, body := get(t, l.client(), "https://api.example.test/")
			events := l.await(2)
			c := events[1]
			if resp.StatusCode != test.status || resp.Header.Get("Sallyport-Decision") != events[0].ID() || !strings.Contains(body, "what to do: ") {
				t.Errorf("%d %s, want %d", resp.StatusCode, body, test.status)
			}
			if test.name == "login at a proxy" && (!strings.Contains(body, "sallyport secret set corp --field username --field password") || !strings.Contains(c.Detail, "for the proxy")) {
				t.Errorf("%s %s does not say what to do", body, c.Detail)
			}
			if strings.Contains(body+c.Detail, token) {
				t.Errorf("the upstream's text came through: %s %s", body, c.Detail)
			}
			if c.StatusID != audit.StatusFailure || c.HTTPResponse.Code != test.status || (c.Disposition == audit.DispositionBlocked) != (test.status == 403) {
				t.Errorf("completion %+v", c)
			}
		})
	}
}
