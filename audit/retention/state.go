package retention

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"sallyport/audit"
	"sallyport/internal/durable"
)

// Errors to branch on.
var (
	ErrHoldExists = errors.New("there is a hold of this name")
	ErrHoldsFull  = errors.New("there are too many holds: remove one that is of no use any more")
	ErrNoHold     = errors.New("there is no hold of this name")
	ErrHeld       = errors.New("a legal hold keeps the records")
	ErrUnshipped  = errors.New("a sink lacks some of the records")
	ErrNothing    = errors.New("no segment has only such records")
	ErrInvalid    = errors.New("not valid")
)

// Hold is a legal hold: while there is one, nothing is deleted.
type Hold struct {
	Name   string    `json:"name"`
	Reason string    `json:"reason"`
	By     string    `json:"by,omitempty"` // the operator
	Since  time.Time `json:"since"`
}

// state is what a Keeper has to know after a crash.
type state struct {
	Holds   []Hold       `json:"holds"`
	Order   *order       `json:"order,omitempty"`   // by an operator
	Pending *audit.Event `json:"pending,omitempty"` // says what is being deleted, and may be in the log
	Deleted *span        `json:"deleted,omitempty"` // so far

	path string
}

// span is a range of records.
type span struct {
	First uint64 `json:"first"`
	Last  uint64 `json:"last"`
}

// order is what an operator has asked for.
type order struct {
	Last  uint64       `json:"last"` // record
	Force bool         `json:"force,omitempty"`
	By    *audit.Actor `json:"by,omitempty"`
}

// readState reads the state of the log in a folder.
func readState(dir string) (*state, error) {
	s := &state{Holds: []Hold{}, path: filepath.Join(dir, "retention.json")}
	if _, err := durable.ReadJSON(s.path, s); err != nil {
		return nil, fmt.Errorf("%w: nothing is deleted until it can be read", err)
	}
	return s, nil
}

// change puts a state into force once it is durable.
func (k *Keeper) change(f func(s *state)) error {
	next := *k.state
	next.Holds = slices.Clone(next.Holds)
	f(&next)
	if err := durable.WriteJSON(next.path, next); err != nil {
		return err
	}
	k.state = &next
	return nil
}

// load reads the state, unless it was. k.mu is held.
func (k *Keeper) load() (err error) {
	if k.state == nil {
		k.state, err = readState(k.o.Dir)
	}
	return err
}

// Holds lists the holds in force.
func (k *Keeper) Holds() ([]Hold, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.load(); err != nil {
		return nil, err
	}
	return k.state.Holds, nil
}

// Bounds of holds.
const (
	maxHolds  = 100
	maxReason = 1024 // bytes
)

var holdName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// AddHold puts a hold into force. From then on nothing is deleted: what is being deleted
// is kept too, unless its files are gone.
func (k *Keeper) AddHold(ctx context.Context, name, reason string) (Hold, error) {
	if !holdName.MatchString(name) {
		return Hold{}, fmt.Errorf("%w: hold %.80q: use 1 to 64 letters, digits, dots, hyphens and underscores, beginning with a letter or digit", ErrInvalid, name)
	}
	if reason == "" || len(reason) > maxReason {
		return Hold{}, fmt.Errorf("%w: a hold needs a reason of at most %d bytes", ErrInvalid, maxReason)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.load(); err != nil {
		return Hold{}, err
	}
	if k.find(name) >= 0 {
		return Hold{}, fmt.Errorf("%w: %s", ErrHoldExists, name)
	}
	if len(k.state.Holds) >= maxHolds {
		return Hold{}, ErrHoldsFull
	}
	e := holdEvent(ctx, "added", name, reason)
	h := Hold{Name: name, Reason: reason, Since: time.UnixMilli(e.Time).UTC()}
	if e.Actor != nil {
		h.By = cmp.Or(e.Actor.User.Name, e.Actor.User.UID)
	}
	if err := k.o.Log.Append(ctx, e); err != nil {
		return Hold{}, err
	}
	err := k.change(func(s *state) { s.Holds = append(s.Holds, h) })
	k.hurry()
	return h, err
}

// RemoveHold ends a hold.
func (k *Keeper) RemoveHold(ctx context.Context, name, reason string) error {
	if reason == "" || len(reason) > maxReason {
		return fmt.Errorf("%w: a reason of at most %d bytes is needed", ErrInvalid, maxReason)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.load(); err != nil {
		return err
	}
	i := k.find(name)
	if i < 0 {
		return fmt.Errorf("%w: %.80q", ErrNoHold, name)
	}
	if err := k.o.Log.Append(ctx, holdEvent(ctx, "removed", name, reason)); err != nil {
		return err
	}
	err := k.change(func(s *state) { s.Holds = slices.Delete(s.Holds, i, i+1) })
	k.hurry()
	return err
}

func (k *Keeper) find(name string) int {
	return slices.IndexFunc(k.state.Holds, func(h Hold) bool { return h.Name == name })
}

func holdEvent(ctx context.Context, state, name, reason string) *audit.Event {
	e := event("hold/"+name, state, fmt.Sprintf("legal hold %s %s", name, state))
	e.Detail = reason
	audit.Attribute(ctx, e)
	return e
}

// event is one about what is kept of the log.
func event(subject, state, message string) *audit.Event {
	e := audit.Change(subject, state)
	e.SeverityID = audit.SeverityMedium
	e.Message = message
	return e
}
