package gateway_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/gateway"
	"sallyport/internal/test/must"
	"sallyport/policy"
	"sallyport/policy/check"
	"sallyport/policy/engine"
	"sallyport/policy/finding"
)

// deciding is a gateway that a real policy decides for: a rule for
// api.example.test, and a team's Rego.
func deciding(t *testing.T, timeout time.Duration, rego string) *env {
	t.Helper()
	dir := t.TempDir()
	must.OK(t, os.WriteFile(filepath.Join(dir, "team.rego"), []byte("package sallyport.team.x\n\n"+rego), 0o600))
	doc := policy.Document{
		Egress: []policy.EgressRule{{Name: "api", Destination: "api.example.test"}},
		Policy: policy.Source{Dir: dir},
	}
	if f := check.Run(t.Context(), doc); len(f) > 0 && f[0].Severity == finding.Error {
		t.Fatal(f)
	}
	p, err := engine.Compile(t.Context(), doc, engine.Options{Timeout: timeout})
	must.OK(t, err)
	l := newEnv(t, func(o *gateway.Options) { o.Decider = engine.NewEngine(p) })
	l.name("api.example.test")
	l.upstream("api.example.test", true, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "well") })
	return l
}

// long takes minutes where nobody stops it.
const long = `count([1 | some i in numbers.range(1, 100000); some j in numbers.range(1, 100000); i == j]) == 7`

// TestPolicyThatGoesWrong holds that what a policy cannot decide is denied, with
// a reason and an event, and that the gateway goes on: the next request on the
// same connection is carried.
func TestPolicyThatGoesWrong(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, rego string
		says       string // the answer
		detail     string // the event, for the operator
	}{
		{"it loops", `deny contains "x" if {
	input.request.path == "/bad"
	` + long + `
}`, "could not be evaluated", "no answer within the timeout of 1s"},
		{"it counts without end", `deny contains "x" if {
	input.request.path == "/bad"
	count(numbers.range(1, 1000000000000)) == 7
}`, "could not be evaluated", "no answer within the timeout of 1s"},
		{"a rule has two outputs", `most := 1 if input.request.path == "/bad"

most := 2 if input.request.method == "GET"

deny contains "x" if most == 3`, "could not be evaluated", "eval_conflict_error"},
		{"a function has two outputs", `f(path) := 1 if startswith(path, "/b")

f(path) := 2 if endswith(path, "d")

deny contains "x" if f(input.request.path) == 3`, "could not be evaluated", "eval_conflict_error"},
		{"a built-in function fails", `deny contains "x" if {
	input.request.path == "/bad"
	to_number(input.request.path) == 1
}`, "could not be evaluated", "to_number"},
		{"an allow is text", `allow contains "yes" if input.request.path == "/bad"`, "malformed", `an allow must be`},
		{"an allow names no rule", `allow contains {"reason": "because"} if input.request.path == "/bad"`, "malformed", "an allow must be"},
		{"an allow lists no protocols", `allow contains {"rule": "x", "protocols": "tls"} if input.request.path == "/bad"`, "malformed", "an allow must be"},
		{"an inject is text", `inject contains "key" if input.request.path == "/bad"`, "could not be evaluated", "an inject is string"},
		{"an inject names a place that there is not", `inject contains {"credential": "key", "inject": {"heder": {}}} if input.request.path == "/bad"`, "could not be evaluated", "heder"},
		{"a deny is no text", `deny contains {"why": ["because"]} if input.request.path == "/bad"`, `"why"`, ""},
		{"an approve is no text", `approve contains 7 if input.request.path == "/bad"`, "7", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			timeout := patience
			if strings.HasPrefix(tt.detail, "no answer") {
				timeout = time.Second
			}
			l := deciding(t, timeout, tt.rego)
			client := l.client()
			resp, body := get(t, client, "https://api.example.test/bad")
			if resp.StatusCode != http.StatusForbidden || !strings.Contains(body, tt.says) && !strings.Contains(strings.ReplaceAll(body, `\"`, `"`), tt.says) {
				t.Errorf("got %d %s, want 403 with %q", resp.StatusCode, body, tt.says)
			}
			id := resp.Header.Get("Sallyport-Decision")
			if id == "" || !strings.Contains(body, id) {
				t.Errorf("the answer does not name the decision %q: %s", id, body)
			}
			e := l.await(1)[0]
			s := e.Unmapped.Sallyport
			if e.Action != audit.ActionDenied || s.Reason == "" || !strings.Contains(e.Detail, tt.detail) {
				t.Errorf("the event: got %v, %q, %q, want a denial about %q", e.Action, s.Reason, e.Detail, tt.detail)
			}
			if got, want := l.gauge("sallyport_gateway_unevaluated_total"), 1.0; tt.detail != "" && got != want {
				t.Errorf("%v were counted as not evaluated, want %v", got, want)
			}
			if resp, body := get(t, client, "https://api.example.test/good"); resp.StatusCode != http.StatusOK || body != "well" {
				t.Errorf("the next request: got %d %s", resp.StatusCode, body)
			}
		})
	}
}

// TestPolicyThatIsSlowHoldsNobodyElse holds that requests which a policy takes
// its time about do not keep others waiting for their end.
func TestPolicyThatIsSlowHoldsNobodyElse(t *testing.T) {
	t.Parallel()
	const timeout = 2 * time.Second
	l := deciding(t, timeout, `deny contains "x" if {
	input.request.path == "/bad"
	`+long+`
}`)
	const slow = 4
	statuses := make(chan int, slow)
	for range slow {
		client := l.client()
		go func() {
			resp, err := client.Get("https://api.example.test/bad")
			if err != nil {
				statuses <- 0
				return
			}
			resp.Body.Close()
			statuses <- resp.StatusCode
		}()
	}
	time.Sleep(100 * time.Millisecond) // they are being decided
	if resp, body := get(t, l.client(), "https://api.example.test/good"); resp.StatusCode != http.StatusOK || body != "well" {
		t.Errorf("got %d %s", resp.StatusCode, body)
	}
	if n := len(statuses); n == slow { // they share the processors with it
		t.Error("it waited for the slow ones")
	}
	for range slow {
		if got := <-statuses; got != http.StatusForbidden {
			t.Errorf("a slow one: got %d", got)
		}
	}
}
