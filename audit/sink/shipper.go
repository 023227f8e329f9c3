package sink

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/internal/periodic"
)

const (
	sendWithin = time.Minute
	firstTry   = time.Second
	lastTry    = time.Minute
	// firstBatch bounds batches in records until the receiver has taken one.
	firstBatch = 16
)

// Options of a Set and its Shippers.
type Options struct {
	Log  string // folder of the audit log
	Dir  string // has the cursors
	Dead string // has the dead letters
	// Durable is the number of the last record that is known to be durable. One that is not
	// may be taken back, and its number given to another: it is not sent.
	Durable func() uint64
	// Record appends an event to the log.
	Record func(ctx context.Context, e *audit.Event) error
	// Encoder returns an encoding by its name. Without it there is the stored one alone.
	Encoder func(name string) (Encoder, error)
	// Secret returns the fields of a sink's credential.
	Secret func(ctx context.Context, c Config) (map[string]string, error)
	// Dial connects to a sink's receiver.
	Dial func(ctx context.Context, c Config, network, address string) (net.Conn, error)
	// Hold is called when the data path is to stop since a sink is too far behind, with
	// the reason, and with "" when it may go on.
	Hold   func(reason string)
	Logger *slog.Logger

	firstTry, lastTry, sendWithin, lookEvery, measureEvery time.Duration // for tests
}

// Shipper sends the log to one receiver.
type Shipper struct {
	config   Config
	opt      *Options
	protocol Protocol
	encode   Encoder
	durable  *atomic.Uint64
	wake     chan struct{} // has an element when durable has grown
	drain    chan struct{} // closed when batches wait no more

	// Run's own.
	at       cursor
	last     *Item // that the receiver has
	failures int
	source   source

	mu     sync.Mutex
	status Status
}

// Status is the state of one sink.
type Status struct {
	Name, Type, Encoding, Receiver string

	Cursor  uint64 // number of the last record that the receiver has
	Waiting uint64 // records that it lacks
	// WaitingBytes is what they take in the log.
	WaitingBytes int64
	Full         bool // that is more than Config.Bound

	Away     time.Time // since when nothing was acknowledged; zero: it answers
	Answer   string    // the last one, or the last error
	Answered time.Time

	Sent, Refused, Lost, Retries uint64 // records, since the start; Lost by the log
}

func newShipper(ctx context.Context, c Config, o *Options, durable *atomic.Uint64) (*Shipper, error) {
	s := &Shipper{config: c, opt: o, encode: stored, durable: durable, wake: make(chan struct{}, 1), drain: make(chan struct{})}
	s.status = Status{Name: c.Name, Type: c.Type, Encoding: c.Encoding, Receiver: c.receiver()}
	if o.Encoder != nil {
		var err error
		if s.encode, err = o.Encoder(c.Encoding); err != nil {
			return nil, err
		}
	}
	if err := s.load(ctx); err != nil {
		return nil, err
	}
	s.status.Cursor = s.at.Sequence
	var err error
	s.protocol, err = s.open()
	return s, err
}

func (s *Shipper) open() (Protocol, error) {
	var secret Secret
	if s.config.Credential != "" {
		secret = func(ctx context.Context) (map[string]string, error) { return s.opt.Secret(ctx, s.config) }
	}
	return open(s.config, secret, func(ctx context.Context, network, address string) (net.Conn, error) {
		return s.opt.Dial(ctx, s.config, network, address)
	}, s.opt.sendWithin)
}

func (c Config) receiver() string {
	switch {
	case c.URL != "":
		return c.URL
	case c.Address != "":
		return c.Address
	case c.Path != "":
		return c.Path
	}
	return strings.Join(c.Brokers, ",")
}

// Status reports the state. It does not wait for the receiver.
func (s *Shipper) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

// Run sends until ctx is done.
func (s *Shipper) Run(ctx context.Context) {
	defer func() { _ = s.protocol.Close() }()
	defer s.source.close()
	s.mu.Lock()
	s.status.Cursor = s.at.Sequence
	s.mu.Unlock()
	for s.await(ctx) {
		batch, to, err := s.collect(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			if s.pause(ctx, fmt.Errorf("reading the log: %w", err)) {
				continue
			}
			return
		case to.Sequence == 0:
			if !periodic.Sleep(ctx, s.opt.measureEvery) { // the log lacks what it says is durable
				return
			}
			continue
		}
		if !s.deliver(ctx, batch) || !s.insist(ctx, "writing the cursor", func() error { return s.save(to) }) {
			return
		}
		s.mu.Lock()
		s.status.Cursor = to.Sequence
		s.mu.Unlock()
	}
}

// await waits for a batch: until there is a record, and then for more of them.
func (s *Shipper) await(ctx context.Context) bool {
	for s.durable.Load() <= s.at.Sequence {
		select {
		case <-s.wake:
		case <-ctx.Done():
			return false
		}
	}
	t := time.NewTimer(s.config.Batch.Wait)
	defer t.Stop()
	for s.durable.Load()-s.at.Sequence < uint64(s.config.Batch.Events) {
		select {
		case <-s.wake:
			continue
		case <-t.C:
		case <-s.drain:
		case <-ctx.Done():
			return false
		}
		break
	}
	return ctx.Err() == nil
}

// source reads the log up to what was durable when it was opened.
type source struct {
	next func() (auditlog.Entry, error, bool)
	stop func()
	end  uint64
}

func (r *source) close() {
	if r.stop != nil {
		r.stop()
	}
	*r = source{}
}

// collect reads a batch, and returns the cursor after it.
func (s *Shipper) collect(ctx context.Context) (batch []Item, to cursor, err error) {
	most, size, damage := s.config.Batch.Events, int64(0), ""
	if s.last == nil {
		most = min(most, firstBatch)
	}
	expected := s.at.Sequence + 1
	if s.source.next == nil {
		s.source.end = s.durable.Load()
		s.source.next, s.source.stop = iter.Pull2(auditlog.Entries(ctx, s.opt.Log, auditlog.Query{From: expected}))
	}
	for len(batch) < most && size < s.config.Batch.Bytes {
		e, err, ok := s.source.next()
		var d *auditlog.DamageError
		switch {
		case errors.As(err, &d):
			damage = d.Error()
			continue
		case err != nil:
			s.source.close()
			return nil, cursor{}, err
		case !ok || e.Number > s.source.end:
			s.source.close()
			return batch, to, nil
		case e.Number < expected:
			continue
		case expected > 1 && e.Number > expected && !s.lost(ctx, expected, e.Number-1, damage):
			return nil, cursor{}, ctx.Err()
		}
		expected, damage = e.Number+1, ""
		to = cursor{e.Number, e.Event.ID(), tlog.RecordHash(e.JSON)}
		i, err := s.item(e)
		if err != nil {
			lost := []refusal{{i, "encoding it: " + err.Error()}}
			if !s.insist(ctx, "keeping a dead letter", func() error { return s.bury(ctx, lost) }) {
				return nil, cursor{}, ctx.Err()
			}
			continue
		}
		batch, size = append(batch, i), size+int64(len(i.Data))
	}
	return batch, to, nil
}

// item is a record as it is sent. It is valid after the read that r is of.
func (s *Shipper) item(r auditlog.Entry) (Item, error) {
	r.JSON = bytes.Clone(r.JSON)
	e := r.Event
	i := Item{
		Sequence: r.Number, UID: e.ID(), Time: e.Time, Severity: e.SeverityID, Kind: e.Unmapped.Sallyport.Kind,
		gap: e.Unmapped.Sallyport.State == audit.StateGap,
	}
	var err error
	i.Data, err = s.encode(r)
	return i, err
}

// lost records that the log has lost records before they were sent.
func (s *Shipper) lost(ctx context.Context, first, last uint64, reason string) bool {
	reason = cmp.Or(reason, "the log does not have them any more")
	if !s.insist(ctx, "recording a gap", func() error { return s.recordGap(ctx, first, last, int(last-first+1), reason) }) {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.Lost += last - first + 1
	return true
}

// insist does what must be done before the sink goes on, until that works.
func (s *Shipper) insist(ctx context.Context, what string, f func() error) bool {
	for {
		err := f()
		if err == nil {
			return true
		}
		if !s.pause(ctx, fmt.Errorf("%s: %w", what, err)) {
			return false
		}
	}
}

// deliver sends a batch until the receiver has it. It returns false when ctx is done.
func (s *Shipper) deliver(ctx context.Context, batch []Item) bool {
	for len(batch) > 0 {
		r := round{s: s}
		r.send(ctx, batch)
		r.settle(ctx)
		if ctx.Err() != nil {
			return false
		}
		batch = r.again
		if r.err != nil && !s.pause(ctx, r.err) {
			return false
		}
	}
	return true
}

// round is one try of a batch.
type round struct {
	s       *Shipper
	took    bool      // the receiver takes records
	refused []refusal // for good, if it takes others
	again   []Item
	err     error // why
}

// send sends items, by halves where the receiver does not take them together.
func (r *round) send(ctx context.Context, items []Item) {
	if r.err != nil {
		r.again = append(r.again, items...)
		return
	}
	a, err := r.s.send(ctx, items)
	var refused *RefusedError
	switch {
	case errors.As(err, &refused) && len(items) > 1:
		half := len(items) / 2
		r.send(ctx, items[:half])
		r.send(ctx, items[half:])
		return
	case refused != nil:
		a.Refused = map[int]string{0: refused.Reason}
	case err != nil:
		r.again, r.err = append(r.again, items...), err
		return
	}
	for n, i := range items {
		if reason, is := a.Refused[n]; is {
			r.refused = append(r.refused, refusal{i, reason})
		} else if reason, is := a.Again[n]; is {
			r.again, r.err = append(r.again, i), errors.New(reason)
		} else {
			r.took, r.s.last = true, &i
		}
	}
	if sent := len(items) - len(a.Refused) - len(a.Again); sent > 0 {
		r.s.answered(a.Text, uint64(sent))
	}
	if len(r.refused) > 0 && !r.took {
		r.probe(ctx) // or all others would be sent one by one
	}
}

// probe finds out whether the receiver refuses some records, or all: it is sent the last
// one that it took once more.
func (r *round) probe(ctx context.Context) bool {
	if r.s.last == nil {
		return false
	}
	a, err := r.s.send(ctx, []Item{*r.s.last})
	if r.took = err == nil && len(a.Refused)+len(a.Again) == 0; !r.took {
		r.err = fmt.Errorf("the receiver refuses also what it took before: %s", r.refused[0].reason)
	}
	return r.took
}

// settle buries what the receiver refuses once more, before and after it has taken
// something else: it may have been out of order for a moment.
func (r *round) settle(ctx context.Context) {
	if len(r.refused) > 0 {
		if r.err == nil && r.probe(ctx) {
			again := round{s: r.s, took: true}
			for _, x := range r.refused {
				again.send(ctx, []Item{x.item})
			}
			if len(again.refused) > 0 {
				r.s.insist(ctx, "keeping dead letters", func() error { return r.s.bury(ctx, again.refused) })
			}
			r.again, r.err = append(r.again, again.again...), cmp.Or(r.err, again.err)
		} else {
			for _, x := range r.refused {
				r.again = append(r.again, x.item)
			}
			r.err = cmp.Or(r.err, fmt.Errorf("the receiver has not taken a record yet: %s", r.refused[0].reason))
		}
	}
	slices.SortFunc(r.again, func(a, b Item) int { return int(a.Sequence) - int(b.Sequence) })
}

func (s *Shipper) send(ctx context.Context, items []Item) (Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, s.opt.sendWithin)
	defer cancel()
	return s.protocol.Send(ctx, items)
}

// answered notes that the receiver has taken records.
func (s *Shipper) answered(text string, n uint64) {
	s.failures = 0
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.status.Away.IsZero() {
		s.opt.Logger.Info("a sink is back", "sink", s.config.Name, "away", time.Since(s.status.Away).Round(time.Second))
	}
	s.status.Away, s.status.Answer, s.status.Answered = time.Time{}, text, time.Now().UTC()
	s.status.Sent += n
}

// failed notes that it has not.
func (s *Shipper) failed(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now().UTC()
	if s.status.Away.IsZero() {
		s.status.Away = now
		s.opt.Logger.Warn("a sink takes no records: they wait in the log", "sink", s.config.Name, "error", err)
	}
	s.status.Answer, s.status.Answered = err.Error(), now
	s.status.Retries++
}

// pause waits after a failure: a random part of a time that doubles, so that many daemons
// do not come back at once, or as long as the receiver asked for.
func (s *Shipper) pause(ctx context.Context, err error) bool {
	if ctx.Err() != nil {
		return false
	}
	s.failed(err)
	d := rand.N(min(s.opt.firstTry<<min(s.failures, 16), s.opt.lastTry) + 1)
	s.failures++
	var retry *RetryError
	if errors.As(err, &retry) {
		d = max(d, retry.After)
	}
	return periodic.Sleep(ctx, d)
}
