package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"time"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/gateway/workerapi"
	"sallyport/internal/durable"
	"sallyport/internal/ipc"
	"sallyport/policy/limit"
)

// LimitStore keeps the counters of limits when the worker that counts has ended. Each
// second it takes the changed counters from the worker and writes them to its file. The
// next worker starts with them and with what the audit log has from then on, so that usage
// which a killed process took with it is counted again: once too often rather than never.
// A stream that was killed with its worker has no completion: the bytes of its last second
// are lost.
//
// A worker's counters are bounded and only ever add: a worker that has been taken over can
// use a limit up, but not free it, neither by its counters nor by what it writes into the
// log. A period does not end before its time, and a reset counts only if it was asked for
// here.
type LimitStore struct {
	path  string
	dir   string // of the audit log
	now   func() time.Time
	every func(limit string) time.Duration // by the policy in force, 0 where it does not say

	mu       sync.Mutex // also held while the process is asked
	counts   map[limit.Key]limit.Count
	position uint64 // every event up to it is counted
	written  uint64 // position in the file
	dirty    bool
	stamp    uint64    // of the process's counters
	of       *ipc.Peer // identify stamp that is
	fresh    bool      // there is no file yet
	swept    time.Time // when room was looked for
	resets   []string  // IDs of events that say so, which the log may not have yet
}

// Bounds of what a process says.
const (
	maxPage = 1024 // counters at a time
	maxName = 512  // bytes of a limit's or a subject's name
	// maxAhead is how far a process may be in time: nothing before that ends.
	maxAhead = 24 * time.Hour
	// positionEvery is after how many events the file is written although nothing
	// was counted, so that not all of them are read again.
	positionEvery = 100_000

	pullEvery = time.Second
	maxResets = 16 // that the log did not take, or may have
)

// limitFile is what is on disk.
type limitFile struct {
	Position uint64        `json:"position"`
	Counts   []limit.Count `json:"counts"`
	Resets   []string      `json:"resets,omitempty"`
}

// OpenLimitStore reads the counters from a file; a missing file is an empty store. dir is
// the audit log's folder.
func OpenLimitStore(path, dir string) (*LimitStore, error) {
	l := &LimitStore{
		path: path, dir: dir, now: time.Now, counts: map[limit.Key]limit.Count{},
		every: func(string) time.Duration { return 0 },
	}
	var f limitFile
	found, err := durable.ReadJSON(path, &f)
	if err != nil {
		if _, unread := errors.AsType[*fs.PathError](err); !unread {
			err = fmt.Errorf("%w: remove the file to begin all counters anew", err)
		}
		return nil, fmt.Errorf("the counters of limits: %w", err)
	}
	l.fresh = !found
	for _, n := range f.Counts {
		n.Used.Concurrent = 0
		l.counts[n.Key] = n
	}
	l.position, l.written, l.resets = f.Position, f.Position, f.Resets
	return l, nil
}

// pull takes the changed counters from a worker. l.mu is held.
func (l *LimitStore) pull(ctx context.Context, p *ipc.Peer) error {
	if l.of != p {
		l.of, l.stamp = p, 0
	}
	first := uint64(0)
	for pages := 0; ; pages++ {
		var got workerapi.CountsReply
		if err := p.Call(ctx, workerapi.MethodCounts, workerapi.CountsRequest{Since: l.stamp, Most: maxPage}, &got); err != nil {
			return err
		}
		if pages == 0 {
			first = got.Position // what was recorded before the first page is in one of them
		}
		if err := l.merge(got.Counts); err != nil {
			return err
		}
		done := got.Stamp == l.stamp || len(got.Counts) < maxPage
		l.stamp = got.Stamp
		if done || pages > limit.MaxCounters/maxPage {
			break
		}
	}
	l.position = max(l.position, first)
	return nil
}

var errCounts = errors.New("the process's counters are not such")

// merge adds a worker's counters. l.mu is held.
func (l *LimitStore) merge(list []limit.Count) error {
	if len(list) > maxPage {
		return fmt.Errorf("%w: %d at a time", errCounts, len(list))
	}
	now := l.now()
	latest := now.Add(maxAhead)
	for _, n := range list {
		switch u := n.Used; {
		case len(n.Limit) > maxName || len(n.Subject) > maxName || len(n.Per) > maxName,
			n.Every < 0 || n.Every > 366*24*time.Hour && n.Every != limit.Forever,
			u.Requests < 0 || u.Bytes < 0 || u.Uses < 0 || u.Concurrent < 0 || u.Tokens < 0 || u.Cost < 0:
			return errCounts
		case n.Start.After(latest):
			continue // it would keep the limit used up for good
		}
		have, ok := l.counts[n.Key]
		if !ok {
			if !l.room() {
				continue
			}
			have = n
		}
		if l.binds(have, n.Every, n.Start, now) {
			n.Start, n.Every = have.Start, have.Every // so that it adds
		}
		per, every, most := n.Per, n.Every, n.Most
		have.Merge(n)
		have.Per, have.Every, have.Most, have.Used.Concurrent = per, every, most, n.Used.Concurrent
		l.counts[n.Key] = have
		l.dirty = true
	}
	return nil
}

// binds reports whether a counter's period is still the current one, whatever period a
// worker names: until its end, unless the policy gives the limit another period. l.mu is
// held.
func (l *LimitStore) binds(have limit.Count, every time.Duration, start, now time.Time) bool {
	switch {
	case have.Every <= 0 || !now.Before(have.Ends()):
		return false
	case every == have.Every:
		return start.After(have.Start)
	}
	known := l.every(have.Limit)
	return known == 0 || every != known
}

// room reports whether there is room for another counter. It prunes once a second at most,
// however many counters a worker sends. l.mu is held.
func (l *LimitStore) room() bool {
	if len(l.counts) < limit.MaxCounters {
		return true
	}
	now := l.now()
	if since := now.Sub(l.swept); since >= 0 && since < time.Second {
		return false
	}
	l.swept = now
	l.prune()
	return len(l.counts) < limit.MaxCounters
}

// prune drops counters whose period is over. l.mu is held.
func (l *LimitStore) prune() {
	now := l.now()
	for k, n := range l.counts {
		if n.Used.Concurrent == 0 && (!now.Before(n.Ends()) || n.Every == limit.Forever && n.Used == (limit.Amount{})) {
			delete(l.counts, k)
		}
	}
}

// list copies the counters, in order. l.mu is held.
func (l *LimitStore) list() []limit.Count {
	all := make([]limit.Count, 0, len(l.counts))
	for _, n := range l.counts {
		all = append(all, n)
	}
	limit.Sort(all)
	return all
}

// write makes changed counters durable. l.mu is held.
func (l *LimitStore) write() error {
	if !l.fresh && !l.dirty && l.position < l.written+positionEvery {
		return nil
	}
	l.prune()
	text, err := json.Marshal(limitFile{l.position, l.list(), l.resets})
	if err != nil {
		return err
	}
	if err := durable.WriteFile(l.path, text, 0o600); err != nil {
		return err
	}
	l.dirty, l.fresh, l.written = false, false, l.position
	return nil
}

// sync pulls a worker's counters and writes them.
func (l *LimitStore) sync(ctx context.Context, p *ipc.Peer) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p != nil {
		if err := l.pull(ctx, p); err != nil {
			return err
		}
	}
	return l.write()
}

// recount counts the events of the log from the position on, up to the event before next.
// No process may be writing the log. It reads nothing if the policy has no limits and
// there are no counters.
func (l *LimitStore) recount(ctx context.Context, next uint64, limited bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for k, n := range l.counts {
		n.Used.Concurrent = 0 // it ended with the process
		l.counts[k] = n
	}
	l.prune()
	if l.fresh || l.position >= next-1 || !limited && len(l.counts) == 0 {
		l.position = next - 1
		if l.fresh && limited {
			return l.write() // what comes from now on is read again after a crash
		}
		return nil
	}
	// Damage is evidence, and cannot be counted.
	for e, err := range auditlog.Undamaged(auditlog.Read(ctx, l.dir, auditlog.Query{From: l.position + 1})) {
		if err != nil {
			return fmt.Errorf("counting again from the audit log: %w", err)
		}
		l.count(e)
	}
	l.position, l.resets = next-1, nil
	return l.write()
}

// count adds one event. l.mu is held.
func (l *LimitStore) count(e *audit.Event) {
	x := &e.Unmapped.Sallyport
	if x.Kind == audit.KindLifecycle && x.State == stateReset {
		// A process that was taken over writes what it likes into the log.
		if i := slices.Index(l.resets, e.ID()); i >= 0 {
			l.resets = slices.Delete(l.resets, i, i+1)
			for _, u := range x.Limits {
				l.empty(u.Name, u.Subject)
			}
		}
		return
	}
	var used limit.Amount
	switch {
	case x.Kind == audit.KindDecision && (x.Decision == "allow" || x.Decision == "tunnel"):
		used.Requests = 1
	case x.Kind == audit.KindCompletion && e.Traffic != nil:
		used.Bytes = e.Traffic.BytesIn + e.Traffic.BytesOut
		if t := x.Tokens; t != nil {
			used.Tokens = max(t.In, 0) + max(t.Out, 0)
			_ = used.Cost.UnmarshalText([]byte(t.Cost)) // none where there is no price
		}
	default:
		return
	}
	now := l.now()
	at := time.UnixMilli(e.Time)
	for _, u := range x.Limits {
		every := time.Duration(u.Period) * time.Millisecond
		if every <= 0 {
			continue
		}
		key := limit.Key{Limit: u.Name, Subject: u.Subject}
		n, ok := l.counts[key]
		if !ok {
			if !l.room() {
				continue
			}
			n = limit.Count{Key: key}
		}
		when := at
		if ok && l.binds(n, every, begins(at, every), now) {
			every, when = n.Every, n.Start
		}
		n.Every = every
		if used.Requests > 0 {
			used.Uses = u.Uses
		}
		n.Add(when, now, used)
		l.counts[key] = n
		l.dirty = true
	}
}

func begins(at time.Time, every time.Duration) time.Time { return at.UTC().Truncate(every) }

// stateReset is the state in the event of a reset.
const stateReset = "reset"

// expect writes down that the log is about to have a reset. l.mu is held.
func (l *LimitStore) expect(id string) error {
	l.resets = append(l.resets[max(0, len(l.resets)-maxResets):], id)
	l.dirty = true
	return l.write()
}

// empty sets counters to zero and returns their number. l.mu is held.
func (l *LimitStore) empty(name, subject string) (n int) {
	for k, c := range l.counts {
		if k.Limit == name && (subject == limit.Every || subject == k.Subject) {
			c.Used = limit.Amount{Concurrent: c.Used.Concurrent}
			c.Start = time.Time{} // any period is a later one
			l.counts[k] = c
			l.dirty = true
			n++
		}
	}
	return n
}

// restore gives a new worker the counters.
func (l *LimitStore) restore(ctx context.Context, p *ipc.Peer) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	var page []limit.Count
	flush := func() error {
		if len(page) == 0 {
			return nil
		}
		err := p.Call(ctx, workerapi.MethodRestore, workerapi.RestoreRequest{Counts: page}, &ipc.None{})
		page = page[:0]
		return err
	}
	for _, n := range l.list() {
		if n.Every <= 0 || !now.Before(n.Ends()) {
			continue
		}
		if page = append(page, n); len(page) == maxPage {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return flush()
}
