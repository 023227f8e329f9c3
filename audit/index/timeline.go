package index

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"

	"sallyport/audit"
	"sallyport/audit/auditlog"
)

// ErrNoSnapshot is returned where the log has no snapshot of a name.
var ErrNoSnapshot = errors.New("the audit log has no such snapshot")

// States of a sandbox's events.
const (
	stateSnapshot = "snapshot"
	stateCreated  = "created"
)

// Snapshot returns the event that a snapshot of a sandbox was made, the last one of its
// name.
func Snapshot(ctx context.Context, dir, path, sandbox, snapshot string) (last auditlog.Entry, err error) {
	q := Query{Sandbox: sandbox, Kind: audit.KindLifecycle, Text: stateSnapshot + " " + snapshot}
	for e, err := range auditlog.Undamaged(Search(ctx, dir, path, q)) {
		switch {
		case err != nil:
			return last, err
		case e.Event.Unmapped.Sallyport.State == stateSnapshot && strings.HasPrefix(e.Event.Detail, snapshot+","):
			e.JSON = nil // of the next one by then
			last = e
		}
	}
	if last.Event == nil {
		return last, fmt.Errorf("%w: %.64q of %.64q", ErrNoSnapshot, snapshot, sandbox)
	}
	return last, nil
}

// Timeline yields what a sandbox did and what was done to it, in order: what the query
// selects, and that others were forked of it.
func Timeline(ctx context.Context, dir, path string, q Query) iter.Seq2[auditlog.Entry, error] {
	return func(yield func(auditlog.Entry, error) bool) {
		forked := q
		forked.Sandbox, forked.Kind, forked.Text = "", audit.KindLifecycle, "fork "+q.Sandbox
		forks, stop := iter.Pull2(Search(ctx, dir, path, forked))
		defer stop()
		// next is the following fork. Damage of the log is told of once.
		next := func() (auditlog.Entry, bool) {
			for {
				e, err, more := forks()
				if !more {
					return auditlog.Entry{}, false
				}
				if err == nil && isForkOf(e.Event, q.Sandbox) {
					return e, true
				}
			}
		}
		fork, more := next()
		for e, err := range Search(ctx, dir, path, q) {
			for more && (err == nil && fork.Number < e.Number) {
				if !yield(fork, nil) {
					return
				}
				fork, more = next()
			}
			if !yield(e, err) {
				return
			}
		}
		for more && yield(fork, nil) {
			fork, more = next()
		}
	}
}

// isForkOf says whether an event is the creation of a sandbox as a fork of another one, by
// that one's name or ID. Its detail is "a fork of NAME (ID)".
func isForkOf(e *audit.Event, of string) bool {
	rest, ok := strings.CutPrefix(e.Detail, "a fork of ")
	name, rest, _ := strings.Cut(rest, " (")
	id, _, _ := strings.Cut(rest, ")")
	return ok && e.Unmapped.Sallyport.State == stateCreated && (name == of || id == of)
}
