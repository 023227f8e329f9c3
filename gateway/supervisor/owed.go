package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
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
	size int             // of their lines, in bytes
	full bool            // an event that was written last is not owed
	over time.Time       // since when half of the room for queued events is taken; zero if it is not
	seen uint64          // number of the last event that was: what is owed comes after it
}

type debt struct {
	event []byte    // its line in the log, under the number 0
	to    *ipc.Peer // of the worker that was told to write it; nil: the daemon did
	since time.Time // when it was written, or looked up last; zero before
	said  bool      // the log says that it is missing
}

// Bounds of debts, in events and in bytes. A worker has a say in how many events are queued:
// for those that somebody waits for there is room beyond that.
const (
	maxOwed     = 1 << 16
	maxOwedSize = 64 << 20
	// owedFor is how long what was written may not be seen in the log before it is looked up.
	owedFor = time.Minute
)

// ask notes what a worker, or the daemon, is about to write.
func (o *owed) ask(to *ipc.Peer, events []*audit.Event) error {
	var lines [][]byte
	for _, e := range events {
		b, err := auditlog.Canonical(e)
		if err != nil { // the log refuses it too
			return err
		}
		lines = append(lines, b)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.all == nil {
		o.all = map[string]debt{}
	}
	for i, e := range events {
		said := o.all[e.ID()].said
		o.drop(e.ID())
		o.all[e.ID()] = debt{event: lines[i], to: to, said: said}
		o.size += len(lines[i])
	}
	return nil
}

// drop forgets a debt. o.mu is held.
func (o *owed) drop(id string) {
	o.size -= len(o.all[id].event)
	delete(o.all, id)
}

// crowded reports that queued events are to wait for room. The sealer makes it within seconds,
// unless it fails: an event says so, and after a time nothing waits for that.
func (o *owed) crowded() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case len(o.all) < maxOwed/2 && o.size < maxOwedSize/2:
		o.over = time.Time{}
	case o.over.IsZero():
		o.over = time.Now()
	}
	return !o.over.IsZero() && time.Since(o.over) < owedFor
}

// told notes that events are written, or not. room is how many times the bounds of debts
// may be owed then. full reports that one is not owed, and that those before it were.
func (o *owed) told(events []*audit.Event, written bool, room int) (full bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, e := range events {
		d, ok := o.all[e.ID()]
		switch over := len(o.all) > room*maxOwed || o.size > room*maxOwedSize; {
		case !ok || !written:
			o.drop(e.ID())
		case over && !d.said:
			full, o.full = full || !o.full, true
			o.drop(e.ID())
		default:
			o.full = o.full && over
			d.since = time.Now()
			o.all[e.ID()] = d
		}
	}
	return full
}

// due are all events that are written and were not seen, in the order of their IDs, if one
// was not for longer than a time.
func (o *owed) due(after time.Duration) (events []*audit.Event) {
	for _, line := range o.late(after) { // not under the lock, for which Append and Seen would wait
		e := new(audit.Event)
		if json.Unmarshal(line, e) == nil {
			events = append(events, e)
		}
	}
	slices.SortFunc(events, func(a, b *audit.Event) int { return strings.Compare(a.ID(), b.ID()) })
	return events
}

// late are the lines of all of them.
func (o *owed) late(after time.Duration) (lines [][]byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	late := false
	for _, d := range o.all {
		late = late || !d.since.IsZero() && time.Since(d.since) >= after
	}
	if !late {
		return nil
	}
	for id, d := range o.all {
		if !d.since.IsZero() {
			d.since = time.Now()
			o.all[id] = d
			lines = append(lines, d.event)
		}
	}
	return lines
}

// say notes whether the log says of events that they are missing, and counts those of which
// that is new.
func (o *owed) say(events []*audit.Event, said bool) (changed int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, e := range events {
		if d, ok := o.all[e.ID()]; ok && d.said != said {
			changed++
			d.said = said
			o.all[e.ID()] = d
		}
	}
	return changed
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

// missing are those of the events that are owed and not in the log, or not as they are
// owed: who reads a line otherwise than the log does, as one that has a key twice, reads
// nothing else in it. They are looked up from a number on, or from after what was seen.
func (t *AuditLog) missing(ctx context.Context, events []*audit.Event, from uint64) ([]*audit.Event, error) {
	debts, seen := t.owed.of(events)
	for l, err := range auditlog.Undamaged(auditlog.Entries(ctx, t.dir, auditlog.Query{From: max(from, seen+1)})) {
		if err != nil {
			return nil, err
		}
		if d, ok := debts[l.Event.ID()]; ok && l.Is(d.event) {
			delete(debts, l.Event.ID())
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

// Seen notes that the log has a record, and that a change of it is found from then on.
func (t *AuditLog) Seen(l auditlog.Entry) {
	o := &t.owed
	o.mu.Lock()
	defer o.mu.Unlock()
	o.seen = max(o.seen, l.Number)
	if d, ok := o.all[l.Event.ID()]; ok && l.Is(d.event) {
		o.drop(l.Event.ID())
	}
}

// told is owed.told. The daemon's own log says when that is full.
func (t *AuditLog) told(events []*audit.Event, written bool, room int) {
	if t.owed.told(events, written, room) {
		t.log.Error("too many events are not sealed: it is not noticed if the audit log loses others", "owed", maxOwed, "bytes", maxOwedSize)
	}
}

// Settle looks up what was written and was not seen for a minute. A worker that has not
// written what it says that it has is ended, and the daemon writes that.
func (t *AuditLog) Settle() { t.settle(owedFor) }

func (t *AuditLog) settle(after time.Duration) { t.settleWithin(after, 30*time.Second) }

func (t *AuditLog) settleWithin(after, within time.Duration) {
	t.owed.settling.Lock()
	defer t.owed.settling.Unlock()
	t.mu.Lock()
	peer, end := t.peer, t.end
	t.mu.Unlock()
	events := t.owed.due(after)
	if len(events) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	events, err := t.missing(ctx, events, 0)
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

// pay writes events that the log does not have, and says so there once.
func (t *AuditLog) pay(ctx context.Context, events []*audit.Event) error {
	if n := t.owed.say(events, true); n > 0 {
		found := audit.Change("sallyport", "audit-altered")
		found.SeverityID, found.StatusID = audit.SeverityCritical, audit.StatusFailure
		found.Message = fmt.Sprintf("%d events that had been recorded were not in the audit log: they follow", n)
		if err := t.Append(ctx, found); err != nil {
			t.owed.say(events, false)
			return err
		}
		if err := t.check(ctx, []*audit.Event{found}); err != nil {
			return err
		}
	}
	for batch := range slices.Chunk(events, maxBatch) {
		err := t.write(ctx, batch, false)
		if err != nil { // no worker says that it has written them
			err = errors.Join(err, t.owed.ask(nil, batch))
		}
		if t.owed.told(batch, true, 1); err != nil { // they are owed still
			return err
		}
		t.owed.say(batch, false)
		if err := t.check(ctx, batch); err != nil {
			return err
		}
	}
	return nil
}

// check drops debts for what the daemon itself has just written, if it is not in the log as
// it is owed: that would be so each time.
func (t *AuditLog) check(ctx context.Context, events []*audit.Event) error {
	first := events[0].Metadata.Sequence
	if first == 0 { // a worker was told to write it
		return nil
	}
	wrong, err := t.missing(ctx, events, first)
	if err != nil || len(wrong) == 0 {
		return err
	}
	t.mu.Lock()
	own := t.begun <= first
	t.mu.Unlock()
	if own { // no worker has had the log since
		t.owed.told(wrong, false, 1)
		t.log.Error("events are not in the audit log as they were to be written", "count", len(wrong), "first", first)
	}
	return nil
}
