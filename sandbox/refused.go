package sandbox

import (
	"context"
	"errors"
	"slices"

	"sallyport/audit"
)

// refusals are the errors by which the manager refuses to make a sandbox that was
// asked for wrongly, or by a caller who may not have it.
var refusals = []error{ErrBadName, ErrBadSpec, ErrImage, ErrNoImage, ErrTaken, ErrShare, ErrCompared}

// refused records that a sandbox is not made as it was asked for, if that is what an
// error says: the name and the reason, and no owner, since nothing is owned. The rate
// of these events is bounded; what is not recorded is counted in the next one.
func (m *Manager) refused(ctx context.Context, name string, err error) {
	if !slices.ContainsFunc(refusals, func(r error) bool { return errors.Is(err, r) }) {
		return
	}
	var secret *SecretError
	if errors.As(err, &secret) && secret.Err == nil {
		return // it is recorded already, with whose it is
	}
	m.recordRefusal(ctx, refusedEvent(name, err))
}

func refusedEvent(name string, err error) *audit.Event {
	ev := audit.New(audit.KindLifecycle, audit.ClassLifecycle, audit.ActivityOther)
	ev.App = &audit.Product{Name: "sandbox/" + clip(name)}
	ev.StatusID, ev.SeverityID = audit.StatusFailure, audit.SeverityLow
	ev.Message, ev.Detail = "what was asked for of sandbox "+clip(name)+" is refused", err.Error()
	ev.Unmapped.Sallyport.State = "refused"
	return ev
}

func (m *Manager) recordRefusal(ctx context.Context, ev *audit.Event) {
	n := m.refusals.Count(refusedFor(ctx))
	if n == 0 {
		return
	}
	if n > 1 {
		ev.Count = n
	}
	if err := m.opt.Recorder.Append(context.WithoutCancel(ctx), ev); err != nil {
		m.opt.Logger.Error("an event was lost", "message", ev.Message, "error", err)
	}
}

// refusedFor is whose refusals are counted together: those of a tenant, or of an operator.
func refusedFor(ctx context.Context) string {
	if owner := OwnerOf(ctx); owner != "" {
		return "tenant:" + owner
	}
	var e audit.Event
	e.ClassUID = audit.ClassLifecycle
	audit.Attribute(ctx, &e)
	if e.Actor == nil {
		return ""
	}
	return "operator:" + e.Actor.User.Name
}

// clip bounds a name that may be none.
func clip(name string) string {
	const most = 64 // bytes
	if len(name) <= most {
		return name
	}
	return name[:most] + "…"
}
