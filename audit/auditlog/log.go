// Package auditlog writes events to disk and reads them back.
//
// The [Log] promises that when Append returns nil the events are on stable
// storage, in order, and will be read back by any later process; when it
// returns an error none of them may be acted on. It does not protect from root
// on the host.
package auditlog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/audit"
)

// Errors to branch on.
var (
	// ErrUnwritable is wrapped by Append's error when the events could not be
	// made durable. The log recovers by itself: the next Append tries again.
	ErrUnwritable = errors.New("the audit log cannot be written")
	// ErrFull is Enqueue's error when too many events wait.
	ErrFull = errors.New("the audit log's queue is full")
	// ErrWithdrawn is wrapped beside the context's own error by what Append
	// returns for events that are not in the log and will not be.
	ErrWithdrawn = errors.New("nobody waits for the record any more")
	// ErrClosed is the error of everything after Close.
	ErrClosed = errors.New("the audit log is closed")
	// ErrLocked is Open's error when another process writes the log.
	ErrLocked = errors.New("another process writes this audit log")
	// ErrHeld is wrapped by the gateway's error for what may not leave while a sink is too
	// far behind.
	ErrHeld = errors.New("the audit log waits for a sink")
	// ErrTooLarge is wrapped by the error for an event of more than 1 MiB.
	ErrTooLarge = errors.New("the event is too large")
)

// Options of a Log.
type Options struct {
	// SegmentSize is the size in bytes at which a new segment begins.
	// Default: 64 MiB.
	SegmentSize int64
	// Queue is how many events of Enqueue may wait to be written. Default: 8192.
	Queue int
	// After is a number that the log is known to have reached. If it ends before, the end
	// is gone: the first event says so, and no number is given twice. Default: 0.
	After uint64
	// Cluster and Node are where the events happen, and in each of them. Default: neither.
	Cluster, Node string
	// Logger gets operational messages: what Open repaired, when the log became
	// unwritable and when it recovered. Default: none.
	Logger *slog.Logger

	// Segment, unless nil, makes the segment that begins with an event's number
	// (NewSegment) for a Log without access to the folder. See Continue.
	Segment func(first uint64) (*os.File, error)

	open  func(path string, flag int) (file, error) // for tests of faults
	group int                                       // maxGroup
}

// Stats counts since Open.
type Stats struct {
	Events   uint64 // made durable
	Groups   uint64 // writes that they took
	Syncs    uint64 // data syncs tried
	Failures uint64 // groups that could not be made durable
	Dropped  uint64 // events that Enqueue refused with ErrFull
}

const (
	idleFlush = 50 * time.Millisecond  // how long a queued event waits for company
	retry     = 500 * time.Millisecond // when queued events could not be written
	// maxQueued bounds what queued events take while the disk does not, in bytes:
	// a sandbox can make one of 200 KB.
	maxQueued = 32 << 20
	// maxGroup bounds a group, in bytes, unless one call of Append brings more.
	// All that may be queued fits in one.
	maxGroup = 2 * maxQueued

	defaultSegment = 64 << 20
)

// MaxSegment is more than the file of a segment ever takes, in bytes, in a log
// with that Options.SegmentSize: a group that is larger is a segment by itself,
// and there are zeros ahead of what is written.
func MaxSegment(segmentSize int64) int64 {
	if segmentSize <= 0 {
		segmentSize = defaultSegment
	}
	return segmentSize + 2*maxGroup
}

// Log appends events to segments in a directory. One goroutine writes: all
// that wait are one group, which takes one write and one data sync. Events of
// Enqueue go along with a group and make none before idleFlush.
type Log struct {
	dir  string
	opts Options
	lock *os.File // the directory

	begins uint64 // number of the first event since Open

	wake  chan struct{} // there is a group to write, or Close
	flush *time.Timer   // sets due
	done  chan struct{} // the writer has ended

	mu      sync.Mutex
	batches []*batch // in order of their sequence numbers
	awaited int      // batches that somebody waits for
	queued  int      // events in those that nobody waits for
	held    int      // bytes of those
	dropped uint64   // by Enqueue, not yet in the log
	refused uint64   // by Append, not yet in the log
	armed   bool     // flush runs
	due     bool     // what is queued has waited long enough
	closed  bool
	stats   Stats

	// The writer's own.
	current file
	size    int64  // durable bytes of current
	next    uint64 // number of the next event
	void    string // a segment without one durable event, to be removed
	buf     []byte
	spare   []*batch // the list of the group before, to be used again
	syncs   uint64   // tried for the group
	failing bool
	reserve int64 // see Room
	unmade  bool  // a segment was to be begun, and may have been: nothing goes on before it
}

// Append makes the events durable, in order and with consecutive numbers, and
// sets their Metadata.Sequence. It returns nil only after the data sync that
// covers them has succeeded. On any error none of them may be acted on; when
// ctx ended the wait, they may be in the log nevertheless, unless the error is
// ErrWithdrawn too. Neither Append nor Enqueue keeps hold of an event.
func (l *Log) Append(ctx context.Context, events ...*audit.Event) error {
	if len(events) == 0 {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", ErrWithdrawn, err)
	}
	b, err := l.opts.encode(events...)
	if err != nil {
		return err
	}
	b.out = make(chan outcome, 1)
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		b.free()
		return ErrClosed
	}
	l.batches = append(l.batches, b)
	l.awaited++
	l.mu.Unlock()
	signal(l.wake)
	select {
	case out := <-b.out:
		b.free()
		if out.err != nil {
			return out.err
		}
		for i, e := range events {
			e.Metadata.Sequence = out.first + uint64(i)
		}
		return nil
	case <-ctx.Done():
		if l.withdraw(b) {
			return fmt.Errorf("%w: %w", ErrWithdrawn, ctx.Err())
		}
		return ctx.Err()
	}
}

// withdraw takes a batch back if the writer has not got it yet, so that a disk
// that hangs does not gather what nobody waits for.
func (l *Log) withdraw(b *batch) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.batches, b)
	if i < 0 {
		return false
	}
	l.batches = slices.Delete(l.batches, i, i+1)
	l.awaited--
	b.free()
	return true
}

// Enqueue writes the event with the next group, within about 50 ms. While the log cannot
// be written the event waits; when too many wait, Enqueue returns ErrFull, and the number
// of refused events becomes an event itself.
func (l *Log) Enqueue(e *audit.Event) error {
	b, err := l.opts.encode(e)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		b.free()
		return ErrClosed
	case l.queued >= l.opts.Queue, l.queued > 0 && l.held+len(b.buf) > maxQueued:
		l.dropped++
		l.stats.Dropped++
		b.free()
		return ErrFull
	}
	l.queue(b)
	return nil
}

// queue adds what nobody waits for.
func (l *Log) queue(b *batch) {
	l.batches = append(l.batches, b)
	l.queued += len(b.at)
	l.held += len(b.buf)
	l.arm(idleFlush)
}

// arm has what is queued written after d, unless that is to come sooner.
func (l *Log) arm(d time.Duration) {
	if !l.armed && !l.closed {
		l.armed = true
		l.flush.Reset(d)
	}
}

// expire is what the timer calls.
func (l *Log) expire() {
	l.mu.Lock()
	l.armed, l.due = false, true
	l.mu.Unlock()
	signal(l.wake)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Stats counts since Open.
func (l *Log) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stats
}

// end waits until the queue is written, and tells whether this call was the first to close
// the log.
func (l *Log) end() bool {
	l.mu.Lock()
	first := !l.closed
	l.closed = true
	l.flush.Stop()
	l.mu.Unlock()
	if first {
		signal(l.wake)
	}
	<-l.done
	return first
}

// Close writes queued events and closes the log. An error means that queued events were
// lost.
func (l *Log) Close() error {
	if !l.end() {
		return l.unlock()
	}
	var err error
	if l.queued > 0 {
		err = fmt.Errorf("%w: %d queued events are lost", ErrUnwritable, l.queued)
	}
	if l.current != nil {
		err = errors.Join(err, l.current.Close())
	}
	return errors.Join(err, l.unlock())
}

// unlock gives the folder up once.
func (l *Log) unlock() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	lock := l.lock
	l.lock = nil
	if lock == nil {
		return nil
	}
	// Not by closing it alone: a process that is just being started has a copy until
	// it executes, and with it the lock (flock(2)).
	return errors.Join(os.NewSyscallError("flock", unix.Flock(int(lock.Fd()), unix.LOCK_UN)), lock.Close())
}
