package credential

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
)

const (
	// retryAfter is how long a Remote source's failure is remembered at first, so that a
	// sandbox cannot drive the gateway to flood it. It doubles up to maxRetry while the last
	// secret is leased meanwhile.
	retryAfter = time.Second
	maxRetry   = 8 * time.Second
	// RefreshEvery is how long [Broker.Refresh] waits at first before it has the source of one
	// secret asked again. It doubles up to maxRefresh, and is as at first after twice that
	// without a refresh. It does not depend on what upstreams answer: a sandbox can have them
	// take a credential, and refuse it, in turn.
	RefreshEvery = 10 * time.Second
	maxRefresh   = 10 * time.Minute
)

// entry is one secret's source and what it last said.
type entry struct {
	source  Source
	proxies []string // that may be given it as a login
	// registries may be, too.
	registries []string
	sinks      []string // of the audit log, likewise
	grace      time.Duration
	cache      *time.Duration // see Lasting
	owned      *owned         // the entries of sandboxes, where each has its own; source is not read then
	sandbox    string         // that it is the own secret of
	timed      bool           // it is renewed although nobody asks
	timeout    time.Duration
	flight     singleflight.Group
	onRead     func(r Reading, err error)
	log        *slog.Logger

	mu   sync.Mutex
	last *secret // of a Remote source
	// last is read again from renew on. It is leased until until, and until graceUntil while
	// the source cannot be reached.
	renew, until, graceUntil time.Time
	began                    time.Time // the read of last
	err                      error     // of the last read
	failures                 int       // since one succeeded
	again                    time.Time // before then the source is not asked again
	refreshed                time.Time
	pause                    time.Duration // after refreshed
	readTimer                *time.Timer   // reads the source at renew, or again after a failure, if timed
	dropTimer                *time.Timer   // drops last when it may be leased no more
	ended                    bool
	forgotten                int // times: what was read before is not kept
}

// get returns what the source says now.
func (e *entry) get(ctx context.Context) (*secret, error) {
	if e.owned != nil {
		return e.owned.entry("").get(ctx)
	}
	ttl, remote := e.ttl()
	if !remote {
		ctx, cancel := context.WithTimeout(ctx, e.timeout)
		defer cancel()
		s, _, err := e.read(ctx)
		return s, err
	}
	for asked := time.Now(); ; {
		s, err, known, due := e.cached(asked)
		if known && !due {
			return s, err
		}
		result := e.ask(asked)
		if known {
			return s, err
		}
		// Without a TTL a read that others had begun may be too old: it is looked for again.
		if s, err = await(ctx, result); err != nil || ttl > 0 {
			return s, err
		}
	}
}

// ttl is how long what a Remote source says is leased without asking it again.
func (e *entry) ttl() (ttl time.Duration, remote bool) {
	r, remote := e.source.(Remote)
	switch {
	case !remote:
		return 0, false
	case e.cache != nil:
		return *e.cache, true
	}
	return r.TTL(), true
}

// freshUntil is Lease.Fresh.
func (e *entry) freshUntil() time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, remote := e.ttl(); !remote || e.err != nil {
		return time.Time{}
	}
	return e.until
}

// await waits for a read, which outlives the request that began it: others wait for it too.
func await(ctx context.Context, result <-chan singleflight.Result) (*secret, error) {
	select {
	case <-ctx.Done():
		return nil, fmt.Errorf("waiting for the source: %w", ctx.Err())
	case r := <-result:
		s, _ := r.Val.(*secret)
		return s, r.Err
	}
}

// ask reads a Remote source, once for all that ask meanwhile.
func (e *entry) ask(asked time.Time) <-chan singleflight.Result {
	return e.flight.DoChan("", func() (any, error) {
		if s, err, known, due := e.cached(asked); known && !due {
			return s, err
		}
		ctx, cancel := context.WithTimeout(context.Background(), e.timeout)
		defer cancel()
		before := e.version()
		s, m, err := e.read(ctx)
		e.onRead(Reading{Version: m.Version, Accessor: m.Accessor, Sandbox: e.sandbox, Renewed: e.timed && m.Version == before}, err)
		if err != nil && s != nil {
			return s, nil // it is leased meanwhile
		}
		return s, err
	})
}

// cached returns what is known without the source for a lease that was asked for at a
// time, and whether the source is due to be asked.
func (e *entry) cached(asked time.Time) (_ *secret, _ error, known, due bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	rested := !now.Before(e.again)
	switch {
	case e.last != nil && !e.began.Before(asked) && (e.last.material.Expires.IsZero() || now.Before(e.last.material.Expires)):
		return e.last, nil, true, false
	case e.last != nil && now.Before(e.until):
		return e.last, nil, true, rested && !now.Before(e.renew)
	case e.last != nil && e.err != nil && now.Before(e.graceUntil):
		return e.last, nil, true, rested
	case e.err != nil && !rested:
		return nil, e.err, true, false
	}
	return nil, nil, false, true
}

func (e *entry) version() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.last == nil {
		return ""
	}
	return e.last.material.Version
}

// refresh asks the source for another version than the one that was refused.
func (e *entry) refresh(ctx context.Context, refused string) (bool, error) {
	if _, ok := e.source.(Remote); !ok { // it is asked each time
		s, err := e.get(ctx)
		return err == nil && s.material.Version != refused, err
	}
	e.mu.Lock()
	now := time.Now()
	other := e.last != nil && e.last.material.Version != refused
	if other || now.Sub(e.refreshed) < e.pause {
		e.mu.Unlock()
		return other, nil
	}
	if now.Sub(e.refreshed) >= 2*maxRefresh {
		e.pause = 0
	}
	e.pause = min(max(RefreshEvery, 2*e.pause), maxRefresh)
	e.refreshed, e.renew, e.again, e.began = now, now, now, time.Time{}
	e.mu.Unlock()
	if d, ok := e.source.(Discarding); ok {
		d.Discard(refused)
	}
	s, err := await(ctx, e.ask(now))
	return err == nil && s.material.Version != refused, err
}

// read asks the source and remembers the answer for its TTL. Besides an error it returns the
// secret to lease all the same.
func (e *entry) read(ctx context.Context) (_ *secret, m Material, err error) {
	forgotten := e.timesForgotten()
	ttl, remote := e.ttl()
	began := time.Now()
	m, err = e.source.Read(ctx)
	m.Cached = m.Cached || remote // a worker's source is not Remote, and passes on what it is
	now := time.Now()
	switch {
	case err == nil && len(m.Fields) == 0:
		err = fmt.Errorf("%w: its source has no field", ErrNoSecret)
	case err == nil && !m.Expires.IsZero() && !now.Before(m.Expires):
		err = fmt.Errorf("%w: its source returned one that has expired", ErrUnavailable)
	}

	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended {
		return nil, m, e.err
	}
	if e.forgotten != forgotten && err == nil {
		return &secret{material: m}, m, nil
	}
	if err != nil {
		return e.failed(now, ttl, err), m, err
	}
	if e.failures > 0 && e.last != nil && remote {
		e.log.Info("the source of a credential can be reached again")
	}
	// The same secret keeps what was derived from it.
	if e.last == nil || !same(e.last.material, m) {
		e.last = &secret{material: m}
	}
	e.err, e.failures, e.again, e.began = nil, 0, time.Time{}, began
	sooner := func(t time.Time) time.Time {
		if !m.Expires.IsZero() && m.Expires.Before(t) {
			return m.Expires
		}
		return t
	}
	e.until, e.graceUntil = sooner(now.Add(ttl)), sooner(now.Add(ttl).Add(e.grace))
	e.renew = now.Add(e.until.Sub(now) / 5 * 4)
	e.readAt(e.renew)
	if ttl > 0 {
		e.dropAt(e.graceUntil)
	}
	return e.last, m, nil
}

// failed remembers a failure and returns the last secret if it is leased all the same.
// e.mu is held.
func (e *entry) failed(now time.Time, ttl time.Duration, err error) *secret {
	away := errors.Is(err, ErrUnavailable) || errors.Is(err, context.DeadlineExceeded)
	if !away || !now.Before(e.graceUntil) {
		e.last = nil
	}
	pause := retryAfter
	if e.last != nil {
		if e.failures == 0 {
			e.log.Warn("the source of a credential cannot be reached; its last secret is used meanwhile", "until", e.graceUntil, "error", err)
		}
		pause = min(retryAfter<<min(e.failures, 8), maxRetry)
	}
	e.failures++
	if ttl > 0 {
		pause = min(ttl, pause)
	}
	e.err, e.again = err, now.Add(pause)
	if e.last != nil {
		e.readAt(e.again)
	}
	return e.last
}

// forget drops what the source has said.
func (e *entry) forget() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended {
		return
	}
	e.forgotten++
	e.last, e.err, e.failures, e.again, e.refreshed, e.pause = nil, nil, 0, time.Time{}, time.Time{}, 0
	e.flight.Forget("")
}

func (e *entry) timesForgotten() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.forgotten
}

// readAt reads the source at a time although no request asks, if the entry is timed. e.mu is
// held.
func (e *entry) readAt(at time.Time) {
	if !e.timed || e.ended {
		return
	}
	if e.readTimer == nil {
		e.readTimer = time.AfterFunc(time.Until(at), func() { e.ask(time.Now()) })
		return
	}
	e.readTimer.Reset(time.Until(at))
}

// dropAt drops the last secret at a time, unless it is leased for longer then. e.mu is held.
func (e *entry) dropAt(at time.Time) {
	if e.dropTimer != nil {
		e.dropTimer.Reset(time.Until(at))
		return
	}
	e.dropTimer = time.AfterFunc(time.Until(at), func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if !time.Now().Before(e.graceUntil) {
			e.last = nil
		}
	})
}

// stopDrop ends the timer of dropAt: nothing leads to the entry any more.
func (e *entry) stopDrop() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.dropTimer != nil {
		e.dropTimer.Stop()
	}
}

// end leases no more of a sandbox's own secret.
func (e *entry) end() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ended, e.last = true, nil
	e.err, e.again = fmt.Errorf("%w: the sandbox has ended, or may use it no more", ErrUnavailable), time.Now().Add(UntilExpiry)
	for _, t := range []*time.Timer{e.readTimer, e.dropTimer} {
		if t != nil {
			t.Stop()
		}
	}
}

// same compares two readings of one source in this process, whose timing no
// sandbox can see.
func same(a, b Material) bool {
	if a.Version != b.Version || len(a.Fields) != len(b.Fields) || !a.Expires.Equal(b.Expires) || !a.Ends.Equal(b.Ends) {
		return false
	}
	for name, v := range a.Fields {
		if w, ok := b.Fields[name]; !ok || !v.equal(w) {
			return false
		}
	}
	return true
}
