package index

import (
	"cmp"
	"context"
	"database/sql"
	"iter"
	"slices"
	"strings"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/internal/sqlite"
)

// Search yields the events that a query selects of the log in dir, in order: by the index
// at path, and by the log for what that does not have. It needs nothing that writes either.
// Errors are those of [auditlog.Read].
func Search(ctx context.Context, dir, path string, q Query) iter.Seq2[auditlog.Entry, error] {
	return func(yield func(auditlog.Entry, error) bool) {
		s := &search{ctx: ctx, dir: dir, selection: q.selection(), yield: yield, next: max(q.From, 1), open: map[string]bool{}}
		if path != "" {
			// An index that is not there, not whole or not of this log is none.
			_ = s.indexed(path)
		}
		s.log()
	}
}

// search yields in order. All that is selected below next has been yielded.
type search struct {
	ctx context.Context
	dir string
	selection
	yield   func(auditlog.Entry, error) bool
	next    uint64
	open    map[string]bool // decisions that were yielded and wait for their completion, by ID
	stopped bool
}

// over says that nothing is selected from next on.
func (s *search) over() bool {
	return s.stopped || s.query.To != 0 && s.next > s.query.To && len(s.open) == 0
}

// log reads the log from next on.
func (s *search) log() {
	if s.over() {
		return
	}
	for e, err := range auditlog.Entries(s.ctx, s.dir, auditlog.Query{From: s.next}) {
		if err != nil {
			s.stopped = !s.yield(auditlog.Entry{}, err)
		} else {
			s.take(e)
		}
		if s.over() {
			return
		}
	}
}

// take yields an entry if it is selected.
func (s *search) take(e auditlog.Entry) {
	s.next = e.Number + 1
	wanted := s.wants(e.Event)
	switch id := e.Event.Metadata.CorrelationUID; {
	case e.Event.Unmapped.Sallyport.Kind == audit.KindCompletion:
		wanted = wanted || s.open[id]
		delete(s.open, id)
	case !opens(e.Event):
	case wanted && s.query.follows():
		s.open[e.Event.ID()] = true
	default:
		delete(s.open, e.Event.ID())
	}
	if wanted && !s.yield(e, nil) {
		s.stopped = true
	}
}

// place is where an event is.
type place struct {
	number uint64
	at     int64
}

// pageSize is how many events are looked up at a time, so that a reader who takes long
// keeps nothing from the index's writer.
const pageSize = 1024

// indexed yields what the index has from next on, and moves next beyond that. When it
// fails, all that it has not yielded is at next or later.
func (s *search) indexed(path string) error {
	return reading(s.ctx, s.dir, path, func(db *sql.DB, log *auditlog.Picker, last uint64) error {
		l := &lookup{search: s, db: db, picker: log, low: max(s.next, log.First()), last: last}
		if err := l.prepare(); err != nil {
			return err
		}
		for more := true; more && !s.stopped; {
			var err error
			if more, err = l.page(); err != nil {
				return err
			}
		}
		if err := l.upTo(last + 1); err != nil || s.stopped {
			return err
		}
		s.next = max(s.next, last+1)
		return nil
	})
}

// lookup is a search by an index.
type lookup struct {
	*search
	db        *sql.DB
	picker    *auditlog.Picker
	low, high uint64  // what is selected is there, but for completions
	last      uint64  // that is indexed
	match     string  // of FTS5
	damage    []found // the next of it
	told      found   // the last that was read
	following []place // completions of what was yielded
}

// prepare finds the bounds of the query's times and the log's damage.
func (l *lookup) prepare() error {
	q := l.query
	l.high = l.last
	if q.To != 0 {
		l.high = min(l.high, q.To)
	}
	if !q.Since.IsZero() || !q.Until.IsZero() {
		since, until := int64(-1<<63), int64(1<<63-1)
		if !q.Since.IsZero() {
			since = q.Since.UnixMilli()
		}
		if !q.Until.IsZero() {
			until = q.Until.UnixMilli()
		}
		var first, last sql.NullInt64
		if err := l.db.QueryRowContext(l.ctx, "SELECT min(first), max(last) FROM span WHERE high >= ? AND low < ?", since, until).Scan(&first, &last); err != nil {
			return err
		}
		// Without one there is nothing between.
		l.low, l.high = max(l.low, uint64(cmp.Or(first.Int64, int64(l.high)+1))), min(l.high, uint64(last.Int64))
	}
	var all []string
	for i, any := range l.wanted {
		if i == maxTerms {
			break
		}
		all = append(all, `("`+strings.Join(any, `" OR "`)+`")`)
	}
	l.match = strings.Join(all, " AND ")
	l.told = found{&auditlog.DamageError{Offset: -1}, l.next}
	return l.readDamage()
}

// readDamage reads the next damage: there can be much, if somebody has written it.
func (l *lookup) readDamage() error {
	return sqlite.Each(l.ctx, l.db, func(scan func(...any) error) error {
		d := found{DamageError: new(auditlog.DamageError)}
		err := scan(&d.File, &d.Offset, &d.number, &d.Reason)
		l.damage, l.told = append(l.damage, d), d
		return err
	}, "SELECT file, at, number, reason FROM damage WHERE (number, file, at) > (?, ?, ?) ORDER BY number, file, at LIMIT ?",
		int64(l.told.number), l.told.File, l.told.Offset, pageSize)
}

// maxTerms bounds what is asked of FTS5 at once. Each hit is compared with all terms.
const maxTerms = 64

const columns = `SELECT r.number, r.at, c.number, c.at FROM `

// page yields the next events, and says whether there may be more.
func (l *lookup) page() (more bool, err error) {
	if l.low > l.high {
		return false, nil
	}
	query, args := columns+`record r LEFT JOIN record c ON c.number = r.number + r.completion
		WHERE r.number BETWEEN ? AND ? ORDER BY r.number LIMIT ?`, []any{int64(l.low), int64(l.high), pageSize}
	if l.match != "" {
		query = columns + `event JOIN record r ON r.number = event.rowid LEFT JOIN record c ON c.number = r.number + r.completion
			WHERE event MATCH ? AND event.rowid BETWEEN ? AND ? ORDER BY event.rowid LIMIT ?`
		args = append([]any{l.match}, args...)
	}
	type hit struct {
		place
		completion place
	}
	hits, err := sqlite.Rows(l.ctx, l.db, func(scan func(...any) error) (h hit, err error) {
		var number, at sql.NullInt64
		err = scan(&h.number, &h.at, &number, &at)
		h.completion = place{uint64(number.Int64), at.Int64}
		return h, err
	}, query, args...)
	if err != nil {
		return false, err
	}
	for _, h := range hits {
		if err := l.upTo(h.number); err != nil || l.stopped {
			return false, err
		}
		e, err := l.pick(h.place)
		if err != nil || l.stopped {
			return false, err
		}
		if l.open[e.Event.ID()] && h.completion.number > 0 && h.completion.number <= l.last {
			at, _ := slices.BinarySearchFunc(l.following, h.completion.number, func(p place, n uint64) int { return cmp.Compare(p.number, n) })
			l.following = slices.Insert(l.following, at, h.completion)
		}
		l.low = h.number + 1
	}
	return len(hits) == pageSize, nil
}

// upTo yields the completions, and the damage, before a number.
func (l *lookup) upTo(number uint64) error {
	for len(l.following) > 0 && l.following[0].number <= number && !l.stopped {
		next := l.following[0]
		l.following = l.following[1:]
		if next.number == number {
			break
		}
		if _, err := l.pick(next); err != nil {
			return err
		}
	}
	for len(l.damage) > 0 && l.damage[0].number <= number && !l.stopped {
		l.stopped = !l.yield(auditlog.Entry{}, l.damage[0].DamageError)
		if l.damage = l.damage[1:]; len(l.damage) == 0 {
			if err := l.readDamage(); err != nil {
				return err
			}
		}
	}
	return nil
}

// pick takes an event from the log.
func (l *lookup) pick(p place) (auditlog.Entry, error) {
	e, err := l.picker.Pick(p.number, p.at)
	if err == nil {
		l.take(e)
	}
	return e, err
}
