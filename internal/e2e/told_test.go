package e2e

import (
	"encoding/json"
	"strings"
	"testing"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/internal/api"
	"sallyport/internal/test/must"
)

// A reload tells of what an operator may not have meant: a rule that selects by name a
// sandbox that was there before it, and a secret that is too short to be injected.
func testReloadTells(t *testing.T, r *rig) {
	r.ok("run", "agent", "--", "true")
	r.ok("run", "other", "--", "true")
	if res := r.feed("hunter2-hunter2\n", "secret", "set", "pin"); res.code != 0 {
		t.Fatal(res)
	}
	const tooShort = "field token is shorter than 16 bytes and is not injected: set a longer one, or name it in allowShort"
	// told is what the daemon says after a reload: of names in the log, the events and the
	// status, and of the secret in the log and the list of secrets.
	type told struct{ selectedLog, selectedEvents, selectedStatus, shortLog, shortList int }
	reload := func(rules string) (is told) {
		t.Helper()
		before := len(r.whole())
		r.configure(baseConfig, rules)
		r.reload()
		for line := range strings.Lines(r.whole()[before:]) {
			if strings.Contains(line, "select sandboxes by a name") && strings.Contains(line, "agent") && !strings.Contains(line, "other") {
				is.selectedLog++
			}
			if strings.Contains(line, "requests that need a credential will be refused") && strings.Contains(line, tooShort) {
				is.shortLog++
			}
		}
		for line := range strings.Lines(r.ok("audit", "query", "--kind", "lifecycle", "-o", "json")) {
			var e auditlog.Record
			must.OK(t, json.Unmarshal([]byte(line), &e))
			if e := e.Decision; e.Unmapped.Sallyport.State == "selected" && strings.HasSuffix(e.Detail, "by name what was there before them: agent") && e.SeverityID == audit.SeverityMedium {
				is.selectedEvents++
			}
		}
		is.selectedStatus = strings.Count(r.ok("status"), "what was there before: agent: see that each")
		var secrets []api.Secret
		must.OK(t, json.Unmarshal([]byte(r.ok("secret", "ls", "-o", "json")), &secrets))
		for _, s := range secrets {
			if s.Name == "pin" && s.Error == tooShort {
				is.shortList++
			}
		}
		return is
	}
	rules := func(allow string) string {
		return strings.Replace(ruleConfig, "egress:", "- {destination: pin.example.test, authRef: pin, sandboxes: {names: [agent, absent]}}\negress:", 1) + "- {name: pin" + allow + "}\n"
	}
	if got, want := reload(ruleConfig+"# nothing new\n"), (told{}); got != want {
		t.Errorf("nothing new: %+v, want %+v", got, want)
	}
	if got, want := reload(rules("")), (told{1, 1, 1, 1, 1}); got != want {
		t.Errorf("a rule by name: %+v, want %+v\n%s\n%s", got, want, r.logged(), r.ok("status"))
	}
	// The event stays; what is not new is not said again.
	if got, want := reload(rules(", allowShort: [token]")), (told{0, 1, 0, 0, 0}); got != want {
		t.Errorf("the short field is allowed: %+v, want %+v", got, want)
	}
	r.configure(baseConfig, ruleConfig)
	r.reload()
}
