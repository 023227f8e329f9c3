package placeholder_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"sallyport/gateway/credential"
	"sallyport/gateway/placeholder"
	"sallyport/internal/test/must"
	"sallyport/policy"
)

// The head of a request leaves with credentials in the places that a decision lists for
// each, and with nothing of the sandbox's own that travels where credentials do. In the
// table {a} is the placeholder of the credential a, and {A} its secret.
func TestRequestHeads(t *testing.T) {
	a, b := held(t, "a", "sk-a-"), held(t, "b", "sk-b-")
	set := placeholder.New([]placeholder.Held{a, b})
	const secretA, secretB = "secret-of-a-0123456789", "secret-of-b-0123456789"
	written := strings.NewReplacer("{a}", a.Text, "{b}", b.Text, "{A}", secretA, "{B}", secretB)
	at := func(credential string, places ...string) policy.Injection {
		return policy.Injection{Credential: credential, Inject: policy.Inject{Placeholder: places}}
	}
	bearer := func(credential string) policy.Injection { return policy.Injection{Credential: credential} }
	basic := func(pair string) string {
		return "Basic " + base64.StdEncoding.EncodeToString([]byte(written.Replace(pair)))
	}
	all := policy.PlaceholderPlaces
	for _, tt := range []struct {
		name, host, target string
		header             []string // names and values in turn
		inject             []policy.Injection
		want               string // the target and the headers, or why not
	}{
		{"a host's name", "x" + a.Text[a.Public:] + ".example.com", "/", nil, []policy.Injection{at("a", all...)}, "stands in the host's name"},
		{"a host's name, in other letters", strings.ToUpper("x" + a.Text[a.Public:] + ".example.com"), "/", nil, []policy.Injection{bearer("a")}, "stands in the host's name"},
		{"a carrier of the credential that goes elsewhere", "", "/", []string{"X-Api-Key", "{a}"}, []policy.Injection{bearer("a")}, "/ []"},
		{"a carrier of another credential", "", "/", []string{"X-Api-Key", "{a}"}, []policy.Injection{bearer("b")}, "no rule puts the credential into this request"},
		{"a carrier that another credential's rule lists", "", "/", []string{"X-Api-Key", "{a}"}, []policy.Injection{at("b", all...)}, "no rule puts the credential into this request"},
		{"each in its own", "", "/?key={b}", []string{"X-Api-Key", "{a}"}, []policy.Injection{at("a", "header"), at("b", "query")}, "/?key={B} [X-Api-Key: {A}]"},
		{"each in the other's", "", "/?key={a}", []string{"X-Api-Key", "{b}"}, []policy.Injection{at("a", "header"), at("b", "query")}, "the rule does not put the credential there"},
		{"one replaced and one removed", "", "/", []string{"X-Api-Key", "{a}", "X-Auth-Token", "{b}"}, []policy.Injection{at("a", "header"), bearer("b")}, "/ [X-Api-Key: {A}]"},
		{"one replaced and another removed by name", "", "/?token={a}&key={b}", nil, []policy.Injection{at("a", "query:token"), bearer("b")}, "/?token={A} []"},
		{"a header of no carrier", "", "/", []string{"X-Foo", "{a}"}, []policy.Injection{at("a", "header")}, "the rule does not put the credential there"},
		{"a header by its name", "", "/", []string{"X-Foo", "say {a}!"}, []policy.Injection{at("a", "header:x-foo")}, "/ [X-Foo: say {A}!]"},
		{"a header of another name", "", "/", []string{"X-Foo", "{a}"}, []policy.Injection{at("a", "header:X-Bar")}, "the rule does not put the credential there"},
		{"a carrier's list does not hold others", "", "/", []string{"X-Api-Key", "{a}"}, []policy.Injection{at("a", "header:X-Auth-Token")}, "the rule does not put the credential there"},
		{"a parameter of no carrier", "", "/?foo={a}", nil, []policy.Injection{at("a", "query")}, "the rule does not put the credential there"},
		{"a parameter by its name", "", "/?foo=1{a}&bar=2", nil, []policy.Injection{at("a", "query:foo")}, "/?foo=1{A}&bar=2 []"},
		{"a parameter of another name", "", "/?foo={a}", nil, []policy.Injection{at("a", "query:bar")}, "the rule does not put the credential there"},
		{"a parameter beside the sandbox's own", "", "/?key={a}&key=mine&q=1", nil, []policy.Injection{at("a", "query")}, "/?q=1&key={A} []"},
		{"text beside it in a parameter", "", "/?key=mine{a}", nil, []policy.Injection{at("a", "query")}, "other text stands beside it"},
		{"in the name of a parameter", "", "/?key[{a}]={a}", nil, []policy.Injection{at("a", "query")}, "other text stands beside it"},
		{"a parameter whose name cannot be decoded", "", "/?k%zz={a}", nil, []policy.Injection{bearer("a")}, "/ []"},
		{"such a one, to be replaced", "", "/?k%zz={a}", nil, []policy.Injection{at("a", "query")}, "the rule does not put the credential there"},
		{"the path, where it is not listed", "", "/v1/{a}", nil, []policy.Injection{at("a", "header", "query", "body")}, "stands in the path"},
		{"the path", "", "/v1/x{a}", nil, []policy.Injection{at("a", "path")}, "/v1/x{A} []"},
		{"another scheme", "", "/", []string{"Authorization", "Mine {a}"}, []policy.Injection{at("a", "header")}, "other text stands beside it"},
		{"another name", "", "/", []string{"Authorization", "Token mine={a}"}, []policy.Injection{at("a", "header")}, "other text stands beside it"},
		{"a name of credentials", "", "/", []string{"Authorization", "Token token={a}"}, []policy.Injection{at("a", "header")}, "/ [Authorization: Token token={A}]"},
		{"an account of the sandbox's own", "", "/", []string{"Authorization", basic("alice:{a}")}, []policy.Injection{at("a", "header")}, "other text stands beside it"},
		{"a filler", "", "/", []string{"Authorization", basic("oauth2:{a}")}, []policy.Injection{at("a", "header")}, "/ [Authorization: " + basic("oauth2:{A}") + "]"},
		{"cookies", "", "/", []string{"Cookie", "mine=1; session={a}; other=2"}, []policy.Injection{at("a", "header")}, "/ [Cookie: session={A}]"},
		{"two lines, one of the sandbox's own", "", "/", []string{"X-Api-Key", "{a}", "X-Api-Key", "mine"}, []policy.Injection{at("a", "header")}, "/ [X-Api-Key: {A}]"},
		{"subprotocols", "", "/", []string{"Sec-Websocket-Protocol", "chat, key.{a}"}, []policy.Injection{at("a", "header")}, "/ [Sec-Websocket-Protocol: chat, key.{A}]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := http.NewRequest("GET", "https://api.example.com"+written.Replace(tt.target), nil)
			must.OK(t, err)
			for i := 0; i < len(tt.header); i += 2 {
				r.Header.Add(tt.header[i], written.Replace(tt.header[i+1]))
			}
			got, want := heads(r, set, tt.host, policy.Decision{Inject: tt.inject}, map[string]string{"a": secretA, "b": secretB}), written.Replace(tt.want)
			if got != want && !(strings.HasPrefix(got, "denied: ") && strings.Contains(got, want)) {
				t.Errorf("got %s\nwant %s", got, want)
			}
		})
	}
}

// heads is the head as it leaves, or why it does not.
func heads(r *http.Request, set *placeholder.Set, host string, d policy.Decision, secrets map[string]string) string {
	h := placeholder.Find(set, r, host, 128<<10)
	if why := h.Misplaced(d); why != nil {
		return "denied: " + why.Error()
	}
	kept := h.Keep(r, d)
	protocols := r.Header["Sec-Websocket-Protocol"]
	credential.StripRequest(r)
	if protocols != nil { // as the gateway keeps those without credentials
		r.Header["Sec-Websocket-Protocol"] = []string{"chat"}
	}
	for _, i := range d.Inject {
		if i.Inject.Placeholder != nil && h.Needs(i, false) {
			h.Put(i, credential.NewSecret(secrets[i.Credential]))
		}
	}
	if err := h.ReplaceHead(r, kept); err != nil {
		return "error: " + err.Error()
	}
	var lines []string
	for name, values := range r.Header {
		for _, v := range values {
			lines = append(lines, name+": "+v)
		}
	}
	slices.Sort(lines)
	return fmt.Sprintf("%s %s", r.URL.RequestURI(), lines)
}

// With own: deny, a request passes that has the placeholder of the rule's own credential and
// nothing beside it.
func TestFills(t *testing.T) {
	a, b := held(t, "a", "sk-a-"), held(t, "b", "sk-b-")
	set := placeholder.New([]placeholder.Held{a, b})
	header := policy.Inject{Header: &policy.HeaderInject{Name: "X-Key", Value: "our {{ .token }}!"}}
	basic := policy.Inject{Basic: &policy.BasicInject{Username: "alice", Password: "{{ .token }}"}}
	query := policy.Inject{Query: &policy.QueryInject{Name: "q", Value: "{{ .token }}"}}
	pair := func(text string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte(text)) }
	for _, tt := range []struct {
		name   string
		inject policy.Inject
		target string
		header []string
		want   bool
	}{
		{"alone", header, "/", []string{"X-Key", a.Text}, true},
		{"as it is written", header, "/", []string{"X-Key", "our " + a.Text + "!"}, true},
		{"another beginning", header, "/", []string{"X-Key", "my " + a.Text + "!"}, false},
		{"another end", header, "/", []string{"X-Key", "our " + a.Text + "?"}, false},
		{"more in it", header, "/", []string{"X-Key", "our " + a.Text + " mine!"}, false},
		{"another credential's", header, "/", []string{"X-Key", b.Text}, false},
		{"two of them", header, "/", []string{"X-Key", a.Text, "X-Key", "mine"}, false},
		{"another header", header, "/", []string{"X-Api-Key", a.Text}, false},
		{"the rule's user", basic, "/", []string{"Authorization", pair("alice:" + a.Text)}, true},
		{"another user", basic, "/", []string{"Authorization", pair("mallory:" + a.Text)}, false},
		{"a parameter", query, "/?q=" + a.Text, nil, true},
		{"text beside it", query, "/?q=mine" + a.Text, nil, false},
		{"another parameter", query, "/?p=" + a.Text, nil, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := http.NewRequest("GET", "https://api.example.com"+tt.target, nil)
			must.OK(t, err)
			for i := 0; i < len(tt.header); i += 2 {
				r.Header.Add(tt.header[i], tt.header[i+1])
			}
			if got := placeholder.Find(set, r, "api.example.com", 128<<10).Fills(policy.Injection{Credential: "a", Inject: tt.inject, DenyOwn: true}, r); got != tt.want {
				t.Errorf("got %v", got)
			}
		})
	}
}

// A secret that cannot be spelled in its place is refused, and nothing of it is in the error;
// and no placeholder in a place that the rule does not list passes a second look.
func TestSecretsThatAPlaceCannotHold(t *testing.T) {
	a := held(t, "a", "sk-a-")
	set := placeholder.New([]placeholder.Held{a})
	leave := func(secret string, places []string, change func(*http.Request)) error {
		r, err := http.NewRequest("GET", "https://api.example.com/", nil)
		must.OK(t, err)
		change(r)
		h := placeholder.Find(set, r, "api.example.com", 128<<10)
		i := policy.Injection{Credential: "a", Inject: policy.Inject{Placeholder: places}}
		d := policy.Decision{Inject: []policy.Injection{i}}
		kept := h.Keep(r, d)
		h.Put(i, credential.NewSecret(secret))
		return h.ReplaceHead(r, kept)
	}
	inPath := func(r *http.Request) { r.URL.Path = "/v1/" + a.Text }
	asToken := func(r *http.Request) { r.Header["Sec-Websocket-Protocol"] = []string{"key." + a.Text} }
	for _, tt := range []struct {
		name, secret string
		change       func(*http.Request)
		ok           bool
	}{
		{"path", "secret+0123456789", inPath, true},
		{"path, slash", "secret/0123456789", inPath, false},
		{"path, backslash", `secret\0123456789`, inPath, false},
		{"path, percent", "secret%2f0123456789", inPath, false},
		{"path, query", "secret?0123456789", inPath, false},
		{"path, fragment", "secret#0123456789", inPath, false},
		{"path, parameter", "secret;0123456789", inPath, false},
		{"path, dots", "..", inPath, false},
		{"subprotocol", "secret-0123456789", asToken, true},
		{"subprotocol, space", "secret 0123456789", asToken, false},
		{"subprotocol, comma", "secret,0123456789", asToken, false},
	} {
		if err := leave(tt.secret, policy.PlaceholderPlaces, tt.change); (err == nil) != tt.ok || err != nil && strings.Contains(err.Error(), "0123") {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	var found *placeholder.FoundError
	if err := leave("secret-0123456789", []string{"query"}, func(r *http.Request) { r.Header["X-Foo"] = []string{a.Text} }); !errors.As(err, &found) || found.Credential != "a" {
		t.Errorf("where the rule does not list it: %v", err)
	}
	long := strings.Repeat("secret", 8<<10)
	if err := leave(long, policy.PlaceholderPlaces, func(r *http.Request) { r.Header["X-Api-Key"] = slices.Repeat([]string{a.Text}, 3) }); err != nil {
		t.Errorf("one that is kept once: %v", err)
	}
	if err := leave(long, []string{"header:X-Foo"}, func(r *http.Request) { r.Header["X-Foo"] = []string{strings.Repeat(a.Text, 1000)} }); err == nil || !strings.Contains(err.Error(), "larger than 128 KiB") {
		t.Errorf("a head that grows without end: %v", err)
	}
}

// A body is replaced by what its content type says, and only where a rule lists bodies.
func TestBodies(t *testing.T) {
	a := held(t, "a", "sk-a-")
	set := placeholder.New([]placeholder.Held{a})
	const secret = `secret"of+a&0123456789, which is longer than its placeholder`
	for _, tt := range []struct {
		name, kind, coding string
		places             []string
		want               string // "" where it is broken off
	}{
		{"JSON", "application/vnd.a+json", "", []string{"body"}, `>secret\"of+a\u00260123456789, which is longer than its placeholder<`},
		{"a form", "application/x-www-form-urlencoded", "", []string{"body"}, ">secret%22of%2Ba%260123456789%2C+which+is+longer+than+its+placeholder<"},
		{"text", "text/plain", "identity", []string{"body"}, ">" + secret + "<"},
		{"XML", "text/xml", "", []string{"body"}, ""},
		{"bytes", "application/octet-stream", "", []string{"body"}, ""},
		{"nothing said", "", "", []string{"body"}, ""},
		{"not listed", "text/plain", "", []string{"header"}, ""},
		{"coded", "text/plain", "gzip", []string{"body"}, ">" + a.Text + "<"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			// Measured before and after, only before, and not.
			for _, size := range []int{0, 64<<10 - 2 - len(a.Text), 100 << 10} {
				fill := strings.Repeat("x", size)
				r, err := http.NewRequest("POST", "https://api.example.com/", strings.NewReader(fill+">"+a.Text+"<"))
				must.OK(t, err)
				r.Header.Set("Content-Type", tt.kind)
				r.Header.Set("Content-Encoding", tt.coding)
				h := placeholder.Find(set, r, "api.example.com", 128<<10)
				h.Put(policy.Injection{Credential: "a", Inject: policy.Inject{Placeholder: tt.places}}, credential.NewSecret(secret))
				err = h.SearchBody(r, unbounded{}, "s1", func() http.Header { return nil })
				var got []byte
				if err == nil {
					got, err = io.ReadAll(r.Body)
				}
				h.Close()
				if tt.want == "" {
					var found *placeholder.FoundError
					if !errors.As(err, &found) || h.Stolen() == nil || strings.Contains(string(got), a.Text[a.Public:]) {
						t.Errorf("%d bytes: %v, %.99q", size, err, got)
					}
					continue
				}
				if want := fill + tt.want; err != nil || string(got) != want || r.ContentLength >= 0 && r.ContentLength != int64(len(want)) {
					t.Errorf("%d bytes: %v, length %d, got %.99q", size, err, r.ContentLength, got)
				}
			}
		})
	}
	// Trailers behind a body are searched too.
	r, err := http.NewRequest("POST", "https://api.example.com/", strings.NewReader("plain"))
	must.OK(t, err)
	h := placeholder.Find(set, r, "api.example.com", 128<<10)
	must.OK(t, h.SearchBody(r, unbounded{}, "s1", func() http.Header { return http.Header{"X-Sum": {a.Text}} }))
	if _, err := io.ReadAll(r.Body); err == nil || h.Stolen() == nil {
		t.Errorf("a trailer with a placeholder: %v", err)
	}
}

// unbounded is room without end.
type unbounded struct{}

func (unbounded) Take(string, int64) error { return nil }
func (unbounded) Give(string, int64)       {}
