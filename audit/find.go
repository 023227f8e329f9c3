package audit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
)

// ErrNoDecision is returned when the log has no decision of that id.
var ErrNoDecision = errors.New("the audit log has no decision with this id")

// Find returns the decision with an id, which the log in dir has, from the newest
// segment back. Like Read it needs no daemon. Damage elsewhere does not hinder it.
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
