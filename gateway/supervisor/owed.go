package supervisor

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/internal/ipc"
)

// owed are the daemon's events from when they are written until they are seen in the log,
// where a change of them is found from then on. A worker that was taken over can say that
// it has written them and leave them out, write others under their IDs, or remove what was
// written before it, and nobody would miss them.
type owed struct {
	settling sync.Mutex // held while what is missing is looked up and written

	mu   sync.Mutex
	all  map[string]debt // by ID
	seen uint64          // number of the last event that was: what is owed comes after it
}

type debt struct {
	event []byte    // its normal form
	to    *ipc.Peer // of the worker that was told to write it; nil: the daemon did
	since time.Time // when it was written, or looked up last; zero before
}

// Bounds of debts.
const (
	maxOwed = 1 << 16
	// owedFor is how long what was written may not be seen in the log before it is looked up.
	owedFor = time.Minute
)

// ask notes what a worker, or the daemon, is about to write.
func (o *owed) ask(to *ipc.Peer, events []*audit.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.all == nil {
		o.all = map[string]debt{}
	}
	for _, e := range events {
		b, _ := normal(e) // what cannot be encoded is refused by the log
		o.all[e.ID()] = debt{event: b, to: to}
	}
}

// told notes that events are written, or not.
func (o *owed) told(events []*audit.Event, written bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, e := range events {
		if d, ok := o.all[e.ID()]; ok && written && len(o.all) <= maxOwed {
			d.since = time.Now()
			o.all[e.ID()] = d
		} else {
			delete(o.all, e.ID())
		}
	}
}

// due are all events that are written and were not seen, in the order of their IDs, if one
// was not for longer than a time.
func (o *owed) due(after time.Duration) (events []*audit.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	late := false
	for _, d := range o.all {
		late = late || !d.since.IsZero() && time.Since(d.since) >= after
	}
	if !late {
		return nil
	}
	for _, id := range slices.Sorted(maps.Keys(o.all)) {
		d, e := o.all[id], new(audit.Event)
		if !d.since.IsZero() && json.Unmarshal(d.event, e) == nil {
			d.since = time.Now()
			o.all[id] = d
			events = append(events, e)
		}
	}
	return events
}

// of are the debts for events, and the number of the last event that was seen.
func (o *owed) of(events []*audit.Event) (debts map[string]debt, seen uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	debts = map[string]debt{}
	for _, e := range events {
		if d, ok := o.all[e.ID()]; ok {
			debts[e.ID()] = d
		}
	}
	return debts, o.seen
}

// is reports whether an event is the one that is owed.
func (d debt) is(e *audit.Event) bool {
	b, err := normal(e)
	return err == nil && bytes.Equal(b, d.event)
}

// normal is an event as it is read from the log, whatever it was before, without its number.
func normal(e *audit.Event) ([]byte, error) {
	b, err := json.Marshal(e)
	if err != nil {
		return nil, err
	}
	var read audit.Event
	if err := json.Unmarshal(b, &read); err != nil {
		return nil, err
	}
	read.Metadata.Sequence = 0
	return json.Marshal(&read)
}

// missing are those of the events that are owed and not in the log.
func (t *AuditLog) missing(ctx context.Context, events []*audit.Event) ([]*audit.Event, error) {
	debts, seen := t.owed.of(events)
	for e, err := range auditlog.Undamaged(auditlog.Read(ctx, t.dir, auditlog.Query{From: seen + 1})) {
		if err != nil {
			return nil, err
		}
		if d, ok := debts[e.ID()]; ok && d.is(e) {
			delete(debts, e.ID())
		}
		if len(debts) == 0 {
			break
		}
	}
	return slices.DeleteFunc(slices.Clone(events), func(e *audit.Event) bool {
		_, ok := debts[e.ID()]
		return !ok
	}), nil
}

// Seen notes that the log has an event, and that a change of it is found from then on.
func (t *AuditLog) Seen(e *audit.Event) {
	o := &t.owed
	o.mu.Lock()
	defer o.mu.Unlock()
	o.seen = max(o.seen, e.Metadata.Sequence)
	if d, ok := o.all[e.ID()]; ok && d.is(e) {
		delete(o.all, e.ID())
	}
}

// Settle looks up what was written and was not seen for a minute. A worker that has not
// written what it says that it has is ended, and the daemon writes that.
func (t *AuditLog) Settle() { t.settle(owedFor) }

func (t *AuditLog) settle(after time.Duration) {
	t.owed.settling.Lock()
	defer t.owed.settling.Unlock()
	t.mu.Lock()
	peer, end := t.peer, t.end
	t.mu.Unlock()
	events := t.owed.due(after)
	if len(events) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	events, err := t.missing(ctx, events)
	if err != nil {
		t.log.Error("events cannot be looked up in the audit log; that is tried again", "error", err)
	}
	if len(events) == 0 {
		return
	}
	debts, _ := t.owed.of(events)
	maps.DeleteFunc(debts, func(_ string, d debt) bool { return peer == nil || d.to != peer })
	if len(debts) > 0 {
		end(fmt.Errorf("%d events that it says it has written are not in the audit log", len(debts)))
		return // they are written when the log is taken back
	}
	if err := t.pay(ctx, events); err != nil {
		t.log.Error("events are not in the audit log, and cannot be written; that is tried again", "count", len(events), "error", err)
	}
}

// pay writes events that the log does not have, and says so there.
func (t *AuditLog) pay(ctx context.Context, events []*audit.Event) error {
	found := audit.Change("sallyport", "audit-altered")
	found.SeverityID, found.StatusID = audit.SeverityCritical, audit.StatusFailure
	found.Message = fmt.Sprintf("%d events that had been recorded were not in the audit log: they follow", len(events))
	if err := t.Append(ctx, found); err != nil {
		return err
	}
	for batch := range slices.Chunk(events, maxBatch) {
		err := t.write(ctx, batch, false)
		if t.owed.told(batch, true); err != nil { // they are owed still
			return err
		}
	}
	return nil
}
