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

// onRecord tells whether something is on record. A crash may have come between the
// event and the next thing, so that what is left of that does not tell. Where nobody
// can be asked, it is.
func (m *Manager) onRecord(ctx context.Context, d Deed) (bool, error) {
	if m.opt.Told == nil {
		return true, nil
	}
	return m.opt.Told(ctx, d)
}
