package gateway_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/gateway"
	"sallyport/gateway/credential"
	"sallyport/gateway/placeholder"
	"sallyport/internal/test/must"
	"sallyport/policy"
)

// issuer is a source of short-lived tokens: each reading is another.
type issuer struct {
	read    atomic.Int64
	forever bool
}

// local is a source that is asked for each lease.
type local struct{}

func (local) Read(context.Context) (credential.Material, error) {
	return credential.Material{Fields: map[string]credential.Secret{"token": credential.NewSecret("short-lived-token-1")}, Version: "v1"}, nil
}

func (i *issuer) TTL() time.Duration { return time.Hour }

func (i *issuer) Read(context.Context) (credential.Material, error) {
	n := i.read.Add(1)
	m := credential.Material{Fields: map[string]credential.Secret{"token": credential.NewSecret(fmt.Sprintf("short-lived-token-%d", n))}, Version: fmt.Sprint("v", n)}
	if !i.forever {
		m.Expires = time.Now().Add(time.Hour)
	}
	return m, nil
}

// whole is a policy that sees the bodies of requests.
type whole struct{ *env }

func (whole) Need(policy.Input) policy.Need { return policy.Need{Max: 1 << 10, JSON: true} }

// A token that an upstream does not take any more is asked for anew once, and the request
// is sent again where it may be.
func TestRefusedCredentialIsHadAnew(t *testing.T) {
	for name, tt := range map[string]struct {
		method, body string
		buffered     bool
		held         bool // the sandbox sends its placeholder
		forever      bool // the token does not expire
		local        bool
		accepts      string // the token that is taken; empty: none
		status       int
		tokens       []string // that the upstream was shown
		said         string
	}{
		"a method that is safe":        {method: "GET", accepts: "2", status: 200, tokens: []string{"1", "2"}, said: "sent again"},
		"one that is idempotent":       {method: "DELETE", accepts: "2", status: 200, tokens: []string{"1", "2"}, said: "sent again"},
		"with a body in memory":        {method: "PUT", body: `{"a":1}`, buffered: true, accepts: "2", status: 200, tokens: []string{"1", "2"}, said: "sent again"},
		"with a body that has gone":    {method: "PUT", body: `{"a":1}`, accepts: "2", status: 401, tokens: []string{"1"}, said: "not one to repeat"},
		"where a placeholder stood":    {method: "GET", held: true, accepts: "2", status: 200, tokens: []string{"1", "2"}, said: "sent again"},
		"with a body that is searched": {method: "PUT", body: `{"a":1}`, buffered: true, held: true, accepts: "2", status: 401, tokens: []string{"1"}, said: "not one to repeat"},
		"a method that does things":    {method: "POST", body: `{"a":1}`, buffered: true, accepts: "2", status: 401, tokens: []string{"1"}, said: "not one to repeat"},
		"one that no token helps":      {method: "GET", status: 401, tokens: []string{"1", "2"}, said: "sent again"},
		"a secret that has no end":     {method: "GET", forever: true, accepts: "2", status: 200, tokens: []string{"1", "2"}, said: "sent again"},
		"one that is read each time":   {method: "GET", local: true, accepts: "2", status: 401, tokens: []string{"1"}},
		"a token that is still taken":  {method: "GET", accepts: "1", status: 200, tokens: []string{"1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var options []option
			if tt.buffered {
				options = append(options, func(o *gateway.Options) { o.Decider = whole{o.Decider.(*env)} })
			}
			held := placeholder.Derive([]byte("a key"), "sb-1", "tokens", policy.Shape{Prefix: "sallyport:tokens:", Alphabet: "0123456789abcdef", Length: 40})
			decide := inject("tokens")
			if tt.held {
				options = append(options, func(o *gateway.Options) {
					o.Placeholders = func(string) *placeholder.Set { return placeholder.New([]placeholder.Held{held}) }
				})
				decide = func(in policy.Input) policy.Decision {
					d := inject("tokens")(in)
					for i := range d.Inject {
						d.Inject[i].Inject = policy.Inject{Placeholder: []string{policy.PlaceHeader + ":X-Note"}}
					}
					return d
				}
			}
			l := newEnv(t, options...)
			l.policy(decide)
			from := &issuer{forever: tt.forever}
			l.secrets(map[string]credential.Source{"tokens": from})
			if tt.local {
				l.secrets(map[string]credential.Source{"tokens": local{}})
			}
			l.name("api.example.test")
			shown := make(chan string, 9)
			l.upstream("api.example.test", true, func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				place := "Authorization"
				if tt.held {
					place = "X-Note"
				}
				if string(body) != tt.body || r.Header.Get("X-Mine") != "1" || len(r.Header[place]) != 1 || r.URL.RawQuery != "q=1" {
					t.Errorf("got %s %v with %q", r.URL, r.Header, body)
				}
				got, ok := strings.CutPrefix(r.Header.Get(place), "Bearer short-lived-token-")
				if !ok {
					t.Errorf("%s %q", place, r.Header.Get(place))
				}
				shown <- got
				if got != tt.accepts {
					w.WriteHeader(http.StatusUnauthorized)
					io.WriteString(w, "no")
				}
			})
			r, err := http.NewRequest(tt.method, "https://api.example.test/v1?q=1", strings.NewReader(tt.body))
			must.OK(t, err)
			r.Header.Set("X-Mine", "1")
			r.Header.Set("Content-Type", "application/json")
			if tt.held {
				r.Header.Set("X-Note", "Bearer "+held.Text)
			}
			resp, err := l.client().Do(r)
			must.OK(t, err)
			text(t, resp)
			close(shown)
			if tokens := slices.Collect(seq(shown)); resp.StatusCode != tt.status || !slices.Equal(tokens, tt.tokens) {
				t.Errorf("status %d with tokens %v, want %d with %v", resp.StatusCode, tokens, tt.status, tt.tokens)
			}
			events := l.await(2)
			if message := events[1].Message; tt.said != "" && !strings.Contains(message, "did not take the credential tokens (version v1)") || !strings.Contains(message, tt.said) {
				t.Errorf("the completion says %q", message)
			}
			var used []string
			for _, u := range events[1].Unmapped.Sallyport.Credentials {
				used = append(used, strings.TrimPrefix(u.Version, "v"))
			}
			if !slices.Equal(used, tt.tokens) {
				t.Errorf("the completion has versions %v, want %v", used, tt.tokens)
			}
			if tt.status == 401 && !tt.local {
				must.Soon(t, "another token", func() bool { return from.read.Load() == 2 })
			}
		})
	}
}

func seq(c chan string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for s := range c {
			if !yield(s) {
				return
			}
		}
	}
}

// A sandbox's requests can have a destination refuse anything, but not flood the source.
func TestRefusalsDoNotFloodTheSource(t *testing.T) {
	t.Parallel()
	l := newEnv(t)
	l.policy(inject("tokens"))
	from := &issuer{}
	l.secrets(map[string]credential.Source{"tokens": from})
	l.name("api.example.test")
	var asked atomic.Int64
	l.upstream("api.example.test", true, func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.Header().Set("Date", time.Now().Add(time.Hour).UTC().Format(http.TimeFormat))
		w.WriteHeader(http.StatusUnauthorized)
	})
	client := l.client()
	const requests = 50
	for range requests {
		resp, err := client.Get("https://api.example.test/")
		must.OK(t, err)
		text(t, resp)
		if resp.StatusCode != http.StatusUnauthorized {
			t.Fatal(resp.Status)
		}
	}
	if from.read.Load() != 2 || asked.Load() != requests+1 {
		t.Errorf("%d tokens and %d requests, want 2 and %d", from.read.Load(), asked.Load(), requests+1)
	}
	completions := slices.DeleteFunc(l.await(2*requests), func(e *audit.Event) bool { return e.Unmapped.Sallyport.Kind != "completion" })
	if last := completions[len(completions)-1].Message; !strings.Contains(last, "no other yet") || !strings.Contains(last, "clock is 1h0m0s behind") && !strings.Contains(last, "clock is 59m") {
		t.Errorf("the last completion says %q", last)
	}
}
