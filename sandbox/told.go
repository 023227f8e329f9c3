package sandbox

import (
	"context"
	"time"
)

// Deed is an event of a sandbox's lifecycle that may be on record.
type Deed struct {
	Sandbox string // name
	ID      string
	Session string // "": any
	State   string
	Detail  string // what its detail begins with
	Since   time.Time
}

// told tells whether something is on record. A crash may have come between the
// event and the next thing, so that what is left of that does not tell. Where nobody
// can be asked, it is.
func (m *Manager) told(ctx context.Context, d Deed) (bool, error) {
	if m.opt.Told == nil {
		return true, nil
	}
	return m.opt.Told(ctx, d)
}

// begun tells whether the session that a record speaks of has a beginning on record
// and no end.
func (m *Manager) begun(ctx context.Context, rec record) (bool, error) {
	if rec.Session == "" {
		return false, nil
	}
	d := Deed{Sandbox: rec.Name, ID: rec.ID, Session: rec.Session, State: "started", Since: rec.Created}
	began, err := m.told(ctx, d)
	if err != nil || !began || m.opt.Told == nil {
		return began, err
	}
	d.State = "stopped"
	ended, err := m.told(ctx, d)
	return !ended, err
}
