package index

import (
	"context"
	"strings"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/internal/sqlite"
)

// maxBatch is how many events a transaction has.
const maxBatch = 4096

// batch is what is written next.
type batch struct {
	rows    []row
	byID    map[string]int // place in rows of decisions without a completion, by ID
	damage  []found
	last    uint64
	spans   []span // that change, the last of which is current
	current span
	closed  []closing
}

type row struct {
	number     uint64
	at         int64
	completion int64  // how far after number; 0: there is none
	opens      string // ID of a decision that something may follow
	terms      string
}

// closing is a completion whose decision is in an earlier batch.
type closing struct {
	id     string
	number uint64
}

type found struct {
	*auditlog.DamageError
	number uint64 // of the event after it
}

func (x *Index) batch() *batch {
	return &batch{last: x.last, current: x.current, byID: map[string]int{}}
}

// opens reports whether a completion may follow an event.
func opens(e *audit.Event) bool {
	return e.Unmapped.Sallyport.Kind == audit.KindDecision && e.Action == audit.ActionAllowed
}

func (b *batch) add(e auditlog.Entry) {
	r := row{number: e.Number, at: e.Offset, terms: strings.Join(terms(e.Event), " ")}
	switch id := e.Event.Metadata.CorrelationUID; {
	case opens(e.Event):
		r.opens = e.Event.ID()
		b.byID[r.opens] = len(b.rows)
	case e.Event.Unmapped.Sallyport.Kind != audit.KindCompletion:
	default:
		if at, ok := b.byID[id]; ok {
			b.rows[at].completion, b.rows[at].opens = int64(e.Number-b.rows[at].number), ""
			delete(b.byID, id)
		} else {
			b.closed = append(b.closed, closing{id, e.Number})
		}
	}
	b.rows = append(b.rows, r)
	b.last = e.Number

	line := sum(e.JSON)
	if s := &b.current; s.first == 0 || e.Number-s.first >= spanned {
		if s.first > 0 {
			b.spans = append(b.spans, *s)
		}
		*s = span{first: e.Number, low: e.Event.Time, high: e.Event.Time, head: line}
	}
	s := &b.current
	s.last, s.tail, s.low, s.high = e.Number, line, min(s.low, e.Event.Time), max(s.high, e.Event.Time)
}

// commit writes a batch.
func (x *Index) commit(ctx context.Context, b *batch) error {
	if len(b.rows) == 0 && len(b.damage) == 0 {
		return nil
	}
	err := sqlite.Transact(ctx, x.db, func(tx *sqlite.Tx) error { return b.write(ctx, tx) })
	if err == nil {
		x.last, x.current = b.last, b.current
	}
	return err
}

func (b *batch) write(ctx context.Context, tx *sqlite.Tx) (err error) {
	do := func(statement string, args ...any) {
		if err == nil {
			_, err = tx.Exec(ctx, statement, args...)
		}
	}
	// A completion closes the decision of its ID that is there before it.
	for _, c := range b.closed {
		do("UPDATE record SET completion = ?1 - number WHERE number = (SELECT number FROM open WHERE id = ?2)", int64(c.number), c.id)
		do("DELETE FROM open WHERE id = ?", c.id)
	}
	for _, r := range b.rows {
		do("INSERT INTO record(number, at, completion) VALUES(?, ?, nullif(?, 0))", int64(r.number), r.at, r.completion)
		do("INSERT INTO event(rowid, terms) VALUES(?, ?)", int64(r.number), r.terms)
		if r.opens != "" {
			do("INSERT OR REPLACE INTO open(id, number) VALUES(?, ?)", r.opens, int64(r.number))
		}
	}
	for _, s := range append(b.spans, b.current) {
		if s.first > 0 {
			do("INSERT OR REPLACE INTO span(first, last, low, high, head, tail) VALUES(?, ?, ?, ?, ?, ?)", int64(s.first), int64(s.last), s.low, s.high, s.head, s.tail)
		}
	}
	for _, d := range b.damage {
		do("INSERT OR IGNORE INTO damage(file, at, number, reason) VALUES(?, ?, ?, ?)", d.File, d.Offset, int64(d.number), d.Reason)
	}
	return err
}
