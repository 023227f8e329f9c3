package retention

import (
	"context"
	"encoding/hex"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"time"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/audit/tree"
)

// maxAtOnce is how many segments one event deletes.
const maxAtOnce = 64

// due lists the segments that are to be deleted now, the oldest first, and notes what is
// kept only for a hold or a sink.
func (k *Keeper) due(ctx context.Context, all []auditlog.Segment, covered uint64) ([]auditlog.Segment, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.load(); err != nil {
		return nil, err
	}
	if len(all) > 0 {
		maps.DeleteFunc(k.began, func(first uint64, _ time.Time) bool { return first < all[0].First })
	}
	st := Status{Holds: k.state.Holds, Segments: len(all)}
	for _, s := range all {
		st.Bytes += s.Bytes
		if s.Compressed {
			st.Compressed++
		}
	}
	var err error
	if len(all) > 0 {
		st.Oldest = all[0].First
		if st.Since, err = k.start(ctx, all[0].First); err != nil {
			return nil, err
		}
	}
	shipped, sink := k.shipped()
	ordered, forced := uint64(0), uint64(0)
	if o := k.state.Order; o != nil {
		if ordered = o.Last; o.Force {
			forced = o.Last
		}
	}
	var due []auditlog.Segment
	left := st.Bytes
	for i, s := range all {
		if s.Last == 0 || s.Last > covered {
			break
		}
		old := false
		if k.policy.Keep > 0 {
			until, err := k.until(ctx, s, all[i+1])
			if err != nil {
				return nil, err
			}
			old = !until.IsZero() && until.Before(k.o.now().Add(-k.policy.Keep))
		}
		if !old && s.Last > ordered && (k.policy.Bytes == 0 || left <= k.policy.Bytes) {
			break
		}
		left -= s.Bytes
		switch {
		case len(k.state.Holds) > 0:
			st.Held += s.Bytes
		case s.Last > shipped && s.Last > forced:
			st.Waiting, st.Sink = st.Waiting+s.Bytes, sink
		case len(due) < maxAtOnce:
			due = append(due, s)
		}
	}
	st.Failure, st.Deleted, st.FailingSince = k.status.Failure, k.status.Deleted, k.status.FailingSince
	k.status = st
	return due, nil
}

// until is when all of a segment had been written, by the records of the one after it and
// by its file: the log's writer can say any time, and no earlier one of a file. It is zero
// if there is no such record. k.mu is held.
func (k *Keeper) until(ctx context.Context, s, after auditlog.Segment) (time.Time, error) {
	at, err := k.start(ctx, after.First)
	if err == nil && !at.IsZero() && at.Before(s.Written) {
		at = s.Written
	}
	return at, err
}

// begin writes down what is to be deleted, and has it done as far as it can be now.
func (k *Keeper) begin(ctx context.Context, due []auditlog.Segment) (busy bool, err error) {
	d := &audit.Deletion{First: due[0].First, Last: due[len(due)-1].Last}
	for _, s := range due {
		sum, err := auditlog.Sum(ctx, k.o.Dir, s.First)
		if err != nil {
			return false, err
		}
		d.Segments = append(d.Segments, audit.DeletedSegment{First: s.First, SHA256: hex.EncodeToString(sum)})
	}
	store, err := tree.OpenStore(k.o.Dir)
	if err != nil {
		return false, err
	}
	defer store.Close()
	if d.Root, err = store.Root(d.Last); err != nil {
		return false, err
	}
	if d.Earliest, err = k.earliest(ctx, d.First); err != nil {
		return false, err
	}
	e := event("sallyport", audit.StateDeleted, fmt.Sprintf("records %d to %d are deleted from the audit log", d.First, d.Last))
	e.Unmapped.Sallyport.Deleted = d
	k.mu.Lock()
	if o := k.state.Order; o != nil && d.Last <= o.Last {
		e.Actor, d.Forced = o.By, o.Force
	}
	err = k.change(func(s *state) { s.Pending = e })
	k.mu.Unlock()
	if err != nil {
		return false, err
	}
	return k.finish(ctx)
}

// earliest is the first of the records that were deleted without a gap before a record.
func (k *Keeper) earliest(ctx context.Context, first uint64) (uint64, error) {
	k.mu.Lock()
	so := k.state.Deleted
	k.mu.Unlock()
	switch {
	case first == 1:
		return 1, nil
	case so != nil && so.Last == first-1:
		return so.First, nil
	case so != nil:
		return first, nil // others have removed what was before it
	}
	// The state is lost, and the log may say it.
	for e, err := range auditlog.Undamaged(auditlog.Read(ctx, k.o.Dir, auditlog.Query{Kind: audit.KindLifecycle})) {
		if err != nil {
			return 0, err
		}
		if e.Unmapped.Sallyport.Deleted != nil && e.Unmapped.Sallyport.Deleted.Last == first-1 {
			return e.Unmapped.Sallyport.Deleted.Earliest, nil
		}
	}
	return first, ctx.Err()
}

// finish goes on with what is being deleted: its event is appended, unless it is in the
// log, and the files go when a checkpoint covers it. busy reports that there was something to do.
func (k *Keeper) finish(ctx context.Context) (busy bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := k.state.Pending
	if e == nil {
		return false, nil
	}
	d := e.Unmapped.Sallyport.Deleted
	there, err := auditlog.Lookup(ctx, k.o.Dir, e.ID())
	switch {
	case err != nil:
		return true, err
	case len(k.state.Holds) > 0:
		if there != nil {
			kept := event("sallyport", "audit-kept", fmt.Sprintf("records %d to %d are not deleted: a legal hold keeps them", d.First, d.Last))
			if err := k.o.Log.Append(ctx, kept); err != nil {
				return true, err
			}
		}
		return true, k.change(func(s *state) { s.Pending, s.Order = nil, nil })
	case there == nil:
		return true, k.o.Log.Append(ctx, e)
	case !reflect.DeepEqual(there.Unmapped.Sallyport.Deleted, d):
		return true, fmt.Errorf("record %d does not say what is to be deleted: the log's writer has changed it", there.Metadata.Sequence)
	case there.Metadata.Sequence > k.o.Covered():
		return true, nil
	}
	if err := auditlog.Remove(k.o.Dir, d.Last); err != nil {
		return true, err
	}
	k.status.Deleted += d.Last - d.First + 1
	k.o.Logger.Info("the oldest records of the audit log were deleted", "first", d.First, "last", d.Last, "record", there.Metadata.Sequence)
	return true, k.change(func(s *state) {
		s.Pending, s.Deleted = nil, &span{d.Earliest, d.Last}
		if s.Order != nil && s.Order.Last <= d.Last {
			s.Order = nil
		}
	})
}

// Plan is what Delete has begun.
type Plan struct {
	First    uint64 `json:"first"`
	Last     uint64 `json:"last"`
	Segments int    `json:"segments"`
	Bytes    int64  `json:"bytes"` // on disk
}

// Delete has the segments deleted that have only records from before a time. That begins
// at once, and the files go within seconds. force deletes what a sink lacks; a legal hold
// keeps everything.
func (k *Keeper) Delete(ctx context.Context, before time.Time, force bool) (Plan, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.load(); err != nil {
		return Plan{}, err
	}
	if names := k.names(); names != "" {
		return Plan{}, fmt.Errorf("%w: %s", ErrHeld, names)
	}
	all, err := auditlog.Segments(k.o.Dir)
	if err != nil {
		return Plan{}, err
	}
	var p Plan
	for i, s := range all {
		if s.Last == 0 || s.Last > k.o.Covered() {
			break
		}
		until, err := k.until(ctx, s, all[i+1])
		if err != nil {
			return Plan{}, err
		}
		if until.IsZero() || !until.Before(before) {
			break
		}
		p.First, p.Last, p.Segments, p.Bytes = all[0].First, s.Last, p.Segments+1, p.Bytes+s.Bytes
	}
	if p.Segments == 0 {
		return Plan{}, fmt.Errorf("%w: whole segments are deleted, which a checkpoint covers", ErrNothing)
	}
	if last, sink := k.shipped(); p.Last > last && !force {
		return Plan{}, fmt.Errorf("%w: %s has them up to number %d: wait for it, or force it", ErrUnshipped, sink, last)
	}
	e := event("sallyport", "", "") // for its actor
	audit.Attribute(ctx, e)
	err = k.change(func(s *state) { s.Order = &order{p.Last, force, e.Actor} })
	k.hurry()
	return p, err
}

// names lists the holds.
func (k *Keeper) names() string {
	var all []string
	for _, h := range k.state.Holds {
		all = append(all, h.Name)
	}
	return strings.Join(all, ", ")
}
