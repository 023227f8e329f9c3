package gateway_test

import (
	"encoding/base64"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/websocket"

	"sallyport/audit"
	"sallyport/gateway"
	"sallyport/gateway/credential"
	"sallyport/internal/test/must"
	"sallyport/policy"
	"sallyport/policy/limit"
)

// Secrets that come from hosts that were never sent them stop the sandbox: what is
// under way and what begins, tunnels too, until an operator resets the counter.
func TestFoundSecretsStopASandbox(t *testing.T) {
	t.Parallel()
	book := limit.NewBook(nil)
	m := newVersionEnv(t, "transparent", "h1", "h1", "https", func(o *gateway.Options) { o.Budget, o.Found = book, 3 })
	m.credential("key", token)
	m.policy(m.keyed)
	other := m.netEnv.origin("files.example.test", "h1", true)
	m.handle("/keyed", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, token, token, token, token) })
	other.handle("/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, token) })
	m.handle("/open", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "begun\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	ask := func(o *origin, path string) (int, string) {
		resp, err := m.client.Get(o.url("https", path))
		must.OK(t, err)
		return resp.StatusCode, text(t, resp)
	}
	// From where it was sent to it may come back.
	for range 3 {
		if status, body := ask(m.origin, "/keyed"); status != 200 || strings.Contains(body, token) {
			t.Fatalf("%d %s", status, body)
		}
	}
	open := m.do(t, m.request(t, "GET", "/open", nil))
	for range 3 {
		if status, _ := ask(other, "/"); status != 200 {
			t.Fatalf("refused too early: %d", status)
		}
	}
	ended := make(chan error, 1)
	go func() { _, err := io.ReadAll(open.Body); ended <- err }()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("what was under way ends as if it were complete")
		}
	case <-time.After(soon):
		t.Error("what was under way goes on")
		_ = open.Body.Close()
		<-ended
	}
	for _, o := range []*origin{m.origin, other} {
		status, body := ask(o, "/")
		if status != 403 || !strings.Contains(body, "never sent") || !strings.Contains(body, "sallyport limits reset found-credentials") {
			t.Errorf("%s: %d %s", o.name, status, body)
		}
	}
	_, completions := m.settled(t)
	high := 0
	for _, c := range completions {
		if c.SeverityID == audit.SeverityHigh && strings.Contains(c.Message, "never sent") {
			high++
		}
	}
	if high != 3 {
		t.Errorf("%d findings, want 3", high)
	}
	must.Soon(t, "3 events of findings", func() bool {
		guessed := 0
		for _, f := range m.found() {
			if f.Unmapped.Sallyport.State == audit.FindingGuessed && f.SeverityID == audit.SeverityHigh {
				guessed++
			}
		}
		return guessed == 3
	})
	if n := book.Reset(gateway.FoundLimit, limit.Every); n != 1 {
		t.Errorf("%d counters were reset", n)
	}
	if status, body := ask(other, "/"); status != 200 || body != strings.Repeat("*", len(token)) {
		t.Errorf("after the reset: %d %s", status, body)
	}
}

// login is a secret of which the password alone is one.
var login = fields{"username": "deploy-bot@example.test", "password": token, "url": "https://api.example.test/v1"}

// loggingIn has the login put into requests for /keyed.
func (w *netEnv) loggingIn() {
	w.broker = credential.New(credential.Options{
		Sources: map[string]credential.Source{"key": login},
		Bound:   func(string, string, uint16) bool { return true },
	})
	w.policy(func(in policy.Input) policy.Decision {
		d := w.keyed(in)
		for i := range d.Inject {
			d.Inject[i].Inject = policy.Inject{Basic: &policy.BasicInject{Username: "{{ .username }}", Password: "{{ .password }}"}}
		}
		return d
	})
}

// An injected secret counts, once in an answer however often it is there. A public part beside
// it, a username or a URL, is masked and recorded, and does not count.
func TestFoundCountsWhatWasInjected(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"h1", "h2"} {
		t.Run(version, func(t *testing.T) {
			m := newVersionEnv(t, "transparent", version, version, "https", func(o *gateway.Options) { o.Budget, o.Found = limit.NewBook(nil), 3 })
			m.loggingIn()
			other := m.netEnv.origin("files.example.test", version, true)
			pair := login["username"] + ":" + token
			pages := map[string]string{
				"/public":   strings.Repeat(login["username"]+" "+login["url"]+"\n", 9),
				"/password": strings.Repeat(token+"\n", 9),
				"/pair":     strings.Repeat(pair+" "+base64.StdEncoding.EncodeToString([]byte(pair))+" "+token+"\n", 9),
			}
			for path, page := range pages {
				other.handle(path, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, page) })
			}
			m.handle("/keyed", func(http.ResponseWriter, *http.Request) {})
			text(t, m.do(t, m.request(t, "GET", "/keyed", nil)))
			for i, path := range []string{"/public", "/public", "/password", "/public", "/pair", "/public", "/password"} {
				resp, err := m.client.Get(other.url("https", path))
				must.OK(t, err)
				if got := text(t, resp); resp.StatusCode != 200 || strings.Trim(got, "* \n") != "" || len(got) != len(pages[path]) {
					t.Fatalf("%d. %s: %d %.200q", i+1, path, resp.StatusCode, got)
				}
			}
			resp, err := m.client.Get(other.url("https", "/public"))
			must.OK(t, err)
			if resp.StatusCode != 403 || !strings.Contains(text(t, resp), "never sent") {
				t.Errorf("after three answers with the password: %d", resp.StatusCode)
			}
			_, completions := m.settled(t)
			found := map[audit.Severity]int{}
			for _, c := range completions {
				if len(c.Unmapped.Sallyport.Found) > 0 {
					found[c.SeverityID]++
				}
			}
			if want := map[audit.Severity]int{audit.SeverityMedium: 4, audit.SeverityHigh: 3}; !maps.Equal(found, want) {
				t.Errorf("findings by severity %v, want %v", found, want)
			}
		})
	}
}

// Each message of a WebSocket is an answer.
func TestFoundInMessages(t *testing.T) {
	t.Parallel()
	eachWebSocket(t, func(t *testing.T, m *versionEnv) {
		if m.scheme == "http" {
			t.Skip("no credential goes in the clear")
		}
		keyed := m.netEnv.origin("keyed.example.test", "h1", true)
		keyed.handle("/keyed", func(http.ResponseWriter, *http.Request) {})
		m.credential("key", token)
		m.policy(m.keyed)
		client := m.agent("h1", true, m.dial, false)
		ask := func() int {
			resp, err := client.Get(keyed.url("https", "/keyed"))
			must.OK(t, err)
			text(t, resp)
			return resp.StatusCode
		}
		for path, n := range map[string]int{"/one": 1, "/four": 4} {
			m.mux.Handle(path, websocket.Handler(func(ws *websocket.Conn) {
				for range n {
					_ = websocket.Message.Send(ws, strings.Repeat(token+" ", 9))
				}
				_, _ = io.Copy(io.Discard, ws)
			}))
		}
		if status := ask(); status != 200 {
			t.Fatal(status)
		}
		receive := func(path string, n int) *socket {
			t.Helper()
			s, resp, err := m.upgrade(t, path)
			if err != nil {
				t.Fatal(resp.StatusCode, err)
			}
			for range n {
				if _, payload, err := s.receive(); err != nil || strings.Trim(string(payload), "* ") != "" {
					t.Fatalf("%q %v", payload, err)
				}
			}
			return s
		}
		receive("/one", 1).Close()
		if status := ask(); status != 200 {
			t.Errorf("one message stops the sandbox: %d", status)
		}
		four := receive("/four", 3)
		_, _, _ = four.receive() // the fourth is counted, and does not have to arrive
		four.Close()
		for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
			if ask() == 403 {
				return
			}
		}
		t.Error("five messages do not stop the sandbox")
	})
}

// A fork of a sandbox that is stopped is stopped too, and what a fork finds counts for
// all of its lineage.
func TestForksShareWhatWasFound(t *testing.T) {
	t.Parallel()
	book := limit.NewBook(nil)
	m := newVersionEnv(t, "transparent", "h1", "h1", "https", func(o *gateway.Options) { o.Budget, o.Found = book, 2 })
	m.credential("key", token)
	m.policy(m.keyed)
	m.handle("/keyed", func(http.ResponseWriter, *http.Request) {})
	other := m.netEnv.origin("files.example.test", "h1", true)
	other.handle("/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, token) })
	found := func() int {
		text(t, m.do(t, m.request(t, "GET", "/keyed", nil)))
		resp, err := m.client.Get(other.url("https", "/"))
		must.OK(t, err)
		text(t, resp)
		m.client.CloseIdleConnections() // a connection is of one sandbox
		return resp.StatusCode
	}
	forkOf := func(id string) map[string]string {
		return map[string]string{policy.TagFork: "true", policy.TagLineage: id}
	}
	first := map[string]string{} // which is sb-1
	for i, tags := range []map[string]string{first, forkOf("sb-1"), forkOf("sb-9")} {
		m.tag(tags)
		if status := found(); status != 200 {
			t.Fatalf("%d. %v: %d", i+1, tags, status)
		}
	}
	for _, tags := range []map[string]string{first, forkOf("sb-1")} {
		m.tag(tags)
		if status := found(); status != 403 {
			t.Errorf("of a stopped lineage, %v: %d, want 403", tags, status)
		}
	}
	// The gateway forgets the first of them.
	m.gateway.Forget("sb-1")
	if status := found(); status != 403 {
		t.Errorf("a fork of a stopped sandbox that was removed: %d, want 403", status)
	}
	if n := book.Used(limit.Key{Limit: gateway.FoundLimit, Subject: "sb-9"}).Requests; n != 1 {
		t.Errorf("%d of another lineage", n)
	}
}
