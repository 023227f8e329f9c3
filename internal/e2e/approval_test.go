package e2e

import (
	"encoding/json"
	"strings"
	"syscall"
	"testing"

	"sallyport/audit/auditlog"
	"sallyport/internal/api"
	"sallyport/internal/test/must"
	"sallyport/policy/approval"
)

const approvalRules = `
egressAuth:
- destination: api.example.test
  authRef: key
  upstream: {addresses: [198.51.100.10], roots: ca.pem, resolver: "198.51.100.10:53"}
egress:
- {name: deletions, destination: api.example.test, methods: [DELETE], action: approve, upstream: {addresses: [198.51.100.10], roots: ca.pem, resolver: "198.51.100.10:53"}}
credentials:
- name: key
approvals: {timeout: 1m}
`

// From inside of a gVisor sandbox a request is held and approved, denied, not
// answered in time, and approved for longer; what is held goes with the gateway's
// process, and what is granted outlives the daemon.
func TestApproval(t *testing.T) {
	r := newRig(t, "")
	r.configure(baseConfig, approvalRules)
	r.serve()
	r.up()
	r.setKey()
	r.ok("run", "agent", "--", "true")

	list := func() (l api.ApprovalList) {
		t.Helper()
		must.OK(t, json.Unmarshal([]byte(r.ok("approvals", "ls", "-o", "json")), &l))
		return l
	}
	// send makes a request in the sandbox; held is what waits of it.
	send := func(shell string) <-chan result {
		done := make(chan result, 1)
		go func() {
			res, err := r.daemon.Run("", "run", "agent", "--", "sh", "-c", shell)
			if err != nil {
				t.Error(err)
			}
			done <- result{res.Stdout, res.Stderr, res.Code}
		}()
		return done
	}
	held := func() (one approval.Request) {
		t.Helper()
		r.await("the request to be listed", func() bool {
			l := list()
			if len(l.Requests) == 1 {
				one = l.Requests[0]
			}
			return one.ID != ""
		})
		return one
	}
	remove := func(path string) string {
		return "curl -sS -i -m 60 -X DELETE -d sure https://api.example.test" + path
	}
	events := func(id string) (states []string) {
		for line := range strings.Lines(r.ok("audit", "query", "--kind", "lifecycle", "-o", "json")) {
			var r auditlog.Record
			if err := json.Unmarshal([]byte(line), &r); err != nil {
				t.Fatalf("%v: %s", err, line)
			}
			if x := r.Decision.Unmapped.Sallyport; x.Approval != nil && x.Approval.ID == id {
				states = append(states, strings.TrimSpace(x.State+" "+x.Approval.Operator))
			}
		}
		return states
	}
	recorded := func(id, want string) {
		t.Helper()
		var got string
		r.await("the events of "+id, func() bool { got = strings.Join(events(id), ", "); return got == want })
	}

	done := send(remove("/v1/models/1"))
	one := held()
	if s := one.Subject; s.Sandbox != "agent" || s.Method != "DELETE" || s.Path != "/v1/models/1" || s.Length != 4 || strings.Join(s.Credentials, " ") != "key" || s.Rule != "deletions" {
		t.Errorf("asked %+v", s)
	}
	if text := r.ok("approvals", "ls"); !strings.Contains(text, one.ID) || !strings.Contains(text, "DELETE api.example.test:443/v1/models/1") {
		t.Errorf("listed:\n%s", text)
	}
	r.ok("approvals", "approve", one.ID, "--note", "as agreed")
	if res := <-done; !strings.Contains(res.stdout, `"saw_key":true`) || !strings.Contains(res.stdout, `"body_bytes":4`) {
		t.Errorf("approved: %s", res)
	}
	recorded(one.ID, "asked, approved root")
	if log := r.ok("audit", "query", "--kind", "decision", "-o", "json"); strings.Count(log, `"id":"`+one.ID+`","operator":"root"`) != 1 {
		t.Errorf("the decision does not say by whom it was approved:\n%s", log)
	}
	if res := r.sallyport("approvals", "approve", one.ID); res.code != 1 || !strings.Contains(res.stderr, "no such approval") {
		t.Errorf("approved twice: %s", res)
	}

	done = send(remove("/v1/models/2"))
	one = held()
	r.ok("approvals", "deny", one.ID, "--note", "it is in use")
	if res := <-done; !strings.Contains(res.stdout, " 403") || !strings.Contains(res.stdout, "denied by root: it is in use") || strings.Contains(res.stdout, "saw_key") {
		t.Errorf("denied: %s", res)
	}
	recorded(one.ID, "asked, denied root")

	r.configure(baseConfig, strings.Replace(approvalRules, "timeout: 1m", "timeout: 2s", 1))
	r.ok("reload")
	res := <-send(remove("/v1/models/3"))
	if !strings.Contains(res.stdout, " 403") || !strings.Contains(res.stdout, "no operator has approved it in 2s") {
		t.Errorf("not answered: %s", res)
	}
	_, id, _ := strings.Cut(strings.ToLower(res.stdout), "sallyport-approval: ")
	id, _, _ = strings.Cut(id, "\r\n")
	recorded(id, "asked, expired")
	r.configure(baseConfig, approvalRules)
	r.ok("reload")

	done = send(remove("/v1/models/4"))
	one = held()
	must.OK(t, syscall.Kill(r.gatewayPID(), syscall.SIGKILL))
	<-done
	r.await("what was held to be gone", func() bool { return len(list().Requests) == 0 })
	recorded(one.ID, "asked, withdrawn")

	done = send("sleep 1; " + remove("/v1/models/5"))
	one = held()
	r.ok("approvals", "approve", one.ID, "--for", "session", "--path", "/v1/models/*", "--count", "3")
	if res := <-done; !strings.Contains(res.stdout, `"saw_key":true`) {
		t.Errorf("approved for the session: %s", res)
	}
	r.kill(syscall.SIGTERM)
	r.up()
	if l := list(); len(l.Grants) != 1 || l.Grants[0].Left != 2 {
		t.Errorf("after a restart: %+v", l)
	}
	for range 2 {
		if res := <-send(remove("/v1/models/6")); !strings.Contains(res.stdout, `"saw_key":true`) {
			t.Errorf("covered by the session's: %s", res)
		}
	}
	done = send(remove("/v1/models/6"))
	r.ok("approvals", "deny", held().ID)
	if res := <-done; !strings.Contains(res.stdout, " 403") {
		t.Errorf("when the count is used up: %s", res)
	}
	for _, args := range [][]string{
		{"approve"}, {"approve", "x", "--count", "2"}, {"approve", "x", "--for", "never"}, {"approve", "x", "--for", "1h", "--count", "0"}, {"ls", "x"},
	} {
		if res := r.sallyport(append([]string{"approvals"}, args...)...); res.code != 2 {
			t.Errorf("%q: %s", args, res)
		}
	}
	if res := r.inside("agent", "ls /run/sallyport*"); res.code == 0 {
		t.Errorf("the socket's folder is in the sandbox: %s", res)
	}
}
