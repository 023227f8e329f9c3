package sink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sallyport/audit/auditlog"
	"sallyport/internal/periodic"
)

// Set is the sinks of one log. It is safe for concurrent use.
type Set struct {
	opt     Options
	durable atomic.Uint64

	mu   sync.Mutex
	ctx  context.Context // of Run; nil before
	all  []*running
	held string
}

// running is a Shipper with its goroutine.
type running struct {
	*Shipper
	cancel context.CancelFunc // nil: not started
	done   chan struct{}      // closed when the goroutine has ended
}

// Plan is a list of sinks that is ready to be used.
type Plan struct {
	all    []*running
	opened []*running // those that are new or changed
}

// Discard closes a plan that is not used.
func (p *Plan) Discard() {
	for _, r := range p.opened {
		_ = r.protocol.Close()
	}
}

// ConfigError says which sink of a list cannot be used.
type ConfigError struct {
	Index int
	Err   error
}

func (e *ConfigError) Error() string { return fmt.Sprintf("sink %d: %v", e.Index, e.Err) }
func (e *ConfigError) Unwrap() error { return e.Err }

// NewSet returns a Set without sinks.
func NewSet(o Options) *Set {
	o.firstTry, o.lastTry, o.sendWithin = cmp.Or(o.firstTry, firstTry), cmp.Or(o.lastTry, lastTry), cmp.Or(o.sendWithin, sendWithin)
	o.lookEvery, o.measureEvery = cmp.Or(o.lookEvery, lookEvery), cmp.Or(o.measureEvery, measureEvery)
	return &Set{opt: o}
}

// Prepare opens the sinks of a list that are not as they were, without connecting to
// their receivers. It returns a *ConfigError for each that cannot be used.
func (s *Set) Prepare(ctx context.Context, list []Config) (*Plan, error) {
	now := s.sinks()
	p := new(Plan)
	var errs []error
	for n, c := range list {
		if i := slices.IndexFunc(now, func(r *running) bool { return reflect.DeepEqual(r.config, c) }); i >= 0 {
			p.all = append(p.all, now[i])
			continue
		}
		shipper, err := newShipper(ctx, c, &s.opt, &s.durable)
		if err != nil {
			errs = append(errs, &ConfigError{n, err})
			continue
		}
		r := &running{Shipper: shipper, done: make(chan struct{})}
		p.all, p.opened = append(p.all, r), append(p.opened, r)
	}
	if len(errs) > 0 {
		p.Discard()
		return nil, errors.Join(errs...)
	}
	return p, nil
}

// Use puts a plan into force: sinks that it lacks end, and new ones start. One that has
// changed goes on from its cursor when its former self has ended. Held is up to date from
// then on, also before Run.
func (s *Set) Use(p *Plan) {
	s.use(p)
	s.measure()
}

func (s *Set) use(p *Plan) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.all
	s.all = p.all
	for _, old := range before {
		if !slices.Contains(s.all, old) && old.cancel != nil {
			old.cancel()
		}
	}
	if s.ctx != nil {
		s.start(before)
	}
}

// start starts what has not been. s.mu is held.
func (s *Set) start(before []*running) {
	for _, r := range s.all {
		if r.cancel != nil {
			continue
		}
		var former chan struct{}
		if i := slices.IndexFunc(before, func(o *running) bool { return o.config.Name == r.config.Name && o.cancel != nil }); i >= 0 {
			former = before[i].done
		}
		var ctx context.Context
		ctx, r.cancel = context.WithCancel(s.ctx)
		go func() {
			defer close(r.done)
			if former != nil {
				<-former
				// Its cursor has moved since this one was opened.
				r.insist(ctx, "reading the cursor", func() error { return r.load(ctx) })
			}
			r.Run(ctx)
		}()
	}
}

// Run has the sinks send until ctx is done, and keeps their Status.
func (s *Set) Run(ctx context.Context) error {
	s.mu.Lock()
	s.ctx = ctx
	s.start(nil)
	s.mu.Unlock()
	var measured time.Time
	for ctx.Err() == nil {
		s.look()
		if time.Since(measured) >= s.opt.measureEvery {
			measured = time.Now()
			s.measure()
		}
		periodic.Sleep(ctx, s.opt.lookEvery)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.all {
		<-r.done
	}
	return nil
}

const (
	lookEvery    = 100 * time.Millisecond // for more records
	measureEvery = time.Second            // how much waits
)

// look wakes the sinks if the log has grown.
func (s *Set) look() {
	all := s.sinks()
	if len(all) == 0 {
		return
	}
	now := s.opt.Durable()
	if s.durable.Swap(now) >= now {
		return
	}
	for _, r := range all {
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
}

// measure finds out how much waits for each sink, and holds the data path or lets it go.
func (s *Set) measure() {
	all := s.sinks()
	after := make([]uint64, len(all))
	for n, r := range all {
		after[n] = r.Status().Cursor
	}
	waiting, err := auditlog.Waiting(s.opt.Log, after...)
	if err != nil {
		s.opt.Logger.Error("how much waits for sinks cannot be found out", "error", err)
		return
	}
	held := ""
	for n, r := range all {
		if full := r.waits(waiting[n]); full && r.config.Block && held == "" {
			held = fmt.Sprintf("audit sink %s is %d bytes behind, more than spool.bytes lets wait", r.config.Name, waiting[n].Bytes)
		}
	}
	s.mu.Lock()
	changed := (held == "") != (s.held == "")
	s.held = held
	s.mu.Unlock()
	if changed {
		s.opt.Hold(held)
	}
}

// waits notes what waits, and reports whether that is too much. It ends to be when a
// tenth of the bound is free.
func (s *Shipper) waits(b auditlog.Backlog) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	bound := s.config.Bound
	if s.status.Full {
		bound -= bound / 10
	}
	s.status.Waiting, s.status.WaitingBytes, s.status.Full = b.Records, b.Bytes, b.Bytes > bound
	return s.status.Full
}

// Held returns why the data path is to stop, or "".
func (s *Set) Held() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held
}

// sinks lists the sinks that are in use.
func (s *Set) sinks() []*running {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.all)
}

// Status lists the sinks as they are configured.
func (s *Set) Status() []Status {
	all := s.sinks()
	list := make([]Status, len(all))
	for n, r := range all {
		list[n] = r.Status()
	}
	return list
}

// Shipped returns the number up to which every sink has the records, and the name of the
// sink that has the fewest. Without sinks it is a number that no record has.
func (s *Set) Shipped() (last uint64, name string) {
	last = math.MaxUint64
	for _, st := range s.Status() {
		if st.Cursor < last {
			last, name = st.Cursor, st.Name
		}
	}
	return last, name
}

// Drain has batches wait no more and returns when no sink that answers lacks a record up
// to last, or ctx is done.
func (s *Set) Drain(ctx context.Context, last uint64) {
	all := s.sinks()
	for _, r := range all {
		close(r.drain)
	}
	behind := func(r *running) bool {
		st := r.Status()
		return st.Cursor < last && st.Away.IsZero()
	}
	for slices.ContainsFunc(all, behind) && periodic.Sleep(ctx, 10*time.Millisecond) {
		s.look()
	}
}

// ErrNoSink says that no sink has a name.
var ErrNoSink = errors.New("no such sink")

func (s *Set) named(name string) (*running, error) {
	for _, r := range s.sinks() {
		if r.config.Name == name {
			return r, nil
		}
	}
	return nil, fmt.Errorf("%w: %q", ErrNoSink, name)
}

// Has reports whether there is a sink of that name.
func (s *Set) Has(name string) bool {
	_, err := s.named(name)
	return err == nil
}

// Test sends one record to a sink over a connection of its own, and returns what the
// receiver answered.
func (s *Set) Test(ctx context.Context, name string, r auditlog.Entry) (string, error) {
	of, err := s.named(name)
	if err != nil {
		return "", err
	}
	item, err := of.item(r)
	if err != nil {
		return "", err
	}
	p, err := of.open()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, testWithin)
	defer cancel()
	a, err := p.Send(ctx, []Item{item})
	err = errors.Join(err, p.Close())
	for _, reason := range [...]string{a.Refused[0], a.Again[0]} {
		if reason != "" {
			err = errors.Join(err, errors.New(reason))
		}
	}
	return a.Text, err
}

// testWithin bounds the wait for the answer to a test.
const testWithin = 20 * time.Second
