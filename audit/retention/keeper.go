// Package retention keeps the audit log within the bounds of its configuration.
//
// A [Keeper] compresses segments that a checkpoint covers, and deletes the oldest ones when
// a [Policy] or an operator says so. A segment is deleted only when no legal hold is in
// force, every sink has its records (unless an operator forces it), and a checkpoint covers
// the event that says what is deleted. That event names the records, the digests of the
// segments and the root of the tree up to there. The hashes stay in the tree, so that
// proofs and copies of the records are checked as before.
//
// A deletion under way is kept in a file: after a crash the Keeper goes on with it. Without
// that file, as when it cannot be read, nothing is deleted.
package retention

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math"
	"sync"
	"time"

	"sallyport/audit"
	"sallyport/audit/auditlog"
)

// Policy says what is kept. The zero Policy keeps everything.
type Policy struct {
	Keep  time.Duration // age at which records are deleted; 0 is never
	Bytes int64         // of segments on disk, beyond which the oldest are deleted; 0 is no bound
	Plain bool          // nothing is compressed
}

// Log is the log that is kept.
type Log interface {
	// Append makes events durable.
	Append(ctx context.Context, events ...*audit.Event) error
}

// Sinks are the receivers of the log's records.
type Sinks interface {
	// Shipped returns the number up to which every sink has the records, and the name of
	// the sink that has the fewest. Without sinks the number is that of no record.
	Shipped() (last uint64, sink string)
}

// Options of a Keeper.
type Options struct {
	Dir     string        // of the log's segments
	Log     Log           // that is appended to
	Covered func() uint64 // how many records a checkpoint covers, whose hashes are durable
	Sinks   Sinks         // nil: there are none
	Logger  *slog.Logger

	Every time.Duration // between two looks at the log. Default: 30 s
	now   func() time.Time
}

// Keeper keeps one log. It is safe for concurrent use.
type Keeper struct {
	o    Options
	wake chan struct{}

	mu     sync.Mutex
	policy Policy
	state  *state // nil before it was read
	status Status
	began  map[uint64]time.Time // of the first record of segments, by its number
}

// NewKeeper makes a Keeper, which does nothing before Run.
func NewKeeper(o Options, p Policy) *Keeper {
	o.Every = cmp.Or(o.Every, 30*time.Second)
	if o.now == nil {
		o.now = time.Now
	}
	return &Keeper{o: o, policy: p, wake: make(chan struct{}, 1), began: map[uint64]time.Time{}}
}

// Use puts another policy into force.
func (k *Keeper) Use(p Policy) {
	k.mu.Lock()
	k.policy = p
	k.mu.Unlock()
	k.hurry()
}

func (k *Keeper) hurry() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// soon is how long is waited for a checkpoint that covers what is under way.
const soon = time.Second

// Run keeps the log until ctx is done.
func (k *Keeper) Run(ctx context.Context) error {
	for {
		again, err := k.turn(ctx)
		k.report(ctx, err)
		wait := k.o.Every
		if again && err == nil {
			wait = min(wait, soon)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-k.wake:
		case <-time.After(wait):
		}
	}
}

// turn does what is to be done now. again reports that more is under way.
func (k *Keeper) turn(ctx context.Context) (again bool, err error) {
	covered := k.o.Covered()
	more, cerr := k.compress(ctx, covered) // which keeps nothing from being deleted
	if ctx.Err() != nil {
		return false, nil
	}
	all, err := auditlog.Segments(k.o.Dir)
	if err != nil {
		return false, errors.Join(cerr, err)
	}
	due, err := k.due(ctx, all, covered)
	busy := false
	if err == nil {
		busy, err = k.finish(ctx)
	}
	if err == nil && !busy && len(due) > 0 {
		busy, err = k.begin(ctx, due)
	}
	return more || busy, errors.Join(cerr, err)
}

// atOnce is how many segments are compressed in a turn.
const atOnce = 8

// compress compresses what a checkpoint covers. A segment that fails keeps no other one.
func (k *Keeper) compress(ctx context.Context, covered uint64) (more bool, err error) {
	all, err := auditlog.Segments(k.o.Dir)
	errs := []error{err}
	n := 0
	for _, s := range all {
		if s.Last == 0 || s.Last > covered || k.plain() || ctx.Err() != nil || n == atOnce {
			break
		}
		if !s.Compressed {
			errs = append(errs, auditlog.Compress(ctx, k.o.Dir, s.First))
			n++
		}
	}
	return n == atOnce, errors.Join(errs...)
}

func (k *Keeper) plain() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.policy.Plain
}

// shipped is the number up to which every sink has the records.
func (k *Keeper) shipped() (last uint64, sink string) {
	if k.o.Sinks == nil {
		return math.MaxUint64, ""
	}
	return k.o.Sinks.Shipped()
}

// start is when the first record of a segment was written; zero if it has none. k.mu is held.
func (k *Keeper) start(ctx context.Context, first uint64) (time.Time, error) {
	if at, ok := k.began[first]; ok {
		return at, nil
	}
	for e, err := range auditlog.Undamaged(auditlog.Read(ctx, k.o.Dir, auditlog.Query{From: first})) {
		if err != nil {
			return time.Time{}, err
		}
		k.began[first] = time.UnixMilli(e.Time)
		return k.began[first], nil
	}
	return time.Time{}, ctx.Err()
}
