package e2e

import (
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/internal/test/must"
)

const placeholderRules = `
egressAuth:
- destination: api.example.test
  authRef: key
  inherit: true
  upstream: {addresses: [198.51.100.10], roots: ca.pem, resolver: "198.51.100.10:53"}
egress:
- destination: unlisted.example.test
  upstream: {addresses: [198.51.100.10], roots: ca.pem, resolver: "198.51.100.10:53"}
credentials:
- {name: key, placeholder: {env: API_KEY, like: sk-e2e-}}
`

// asks sends a request with a header and a body, and prints status and answer.
const asks = `
import sys, urllib.request
url, key, body = sys.argv[1:4]
r = urllib.request.Request(url, data=body.encode() or None, headers={"Authorization": "Bearer " + key} if key else {})
try:
    a = urllib.request.urlopen(r, timeout=30)
except urllib.error.HTTPError as e:
    a = e
print(a.status, a.read().decode())
`

// A sandbox's commands hold a placeholder, which is worth nothing but where the credential is
// given; a fork has its own, and its parent's is known too. A secret that was sent before the
// worker or the daemon ended, or by the parent, is not shown after it.
func TestPlaceholderAndWhatWasSentBefore(t *testing.T) {
	r := newRig(t, "")
	first, second := r.key, "the-next-"+rand.Text()
	r.api = http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		_, _ = io.Copy(io.Discard, q.Body)
		switch {
		case q.URL.Path == "/old":
			fmt.Fprintf(w, "it was %s.", first)
		case q.Header.Get("Authorization") == "Bearer "+first, q.Header.Get("Authorization") == "Bearer "+second:
			fmt.Fprint(w, "known")
		default:
			fmt.Fprint(w, "a stranger")
		}
	})
	r.configure(baseConfig, placeholderRules)
	r.serve()
	r.up()
	r.setKey()
	key := func(name string) string {
		text := strings.TrimSpace(r.ok("run", name, "--", "sh", "-c", "echo $API_KEY"))
		if !regexp.MustCompile(`^sk-e2e-[A-Za-z0-9]{40}$`).MatchString(text) {
			t.Fatalf("%s has %q", name, text)
		}
		return text
	}
	ask := func(name, url, key, body string) string {
		return strings.TrimSpace(r.ok("run", name, "--", "python3", "-c", asks, url, key, body))
	}
	parents := key("agent")
	if got := ask("agent", "https://api.example.test/v1", parents, ""); got != "200 known" {
		t.Errorf("with the placeholder: %s", got)
	}
	for _, c := range []struct{ url, key, body string }{
		{"https://unlisted.example.test/", parents, ""}, {"https://unlisted.example.test/", "", parents}, {"https://api.example.test/v1", "", "key=" + parents},
	} {
		if got := ask("agent", c.url, c.key, c.body); !strings.HasPrefix(got, "403 ") || !strings.Contains(got, "placeholder") {
			t.Errorf("%+v: %s", c, got)
		}
	}
	if show := r.ok("sandbox", "get", "agent"); !strings.Contains(show, "API_KEY") || strings.Contains(show, parents) {
		t.Errorf("shown: %s", show)
	}
	found := 0
	must.Soon(t, "findings", func() bool {
		found = strings.Count(r.ok("audit", "query", "-o", "json"), `"`+audit.FindingExfiltration+`"`)
		return found >= 3
	})
	r.ok("sandbox", "fork", "agent", "child")
	childs := key("child")
	if childs == parents {
		t.Error("a fork has its parent's placeholder")
	}
	for _, k := range []string{childs, parents} {
		if got := ask("child", "https://api.example.test/v1", k, ""); got != "200 known" {
			t.Errorf("a fork, with %s: %s", k, got)
		}
	}
	r.key = second
	r.setKey()
	hidden := func(when string) {
		t.Helper()
		for _, name := range []string{"agent", "child"} {
			if got := ask(name, "https://api.example.test/old", "", ""); !strings.HasPrefix(got, "200 it was ***") || strings.Contains(got, first) {
				t.Errorf("%s, %s was shown %q", when, name, got)
			}
		}
	}
	hidden("at first")
	was := r.gatewayPID()
	must.OK(t, syscall.Kill(was, syscall.SIGKILL))
	for deadline := time.Now().Add(time.Minute); r.gatewayPID() == was || r.gatewayPID() == 0; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("there is no other worker")
		}
	}
	hidden("after the worker")
	r.kill(syscall.SIGTERM)
	r.up()
	hidden("after the daemon")
	r.ok("sandbox", "fork", "child", "grandchild")
	if got := ask("grandchild", "https://api.example.test/old", parents, ""); !strings.HasPrefix(got, "200 it was ***") {
		t.Errorf("the last fork: %s", got)
	}
	if again := key("agent"); again != parents {
		t.Errorf("after restarts the placeholder is %s, it was %s", again, parents)
	}
}
