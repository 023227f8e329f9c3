package gateway_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"sallyport/audit"
	"sallyport/internal/test/must"
	"sallyport/policy"
)

// A credential goes to its own host, whatever that answers: a client that follows to
// another host goes there without.
func TestCredentialIsNotCarriedOn(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"h1", "h2"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			w := newNetEnv(t)
			w.credential("key", token)
			w.policy(func(in policy.Input) policy.Decision {
				d := w.allow(in)
				if in.Destination.Host == "api.example.test" && in.Request != nil {
					d.Inject = []policy.Injection{
						{Credential: "key"},
						{Credential: "key", Inject: policy.Inject{Cookie: &policy.CookieInject{Name: "session", Value: "{{ .token }}"}}},
						{Credential: "key", Inject: policy.Inject{Query: &policy.QueryInject{Name: "key", Value: "{{ .token }}"}}},
					}
				}
				return d
			})
			other := w.origin("other.example.test", version, true)
			var mu sync.Mutex
			var got []string
			other.handle("/", func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				defer mu.Unlock()
				got = append(got, fmt.Sprint(r.URL, r.Header))
			})
			api := w.origin("api.example.test", version, true)
			api.handle("/", func(w http.ResponseWriter, r *http.Request) {
				if !strings.Contains(fmt.Sprint(r.Header, r.URL), token) {
					t.Error("the credential did not arrive at its own host")
				}
				// With all that the upstream was sent, as servers do.
				to := other.url("https", "/next?"+r.URL.RawQuery)
				w.Header().Set("Refresh", "0; url="+to)
				w.Header().Set("Alt-Svc", fmt.Sprintf(`h2="other.example.test:%d"; ma=60`, other.port))
				if code := r.URL.Query().Get("code"); code != "" {
					w.Header().Set("Location", to)
					w.WriteHeader(map[string]int{"301": 301, "302": 302, "307": 307, "308": 308}[code])
				}
			})
			client := w.agent(version, true, w.steer, false)
			client.CheckRedirect = nil // follow
			for _, code := range []string{"301", "302", "307", "308"} {
				resp, err := client.Get(api.url("https", "/?code="+code))
				must.OK(t, err)
				if text(t, resp); resp.Request.URL.Hostname() != "other.example.test" {
					t.Errorf("%s: was not followed", code)
				}
			}
			resp, err := client.Get(api.url("https", "/"))
			must.OK(t, err)
			text(t, resp)
			if v := resp.Header.Get("Alt-Svc"); v != "" {
				t.Errorf("Alt-Svc: %s", v)
			}
			_, to, ok := strings.Cut(resp.Header.Get("Refresh"), "url=")
			if !ok || strings.Contains(to, token) {
				t.Fatalf("Refresh: %q", resp.Header.Get("Refresh"))
			}
			resp, err = client.Get(to)
			must.OK(t, err)
			text(t, resp)
			mu.Lock()
			defer mu.Unlock()
			if len(got) != 5 || strings.Contains(fmt.Sprint(got), token) || strings.Contains(fmt.Sprint(got), "Authorization") {
				t.Errorf("the other host got %d requests: %v", len(got), got)
			}
		})
	}
}

// A rule with own: deny lets no request pass that has a credential of the sandbox's own
// where its goes.
func TestOwnCredentialIsDenied(t *testing.T) {
	t.Parallel()
	m := newVersionEnv(t, "transparent", "h1", "h1", "https")
	m.credential("key", token)
	m.policy(func(in policy.Input) policy.Decision {
		d := m.allow(in)
		d.RuleType = "egressAuth"
		d.Inject = inject("key")(in).Inject
		for i := range d.Inject {
			d.Inject[i].DenyOwn = true
		}
		return d
	})
	arrived := m.arrivals()
	r := m.request(t, "GET", "/", nil)
	r.Header["authorization"] = []string{"Bearer mine"}
	resp := m.do(t, r)
	if body := text(t, resp); resp.StatusCode != 403 || !strings.Contains(body, "its own header Authorization, where credential key goes") || arrived.Load() != 0 {
		t.Errorf("%d %s, %d have left", resp.StatusCode, body, arrived.Load())
	}
	if resp := m.do(t, m.request(t, "GET", "/", nil)); resp.StatusCode != 200 {
		t.Errorf("without: %d", resp.StatusCode)
	} else {
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	decisions, _ := m.settled(t)
	if len(decisions) != 2 || decisions[0].Action != audit.ActionDenied || decisions[0].Rule.Type != "egressAuth" {
		t.Errorf("%+v", decisions)
	}
}

// gRPC's metadata are headers: the header kind gives a credential to a call of gRPC's own
// client, and its own server gets it. That sends it back, and the client does not see it.
func TestCredentialInMetadataOfGRPC(t *testing.T) {
	t.Parallel()
	w := newNetEnv(t)
	w.credential("key", token)
	w.policy(func(in policy.Input) policy.Decision {
		d := w.allow(in)
		if in.Request != nil {
			d.Inject = []policy.Injection{{Credential: "key", Inject: policy.Inject{
				Header: &policy.HeaderInject{Name: "x-grpc-test-echo-initial", Value: "{{ .token }}"}}}}
		}
		return d
	})
	o := w.interopServer("api.example.test", true)
	out, err := w.interopClient(t, o, "transparent", true, "custom_metadata")
	if err == nil || !strings.Contains(out, "test_initial_metadata_value") || !strings.Contains(out, strings.Repeat("*", len(token))) || strings.Contains(out, token) {
		t.Errorf("the client says: %v %s", err, out)
	}
	_, completions := w.settled(t)
	for _, c := range completions {
		if s := c.Unmapped.Sallyport; len(s.Credentials) != 1 || len(s.Found) == 0 {
			t.Errorf("%+v", s)
		}
	}
}
