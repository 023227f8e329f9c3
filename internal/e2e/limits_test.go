package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/internal/api"
	"sallyport/internal/test/must"
)

// counters is what `sallyport limits` says.
func (r *rig) counters() (list []api.Limit) {
	r.t.Helper()
	must.OK(r.t, json.Unmarshal([]byte(r.ok("limits", "-o", "json")), &list))
	return list
}

// A budget counts through the end of the process that counts, and of the daemon,
// by SIGKILL under traffic: the upstream never gets more than the limit says, and
// hardly less.
func TestLimitsSurvive(t *testing.T) {
	const most, slack = 400, 40
	var reached atomic.Int64
	r, client := newProxyRigOf(t, fmt.Sprintf("limits: [{name: few, every: 8784h, requests: %d, bytes: 1GiB}]\n", most),
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			reached.Add(1)
			_, _ = io.WriteString(w, `{"saw_key":true}`)
		}))
	stop, ended := make(chan struct{}), make(chan struct{})
	var refused atomic.Int64
	go func() {
		defer close(ended)
		for {
			select {
			case <-stop:
				return
			case <-time.After(2 * time.Millisecond):
			}
			resp, err := client.Get("https://api.example.test/v1")
			if err != nil {
				continue // nobody is there just now
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			if resp.StatusCode == 429 {
				refused.Add(1)
			}
		}
	}()
	await := func(what string, n int64) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); reached.Load() < n && refused.Load() == 0; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: %d requests have come\n%s", what, reached.Load(), r.logged())
			}
		}
	}
	for i := range int64(4) {
		await("before a kill", 60*(i+1))
		if i%2 == 0 {
			pid := r.gatewayPID()
			must.OK(t, syscall.Kill(pid, syscall.SIGKILL))
			for deadline := time.Now().Add(time.Minute); r.gatewayPID() == pid || r.gatewayPID() == 0; time.Sleep(20 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("no process comes after it\n%s", r.logged())
				}
			}
			continue
		}
		child := r.gatewayPID()
		r.kill(syscall.SIGKILL)
		_ = syscall.Kill(child, syscall.SIGKILL) // both at once
		r.up()
	}
	for deadline := time.Now().Add(time.Minute); refused.Load() < 3; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d requests, and none is refused\n%s", reached.Load(), r.logged())
		}
	}
	close(stop)
	<-ended
	list := r.counters()
	if n := reached.Load(); n > most || n < most-slack {
		t.Errorf("%d requests have come, of %d: %+v", n, most, list)
	}
	t.Logf("%d of %d requests have come", reached.Load(), most)
	if len(list) != 1 || list[0].Name != "few" || list[0].Used.Requests != most || list[0].Sandbox != "platform" || list[0].Used.Bytes < 16*(most-slack) {
		t.Errorf("got %+v", list)
	}

	// An ordinary restart loses nothing either.
	r.kill(syscall.SIGTERM)
	r.up()
	if err := fetch(client); err == nil || !strings.Contains(err.Error(), "429") {
		t.Errorf("after a restart: %v", err)
	}
	if again := r.counters(); again[0].Used.Requests != most {
		t.Errorf("after a restart: %+v", again)
	}
	if res := r.sallyport("limits", "reset", "fewer"); res.code != 1 || !strings.Contains(res.stderr, `did you mean "few"?`) {
		t.Errorf("a misspelled limit: %s", res)
	}
	if out := r.ok("limits", "reset", "few", "--subject", "platform"); out != "few: 1 reset\n" {
		t.Errorf("got %q", out)
	}
	if err := fetch(client); err != nil {
		t.Errorf("after it was reset: %v", err)
	}
	// And the reset stays, whatever is killed right after it.
	child := r.gatewayPID()
	r.kill(syscall.SIGKILL)
	_ = syscall.Kill(child, syscall.SIGKILL)
	r.up()
	if err := fetch(client); err != nil {
		t.Errorf("after it was reset and killed: %v", err)
	}
	if list := r.counters(); list[0].Used.Requests > 4 || list[0].Used.Requests < 2 {
		t.Errorf("after it was reset and killed: %+v", list)
	}
	resets := 0
	for e, err := range auditlog.Read(t.Context(), filepath.Join(r.dir, "data/audit"), auditlog.Query{Kind: audit.KindLifecycle}) {
		must.OK(t, err)
		if s := e.Unmapped.Sallyport; s.State == "reset" {
			resets++
			if e.Actor == nil || e.Actor.User.UID != "0" || e.Actor.User.Name != "root" || len(s.Limits) != 1 || s.Limits[0].Name != "few" {
				t.Errorf("the event of the reset: %+v", e)
			}
		}
	}
	if resets != 1 {
		t.Errorf("%d events of one reset", resets)
	}
}

// From inside of a gVisor sandbox: a budget that is used up, what it is told, and
// how it comes back.
func TestLimitInside(t *testing.T) {
	const rule = `
limits:
- {name: three, destination: api.example.test, every: 8784h, requests: %d}
- {name: often, destination: api.example.test, per: all, every: 6s, uses: %d}
`
	r := newRig(t, fmt.Sprintf(rule, 3, 100))
	r.serve()
	r.up()
	r.setKey()
	ask := func() result {
		return r.inside("agent", "curl -s -o /dev/stdout -D - https://api.example.test/v1")
	}
	for range 3 {
		if res := ask(); !strings.Contains(res.stdout, `"saw_key":true`) {
			t.Fatal(res)
		}
	}
	want := func(step, text string) {
		t.Helper()
		if res := ask(); !strings.Contains(res.stdout, text) {
			t.Fatalf("%s: %s\n%s", step, res, r.logged())
		}
	}
	res := ask()
	for _, part := range []string{" 429", "etry-", "reason: limit three: 3 requests within 8784h are used up", "rule: three", "try again after"} {
		if !strings.Contains(res.stdout, part) {
			t.Errorf("%q is not in %s", part, res.stdout)
		}
	}
	if out := r.ok("limits"); !strings.Contains(out, "three") || !strings.Contains(out, "agent") || !strings.Contains(out, "3 of 3 requests") {
		t.Errorf("got %s", out)
	}
	if res := r.inside("other", "curl -s https://api.example.test/v1"); !strings.Contains(res.stdout, `"saw_key":true`) {
		t.Errorf("another sandbox: %s", res)
	}
	// A reload keeps what is used, also when the limit is another.
	r.ok("reload")
	want("after a reload", " 429")
	r.configure(baseConfig, ruleConfig+fmt.Sprintf(rule, 4, 100))
	r.ok("reload")
	want("with one more", `"saw_key":true`)
	want("and no more", " 429")
	r.ok("limits", "reset", "three", "--subject", "agent")
	want("after it was reset", `"saw_key":true`)

	// And by itself, when a period ends.
	r.configure(baseConfig, ruleConfig+fmt.Sprintf(rule, 1000, 2))
	r.ok("reload")
	denied := false
	for deadline := time.Now().Add(2 * time.Minute); !denied; {
		// More than a period allows, by one command: commands of their own may take longer
		// than a period.
		const url = " https://api.example.test/v1"
		if res := r.inside("agent", "curl -s -D -"+strings.Repeat(url, 8)); strings.Contains(res.stdout, "rule: often") {
			denied = true
		} else if time.Now().After(deadline) {
			t.Fatalf("it is never used up: %s", res)
		}
	}
	for deadline := time.Now().Add(time.Minute); !strings.Contains(ask().stdout, `"saw_key":true`); time.Sleep(500 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it does not come back")
		}
	}
	if out := r.ok("audit", "query", "--denied"); !strings.Contains(out, "rule=three") || !strings.Contains(out, "rule=often") {
		t.Errorf("got %s", out)
	}
}
