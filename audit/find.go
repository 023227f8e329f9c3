package audit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"github.com/google/uuid"
)

// ErrNoDecision is returned when the log has no decision of that id.
var ErrNoDecision = errors.New("the audit log has no decision with this id")

// Find returns the decision with an id from the log in dir, from the newest segment back.
// It needs no daemon. Damage elsewhere does not matter.
func Find(ctx context.Context, dir, id string) (*Event, error) {
	all, err := segments(dir)
	if err != nil {
		return nil, err
	}
	if uuid.Validate(id) != nil {
		return nil, fmt.Errorf("%w: %.64q", ErrNoDecision, id)
	}
	for i := len(all) - 1; i >= 0; i-- {
		var decision *Event
		found, err := search(ctx, all[i], id, func(_ int, e *Event) bool {
			decision = e
			return e.ID() == id && e.Unmapped.Sallyport.Kind == KindDecision
		})
		if err != nil {
			return nil, err
		}
		if found {
			return decision, nil
		}
	}
	return nil, fmt.Errorf("%w: %.64s", ErrNoDecision, id)
}

// Has reports whether the log in dir has an event with an id.
func Has(ctx context.Context, dir, id string) (bool, error) {
	e, err := Lookup(ctx, dir, id)
	return e != nil, err
}

// Lookup returns the event of any kind with an id, which is a UUIDv7, from the log in dir,
// or nil: segments that began long before it was made are not read.
func Lookup(ctx context.Context, dir, id string) (*Event, error) {
	made, err := uuid.Parse(id)
	if err != nil {
		return nil, fmt.Errorf("no event's id: %w", err)
	}
	sec, nsec := made.Time().UnixTime()
	all, err := segments(dir)
	if err != nil {
		return nil, err
	}
	for i := len(all) - 1; i >= 0; i-- {
		first := int64(0) // the time of the segment's first event
		var event *Event
		has, err := search(ctx, all[i], id, func(n int, e *Event) bool {
			if n == 0 {
				first = e.Time
			}
			event = e
			return e.ID() == id
		})
		if err != nil {
			return nil, err
		}
		if has {
			return event, nil
		}
		if first != 0 && time.UnixMilli(first).Before(time.Unix(sec, nsec).Add(-clockSlack)) {
			return nil, nil
		}
	}
	return nil, nil
}

// clockSlack is by how much a clock may have been set back between two events.
const clockSlack = time.Hour

// search calls f with the events of a segment whose line has the id, and with the first
// event, until f returns true. It reports whether f did.
func search(ctx context.Context, s segment, id string, f func(n int, e *Event) bool) (bool, error) {
	file, err := s.open()
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // deleted since it was listed
	}
	if err != nil {
		return false, err
	}
	defer file.Close()
	wanted := []byte(`"uid":"` + id + `"`)
	lines := file.dense()
	defer lines.close()
	seen := 0
	for n := 0; ; n++ {
		if n%1024 == 0 && ctx.Err() != nil {
			return false, ctx.Err()
		}
		b, _, _, err := lines.next()
		if err == io.EOF {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if seen > 0 && !bytes.Contains(b, wanted) {
			continue
		}
		e, err := decode(b)
		if err != nil {
			continue
		}
		if f(seen, e) {
			return true, nil
		}
		seen++
	}
}
