package audit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
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
	if id == "" || !plain([]byte(id)) {
		return nil, fmt.Errorf("%w: %.64q", ErrNoDecision, id)
	}
	for i := len(all) - 1; i >= 0; i-- {
		e, err := findIn(ctx, all[i], id)
		if e != nil || err != nil {
			return e, err
		}
	}
	return nil, fmt.Errorf("%w: %.64s", ErrNoDecision, id)
}

// Has reports whether the log in dir has an event with an id, which is a UUIDv7: segments
// that began long before it was made are not read.
func Has(ctx context.Context, dir, id string) (bool, error) {
	made, err := uuid.Parse(id)
	if err != nil {
		return false, fmt.Errorf("no event's id: %w", err)
	}
	sec, nsec := made.Time().UnixTime()
	all, err := segments(dir)
	if err != nil {
		return false, err
	}
	for i := len(all) - 1; i >= 0; i-- {
		first, has, err := hasIn(ctx, all[i], id)
		if has || err != nil {
			return has, err
		}
		if first != 0 && time.UnixMilli(first).Before(time.Unix(sec, nsec).Add(-clockSlack)) {
			return false, nil
		}
	}
	return false, nil
}

// clockSlack is by how much a clock may have been set back between two events.
const clockSlack = time.Hour

// hasIn also returns the time of the segment's first event, or 0.
func hasIn(ctx context.Context, s segment, id string) (first int64, has bool, err error) {
	f, err := os.Open(s.path())
	if err != nil {
		return 0, false, err
	}
	defer f.Close()
	wanted := []byte(`"uid":"` + id + `"`)
	lines := newLineReader(&dense{File: f}, 0)
	var p parser
	for n := 0; ; n++ {
		if n%1024 == 0 && ctx.Err() != nil {
			return first, false, ctx.Err()
		}
		b, _, _, err := lines.next()
		if err == io.EOF {
			return first, false, nil
		}
		if err != nil {
			return first, false, err
		}
		if first != 0 && !bytes.Contains(b, wanted) {
			continue
		}
		e, err := p.event(b)
		if err != nil {
			continue
		}
		if first == 0 {
			first = e.Time
		}
		if e.ID() == id {
			return first, true, nil
		}
	}
}

func findIn(ctx context.Context, s segment, id string) (*Event, error) {
	f, err := os.Open(s.path())
	if err != nil {
		return nil, err
	}
	defer f.Close()
	wanted := []byte(`"uid":"` + id + `"`)
	lines := newLineReader(&dense{File: f}, 0)
	var p parser
	for n := 0; ; n++ {
		if n%1024 == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		b, _, _, err := lines.next()
		if err == io.EOF {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		if !bytes.Contains(b, wanted) {
			continue
		}
		e, err := p.event(b)
		if err == nil && e.ID() == id && e.Unmapped.Sallyport.Kind == KindDecision {
			return e, nil
		}
	}
}
