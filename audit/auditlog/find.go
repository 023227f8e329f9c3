package auditlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"time"

	"github.com/google/uuid"

	"sallyport/audit"
)

// ErrNoDecision is returned when the log has no decision of that id.
var ErrNoDecision = errors.New("the audit log has no decision with this id")

// Find returns the decision with an id from the log in dir. It needs no daemon. Damage
// elsewhere does not matter.
func Find(ctx context.Context, dir, id string) (*audit.Event, error) {
	if uuid.Validate(id) != nil {
		return nil, fmt.Errorf("%w: %.64q", ErrNoDecision, id)
	}
	e, err := Lookup(ctx, dir, id)
	if err == nil && (e == nil || e.Unmapped.Sallyport.Kind != audit.KindDecision) {
		return nil, fmt.Errorf("%w: %.64s", ErrNoDecision, id)
	}
	return e, err
}

// Has reports whether the log in dir has an event with an id.
func Has(ctx context.Context, dir, id string) (bool, error) {
	e, err := Lookup(ctx, dir, id)
	return e != nil, err
}

// Lookup returns the event of any kind with an id, which is a UUIDv7, from the log in dir,
// or nil. It looks from the newest segment back, and into none that began long before the
// event was made.
func Lookup(ctx context.Context, dir, id string) (*audit.Event, error) {
	made, err := uuid.Parse(id)
	if err != nil {
		return nil, fmt.Errorf("no event's id: %w", err)
	}
	sec, nsec := made.Time().UnixTime()
	all, err := segments(dir)
	if err != nil {
		return nil, err
	}
	for _, s := range slices.Backward(all) {
		event, began, err := search(ctx, s, id)
		if event != nil || err != nil {
			return event, err
		}
		if !began.IsZero() && began.Before(time.Unix(sec, nsec).Add(-clockSlack)) {
			return nil, nil
		}
	}
	return nil, nil
}

// clockSlack is by how much a clock may have been set back between two events.
const clockSlack = time.Hour

// search returns the event of a segment that has the id, if any does, and when the first
// event of the segment was made.
func search(ctx context.Context, s segment, id string) (event *audit.Event, began time.Time, err error) {
	file, err := s.open()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, began, nil // deleted since it was listed
	}
	if err != nil {
		return nil, began, err
	}
	defer file.Close()
	wanted := []byte(`"uid":"` + id + `"`)
	lines := file.dense()
	defer lines.close()
	for n := 0; ; n++ {
		if n%1024 == 0 && ctx.Err() != nil {
			return nil, began, ctx.Err()
		}
		b, _, _, err := lines.next()
		if err == io.EOF {
			return nil, began, nil
		}
		if err != nil {
			return nil, began, err
		}
		if !began.IsZero() && !bytes.Contains(b, wanted) {
			continue
		}
		e, err := decode(b)
		switch {
		case err != nil:
		case e.ID() == id:
			return e, began, nil
		case began.IsZero():
			began = time.UnixMilli(e.Time)
		}
	}
}
