// Package events reads the audit log for callers of the API and for webhooks. However much of it
// one caller reads, the others get their share of the processor.
package events

import (
	"context"
	"iter"
	"sync"
	"time"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/audit/index"
	"sallyport/audit/tree"
	"sallyport/internal/api"
)

// Reader reads one audit log. It is safe for concurrent use.
type Reader struct {
	Dir   string // of the audit log
	Index string // the file of its index

	scans scans
}

// Lifecycles yields the events of lifecycles from a number on, or with 0 from now on, and waits
// for more.
func (r *Reader) Lifecycles(ctx context.Context, from uint64) iter.Seq2[*audit.Event, error] {
	if from == 0 {
		from = r.Last(ctx) + 1
	}
	return withoutCheckpoints(func(yield func(*audit.Event, error) bool) {
		// Events that are in the log already are read in turns of their caller; later
		// events are passed on as they come.
		who := api.PrincipalOf(ctx)
		for more := who.ID != ""; more; {
			var found []scanned
			var err error
			if found, more, err = r.scans.turn(ctx, who.Owner(), r.Dir, &from); err != nil {
				return // nobody waits for it any more
			}
			for _, f := range found {
				if !yield(f.event, f.err) {
					return
				}
			}
		}
		for e, err := range auditlog.Read(ctx, r.Dir, auditlog.Query{From: from, Kind: audit.KindLifecycle, Follow: true}) {
			if !yield(e, err) {
				return
			}
		}
	})
}

// Read yields the events of lifecycles from a number on, and waits for more if it is to follow.
func (r *Reader) Read(ctx context.Context, from uint64, follow bool) iter.Seq2[*audit.Event, error] {
	return withoutCheckpoints(auditlog.Read(ctx, r.Dir, auditlog.Query{From: from, Kind: audit.KindLifecycle, Follow: follow}))
}

// A caller who reads the log from far back has a turn at a time for so many events, by
// all of its streams, or a tenant by those of all of its keys; after each it waits
// scanRest times as long as the turn took. However much there is to read, that leaves
// three quarters of a core, and all others, to everybody else.
const (
	scanTurn = 10_000
	scanRest = 3
)

// scans are the turns of callers.
type scans struct {
	mu sync.Mutex
	of map[string]*scanning
}

type scanning struct {
	turn  chan struct{} // has an element while somebody has it
	users int
}

// scanned is an event, or what is wrong with the log.
type scanned struct {
	event *audit.Event
	err   error
}

// turn waits for that of a caller, reads up to scanTurn events from a number on, which it
// moves, and returns those of lifecycles and whether there may be more.
func (s *scans) turn(ctx context.Context, who, dir string, from *uint64) (found []scanned, more bool, err error) {
	s.mu.Lock()
	if s.of == nil {
		s.of = map[string]*scanning{}
	}
	of := s.of[who]
	if of == nil {
		of = &scanning{turn: make(chan struct{}, 1)}
		s.of[who] = of
	}
	of.users++
	s.mu.Unlock()
	leave := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if of.users--; of.users == 0 {
			delete(s.of, who)
		}
	}
	select {
	case of.turn <- struct{}{}:
	case <-ctx.Done():
		leave()
		return nil, false, ctx.Err()
	}
	began := time.Now()
	n := 0
	for e, err := range auditlog.Read(ctx, dir, auditlog.Query{From: *from}) {
		if e != nil {
			*from = e.Metadata.Sequence + 1
		}
		if e == nil || e.Unmapped.Sallyport.Kind == audit.KindLifecycle {
			found = append(found, scanned{e, err})
		}
		if n++; n == scanTurn {
			break
		}
	}
	time.AfterFunc(scanRest*time.Since(began), func() { <-of.turn; leave() })
	return found, n == scanTurn, ctx.Err()
}

// maxUnindexed is how many events of the log a query by the API may have to read because
// they are not indexed.
const maxUnindexed = 100_000

// Find yields the events of the log that a query selects.
func (r *Reader) Find(ctx context.Context, q index.Query) iter.Seq2[auditlog.Entry, error] {
	return func(yield func(auditlog.Entry, error) bool) {
		if last := r.Last(ctx); last > index.Last(ctx, r.Dir, r.Index)+maxUnindexed {
			yield(auditlog.Entry{}, api.ErrIndexing)
			return
		}
		index.Search(ctx, r.Dir, r.Index, q)(yield)
	}
}

// Last is the number of the log's last event.
func (r *Reader) Last(ctx context.Context) (last uint64) {
	for e, err := range auditlog.Read(ctx, r.Dir, auditlog.Query{Last: 1}) {
		if err == nil {
			last = e.Metadata.Sequence
		}
	}
	return last
}

// withoutCheckpoints leaves out what comes every ten seconds and concerns nobody who waits
// for an event.
func withoutCheckpoints(all iter.Seq2[*audit.Event, error]) iter.Seq2[*audit.Event, error] {
	return func(yield func(*audit.Event, error) bool) {
		for e, err := range all {
			if e != nil && e.Unmapped.Sallyport.State == tree.State {
				continue
			}
			if !yield(e, err) {
				return
			}
		}
	}
}
