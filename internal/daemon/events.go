package daemon

import (
	"context"
	"fmt"
	"iter"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"sallyport/audit"
	"sallyport/audit/index"
	"sallyport/internal/api"
	"sallyport/internal/secretfile"
	"sallyport/internal/webhook"
	"sallyport/internal/webhook/signature"
)

// lifecycles yields the events of lifecycles from a number on, or with 0 from now
// on, and waits for more.
func (d *daemon) lifecycles(ctx context.Context, from uint64) iter.Seq2[*audit.Event, error] {
	if from == 0 {
		from = d.lastEvent(ctx) + 1
	}
	dir := d.cfg.AuditDir()
	return withoutCheckpoints(func(yield func(*audit.Event, error) bool) {
		// Events that are in the log already are read in turns of their caller; later
		// events are passed on as they come.
		who := api.PrincipalOf(ctx)
		for more := who.ID != ""; more; {
			var found []scanned
			var err error
			if found, more, err = d.scans.turn(ctx, who.Owner(), dir, &from); err != nil {
				return // nobody waits for it any more
			}
			for _, f := range found {
				if !yield(f.event, f.err) {
					return
				}
			}
		}
		for e, err := range audit.Read(ctx, dir, audit.Query{From: from, Kind: audit.KindLifecycle, Follow: true}) {
			if !yield(e, err) {
				return
			}
		}
	})
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
	for e, err := range audit.Read(ctx, dir, audit.Query{From: *from}) {
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

// findEvents yields the events of the log that a query selects.
func (d *daemon) findEvents(ctx context.Context, q index.Query) iter.Seq2[audit.Entry, error] {
	return func(yield func(audit.Entry, error) bool) {
		dir, path := d.cfg.AuditDir(), d.cfg.AuditIndex()
		if last := d.lastEvent(ctx); last > index.Last(ctx, dir, path)+maxUnindexed {
			yield(audit.Entry{}, api.ErrIndexing)
			return
		}
		index.Search(ctx, dir, path, q)(yield)
	}
}

// lastEvent is the number of the log's last event.
func (d *daemon) lastEvent(ctx context.Context) (last uint64) {
	for e, err := range audit.Read(ctx, d.cfg.AuditDir(), audit.Query{Last: 1}) {
		if err == nil {
			last = e.Metadata.Sequence
		}
	}
	return last
}

// tellWebhooks starts what tells servers of events. One that cannot go on takes
// nothing else with it.
func (d *daemon) tellWebhooks(ctx context.Context, g *errgroup.Group) error {
	for i, w := range d.cfg.Webhooks {
		text, err := secretfile.Read(w.SecretFile, maxSecretFile)
		if err != nil {
			return fmt.Errorf("webhooks[%d].secretFile: %w", i, err)
		}
		secret, err := signature.ParseSecret(string(text))
		if err != nil {
			return fmt.Errorf("webhooks[%d].secretFile: %s: %w", i, w.SecretFile, err)
		}
		s, err := webhook.New(webhook.Hook{URL: w.URL, Events: w.Events, Secret: secret, Addresses: w.Addresses}, webhook.Options{
			Dir: filepath.Join(d.cfg.IndexDir(), "webhooks"), Last: d.lastEvent(ctx), Logger: d.log,
			Events: func(ctx context.Context, from uint64, follow bool) iter.Seq2[*audit.Event, error] {
				return withoutCheckpoints(audit.Read(ctx, d.cfg.AuditDir(), audit.Query{From: from, Kind: audit.KindLifecycle, Follow: follow}))
			},
		})
		if err != nil {
			return err
		}
		g.Go(func() error {
			if err := s.Run(ctx); err != nil {
				d.log.Error("a webhook ends", "url", w.URL, "error", err)
			}
			return nil
		})
	}
	return nil
}
