package gateway_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"sallyport/audit"
	"sallyport/gateway"
	"sallyport/policy/budget"
)

// Secrets that come from hosts that were never sent them stop the sandbox: what is
// under way and what begins, tunnels too, until an operator resets the counter.
func TestFoundSecretsStopASandbox(t *testing.T) {
	book := budget.NewBook(nil)
	m := meet(t, "transparent", "h1", "h1", "https", func(o *gateway.Options) { o.Budget, o.Found = book, 3 })
	m.credential("key", token)
	m.policy(m.keyed)
	other := m.wire.origin("files.example.test", "h1", true)
	m.handle("/keyed", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, token, token, token, token) })
	other.handle("/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, token) })
	m.handle("/open", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "begun\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	ask := func(o *origin, path string) (int, string) {
		resp, err := m.client.Get(o.url("https", path))
		if err != nil {
			t.Fatal(err)
		}
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
	if _, err := io.ReadAll(open.Body); err == nil {
		t.Error("what was under way goes on")
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
	if n := book.Reset(gateway.FoundLimit, budget.Every); n != 1 {
		t.Errorf("%d counters were reset", n)
	}
	if status, body := ask(other, "/"); status != 200 || body != strings.Repeat("*", len(token)) {
		t.Errorf("after the reset: %d %s", status, body)
	}
}
