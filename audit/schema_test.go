package audit_test

import (
	"testing"

	"sallyport/audit"
	"sallyport/internal/test/ocsf"
	"sallyport/internal/test/stories"
)

// changes are the subjects and states of lifecycle events.
var changes = map[string][]string{
	"sandbox/demo": {
		"created", "started", "paused", "resumed", "hibernated", "woken", "stopped", "restored", "changed", "failed", "recovered", "removed",
		"snapshot", "snapshot removed", "capped", "uncapped", "refused", "exposed", "unexposed",
	},
	"image/demo":        {"pulling", "pulled", "loading", "loaded", "removed", "refused", "failed"},
	"approval/id":       {"asked", "approved", "denied", "expired", "withdrawn", "revoked"},
	"limit/demo":        {"reset"},
	"key/demo":          {"created", "removed"},
	"secret/demo":       {"set", "removed", "read"},
	"client/demo":       {"added", "removed"},
	"api":               {"refused"},
	"listener/explicit": {"crowded"},
	"sallyport":         {"started", "stopped", "reloaded", "refused", "selected", "stale", "fresh", "observe-begun", "observing", "observe-ended", "checkpoint", "audit-altered", "audit-unsealed", "audit-sealed"},
	"sallyport-gateway": {"started", "ended"},
	"Sallyport":         {"audit-refused", "audit-dropped", "audit-damaged", "audit-truncated", "audit-deleted"},
	"sink/siem":         {"tested", "audit-gap"},
}

// TestSchema: what is stored is OCSF, as it is published.
func TestSchema(t *testing.T) {
	for name, events := range stories.Events() {
		t.Run(name, func(t *testing.T) { ocsf.Check(t, events...) })
	}
	for subject, states := range changes {
		for _, state := range states {
			t.Run(subject+" "+state, func(t *testing.T) {
				e := audit.Change(subject, state)
				ocsf.Check(t, e)
				if e.Subject() != subject || e.Unmapped.Sallyport.State != state {
					t.Errorf("it says %s %s", e.Subject(), e.Unmapped.Sallyport.State)
				}
				ocsf.Check(t, audit.Finding(audit.FindingGiven, e))
			})
		}
	}
	for _, method := range []string{"GET", "PATCH", "PROPFIND", "FETCH", ""} {
		t.Run("method "+method, func(t *testing.T) {
			e := stories.Events()["allow"][0]
			e.HTTPRequest.Method = ""
			e.ActivityID = audit.HTTPActivity(method)
			e.TypeUID = int(e.ClassUID)*100 + e.ActivityID
			e.SetMethod(method)
			ocsf.Check(t, e)
			if e.Method() != method {
				t.Errorf("the method is %q", e.Method())
			}
		})
	}
}
