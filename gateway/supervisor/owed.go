package supervisor

import (
	"bytes"
	"context"
	"encoding/json"
	"sync"
	"time"

	"sallyport/audit"
)

// owed are events that a worker says it has written. One that was taken over can say so
// and leave them out, or write others under their IDs, and nobody would miss them.
type owed struct {
	mu   sync.Mutex
	all  map[string]debt // by ID
	work sync.WaitGroup  // that pays
}

type debt struct {
	event []byte    // its normal form
	since time.Time // when the worker said that it is written; zero before
}

// Bounds of debts.
const (
	maxOwed = 1 << 16
	// owedFor is how long what was written may not be seen in the log: whoever reads it may
	// not have heard how far it is durable.
	owedFor = time.Minute
)

// ask notes what a worker is about to write.
func (o *owed) ask(events []*audit.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.all == nil {
		o.all = map[string]debt{}
	}
	for _, e := range events {
		if b, err := normal(e); err == nil && len(o.all) < maxOwed {
			o.all[e.ID()] = debt{event: b}
		}
	}
}

// told notes that a worker says that it has written events, or not.
func (o *owed) told(events []*audit.Event, written bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, e := range events {
		if d, ok := o.all[e.ID()]; ok && written {
			d.since = time.Now()
			o.all[e.ID()] = d
		} else {
			delete(o.all, e.ID())
		}
	}
}

// overdue takes out what has not been seen for longer than a time.
func (o *owed) overdue(after time.Duration) (events []*audit.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for id, d := range o.all {
		e := new(audit.Event)
		if d.since.IsZero() || time.Since(d.since) < after {
			continue
		}
		if delete(o.all, id); json.Unmarshal(d.event, e) == nil {
			events = append(events, e)
		}
	}
	return events
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

// Seen notes that the log has an event.
func (t *AuditLog) Seen(e *audit.Event) {
	o := &t.owed
	o.mu.Lock()
	defer o.mu.Unlock()
	d, ok := o.all[e.ID()]
	if !ok {
		return
	}
	if b, err := normal(e); err == nil && bytes.Equal(b, d.event) {
		delete(o.all, e.ID())
	}
}

// Settle is called when all was seen that is durable. An event that a worker says it has
// written and has not is written by the daemon, and the worker is ended.
func (t *AuditLog) Settle() { t.settle(owedFor) }

func (t *AuditLog) settle(after time.Duration) {
	events := t.owed.overdue(after)
	if len(events) == 0 {
		return
	}
	t.mu.Lock()
	peer, moved := t.peer, t.moved
	t.mu.Unlock()
	t.log.Error("the gateway's process has not written what it says that it has: it is ended, and that is written again", "events", len(events))
	if peer != nil {
		_ = peer.Close()
	}
	t.owed.work.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if peer != nil && t.wait(ctx, moved) != nil {
			t.log.Error("events were lost", "count", len(events))
			return
		}
		for len(events) > 0 {
			n := min(len(events), maxBatch)
			if err := t.append(events[:n]); err != nil {
				t.log.Error("events were lost", "count", len(events), "error", err)
				return
			}
			events = events[n:]
		}
	})
}

// append is Append with a bound on how long it waits.
func (t *AuditLog) append(batch []*audit.Event) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return t.Append(ctx, batch...)
}
