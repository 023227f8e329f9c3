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
	e := d.changed("sallyport", "sallyport", state)
	e.Policy = audit.Revision(p.Revision())
	e.Detail = detail
	return e
}

// changed is the event of a part of the daemon's that is in another state now.
func (d *daemon) changed(subject, what, state string) *audit.Event {
	return changed(subject, what, state, d.version)
}

func changed(subject, what, state, version string) *audit.Event {
	e := audit.Change(subject, state)
	e.Message = what + " " + state
	if e.App != nil {
		e.App.Version = version
	}
	return e
}
