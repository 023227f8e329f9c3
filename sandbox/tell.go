package sandbox

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"sallyport/audit"
)

// A change of a sandbox is in two places: its record, and the audit log. So that
// each is one event whenever the daemon ends, the record is written with the event
// that belongs to it (record.Untold), and the event is appended then. Who finds a
// record with an event that may not be in the log asks for it there by its ID. A
// snapshot, which is no change of a record, has the ID in the name of its folder
// meanwhile: see aside.

// toldFile has the ID of the last event that is known to be in the log. It is not
// synced: without it the log is asked.
const toldFile = "told"

// tell writes the record as change makes it, and what of it is to be in the log.
// When it fails the record may be written, and the event is told with the next:
// untell takes that back.
func (m *Manager) tell(ctx context.Context, e *entry, ev *audit.Event, change func(*record)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := m.retell(ctx, e); err != nil {
		return err
	}
	if err := m.note(e, func(r *record) { change(r); r.Untold = ev }); err != nil {
		return err
	}
	return m.retell(ctx, e)
}

// say is tell of what changes no record.
func (m *Manager) say(ctx context.Context, e *entry, ev *audit.Event) error {
	if err := m.retell(ctx, e); err != nil {
		return err
	}
	return m.opt.Recorder.Append(ctx, ev)
}

// untell takes back a change whose event could not be told.
func (m *Manager) untell(e *entry, ev *audit.Event, change func(*record)) error {
	if e.rec.Untold != ev {
		return nil // it was not made
	}
	return m.note(e, func(r *record) { change(r); r.Untold = nil })
}

// untold tells whether a record has an event that is not known to be in the log.
func (e *entry) untold() bool { return e.rec.Untold != nil && e.told != e.rec.Untold.ID() }

// retell appends the event of a record that is not in the log.
func (m *Manager) retell(ctx context.Context, e *entry) error {
	if !e.untold() {
		return nil
	}
	// Who has asked for the change may go: whether the event is in the log would
	// not be known then.
	ctx = context.WithoutCancel(ctx)
	if known, err := m.doubt(ctx, e); known || err != nil {
		return err
	}
	if err := m.opt.Recorder.Append(ctx, e.rec.Untold); err != nil {
		return err
	}
	return m.told(e)
}

// doubt asks the log for the event of a record that an earlier process has left.
func (m *Manager) doubt(ctx context.Context, e *entry) (known bool, err error) {
	if !e.untold() || !e.old {
		return false, nil
	}
	id := e.rec.Untold.ID()
	if last, err := os.ReadFile(filepath.Join(m.dir(e.rec.Name), toldFile)); err != nil || string(last) != id {
		if known, err := m.recorded(ctx, id); !known || err != nil {
			return false, err
		}
	}
	return true, m.told(e)
}

// recorded tells whether the log has an event. What cannot be asked has not been
// told.
func (m *Manager) recorded(ctx context.Context, id string) (bool, error) {
	if m.opt.Recorded == nil {
		return false, nil
	}
	return m.opt.Recorded(ctx, id)
}

func (m *Manager) told(e *entry) error {
	e.told = e.rec.Untold.ID()
	err := os.WriteFile(filepath.Join(m.dir(e.rec.Name), toldFile), []byte(e.told), 0o600)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// detailed is lifecycle with a reason.
func detailed(r record, state, why string) *audit.Event {
	ev := lifecycle(r, state)
	ev.Detail = why
	return ev
}

// lifecycle is the event of a sandbox's change of state (OCSF Application
// Lifecycle; activity 3 start, 4 stop, 99 other).
func lifecycle(r record, state string) *audit.Event {
	activity := map[string]int{"started": audit.LifecycleStart, "stopped": audit.LifecycleStop}[state]
	if activity == 0 {
		activity = audit.ActivityOther
	}
	ev := audit.New(audit.KindLifecycle, audit.ClassLifecycle, activity)
	ev.App = &audit.Product{Name: "sandbox/" + r.Name}
	ev.StatusID = audit.StatusSuccess
	ev.Message = "sandbox " + r.Name + " " + state
	x := &ev.Unmapped.Sallyport
	x.Sandbox, x.SandboxID, x.Session, x.Tags, x.State = r.Name, r.ID, r.Session, tags(r.Spec.Tags, r.Lineage), state
	x.Owner = r.Spec.Owner
	return ev
}

// note writes the record as change makes it; e has it when it is on the disk.
func (m *Manager) note(e *entry, change func(*record)) error {
	rec := e.rec
	if !e.untold() {
		rec.Untold = nil
	}
	change(&rec)
	if err := rec.write(m.dir(rec.Name)); err != nil {
		return err
	}
	e.rec = rec
	return nil
}
