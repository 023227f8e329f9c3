package daemon

import (
	"context"

	"sallyport/audit"
	"sallyport/policy/engine"
)

// recordLifecycle records a change of the daemon's own state, with the policy it comes with.
func (d *daemon) recordLifecycle(state string, p *engine.Policy) error {
	return d.auditLog.Append(context.Background(), d.about(state, p, ""))
}

// record is for what is so whether it can be recorded or not.
func (d *daemon) record(e *audit.Event) {
	if err := d.auditLog.Append(context.Background(), e); err != nil {
		d.log.Error("an event was lost", "message", e.Message, "error", err)
	}
}

// about is the event of a change of the daemon's own state.
func (d *daemon) about(state string, p *engine.Policy, detail string) *audit.Event {
	e := changed(audit.Product{Name: "sallyport", Version: d.version}, "sallyport", state)
	e.Policy = &audit.Policy{Version: p.Revision()}
	e.Detail = detail
	return e
}

// changed is the event of a part of the daemon's that is in another state now
// (OCSF Application Lifecycle; activity 3 start, 4 stop, 99 other).
func changed(app audit.Product, what, state string) *audit.Event {
	activity := map[string]int{"started": audit.LifecycleStart, "stopped": audit.LifecycleStop, "ended": audit.LifecycleStop}[state]
	if activity == 0 {
		activity = audit.ActivityOther
	}
	e := audit.New(audit.KindLifecycle, audit.ClassLifecycle, activity)
	e.App = &app
	e.StatusID = audit.StatusSuccess
	e.Message = what + " " + state
	e.Unmapped.Sallyport.State = state
	return e
}
