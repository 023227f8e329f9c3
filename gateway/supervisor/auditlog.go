package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/gateway/workerapi"
	"sallyport/internal/ipc"
)

// Bounds of what Enqueue takes.
const (
	maxQueue = 8192
	maxBatch = 64
)

// AuditLog appends to the audit log by way of the process that writes it: the worker while
// there is one, else the daemon. It is safe for concurrent use.
type AuditLog struct {
	dir     string
	opts    auditlog.Options
	reached func() uint64
	log     *slog.Logger

	patience time.Duration // with a process that is to append

	queue chan *audit.Event
	done  chan struct{} // Enqueue's goroutine has ended
	owed  owed

	mu      sync.Mutex
	own     *auditlog.Log // open while the daemon writes; holds the folder's lock otherwise; nil when it could not be opened again
	peer    *ipc.Peer     // of the worker that writes; nil: the daemon does
	end     func(error)   // ends that worker, with the reason
	moved   chan struct{} // closed when one of the two changes
	ending  bool          // no more is queued
	closed  bool
	dropped uint64         // by Enqueue
	missed  uint64         // those and others that are lost, which the log does not say yet
	base    auditlog.Stats // of the writers before this one
	begun   uint64         // number of the first event of this writer
	durable uint64         // what Durable has said
	last    auditlog.Stats // of this writer, when it was asked last
}

// OpenAuditLog opens the log in a folder; the daemon writes it until there is a worker.
// reached, unless nil, is a number that the log is known to have reached, whatever a worker
// has left of it; it takes the place of Options.After.
func OpenAuditLog(dir string, o auditlog.Options, reached func() uint64) (*AuditLog, error) {
	if reached == nil {
		reached = func() uint64 { return 0 }
	}
	o.After = reached()
	own, err := auditlog.Open(dir, o)
	if err != nil {
		return nil, err
	}
	t := &AuditLog{
		dir: dir, opts: o, reached: reached, log: o.Logger, own: own, patience: workerapi.AnswerWithin,
		queue: make(chan *audit.Event, maxQueue), done: make(chan struct{}), moved: make(chan struct{}),
	}
	t.owed.seen = own.Begins() - 1
	go t.flush()
	return t, nil
}

// Append is [auditlog.Log.Append], except that the log alone sets the events' numbers and
// that each event names the context's operator. It waits while the log changes hands.
func (t *AuditLog) Append(ctx context.Context, events ...*audit.Event) error {
	audit.Attribute(ctx, events...)
	err := t.write(ctx, events, false)
	t.told(events, err == nil, 2)
	return err
}

// write appends events that are owed from then on: the caller says whether they are to be.
// again says that they may be in the log already, as after a writer that has ended: only
// those that are not are appended.
func (t *AuditLog) write(ctx context.Context, events []*audit.Event, again bool) error {
	for ; ; again = true {
		if again {
			missing, err := t.missing(ctx, events, 0)
			if err != nil || len(missing) == 0 {
				return err
			}
			events = missing
		}
		t.mu.Lock()
		own, peer, end, moved, closed := t.own, t.peer, t.end, t.moved, t.closed
		t.mu.Unlock()
		if closed {
			return auditlog.ErrClosed
		}
		for _, e := range events { // as the log does: what is owed is compared with that
			e.SetPlace(t.opts.Cluster, t.opts.Node)
		}
		err := t.owed.ask(peer, events)
		if err != nil {
			return err
		}
		switch {
		case peer != nil:
			err = t.remote(ctx, peer, end, events)
		case own != nil:
			err = own.Append(ctx, events...)
		default:
			err = fmt.Errorf("%w: it could not be opened again", auditlog.ErrUnwritable)
		}
		if !errors.Is(err, ipc.ErrClosed) && !errors.Is(err, auditlog.ErrClosed) {
			return err
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// remote has the worker append. A worker that does not answer is ended: it would block
// every change that must be recorded, such as that of a policy. Events that are too large for one
// call take several, so that they keep no others from being written.
func (t *AuditLog) remote(ctx context.Context, p *ipc.Peer, end func(error), events []*audit.Event) error {
	within, cancel := context.WithTimeout(ctx, t.patience)
	defer cancel()
	begin := time.Now()
	err := p.Call(within, workerapi.MethodAppend, workerapi.AppendRequest{Events: events}, &ipc.None{})
	if half := len(events) / 2; half > 0 && errors.Is(err, ipc.ErrTooLarge) {
		if err := t.remote(ctx, p, end, events[:half]); err != nil {
			return err
		}
		return t.remote(ctx, p, end, events[half:])
	}
	// The two deadlines may be equal, so time decides whose it was.
	if errors.Is(err, context.DeadlineExceeded) && (ctx.Err() == nil || time.Since(begin) > t.patience*9/10) {
		end(fmt.Errorf("it does not write the audit log: %w", err))
		return ipc.ErrClosed
	}
	if _, ok := errors.AsType[*ipc.RemoteError](err); ok {
		return fmt.Errorf("%w: %w", auditlog.ErrUnwritable, err)
	}
	return err
}

// Enqueue is [auditlog.Log.Enqueue].
func (t *AuditLog) Enqueue(e *audit.Event) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ending {
		return auditlog.ErrClosed
	}
	select {
	case t.queue <- e:
		return nil
	default:
		t.dropped++
		t.missed++
		return auditlog.ErrFull
	}
}

// flush appends queued events until Close.
func (t *AuditLog) flush() {
	defer close(t.done)
	for e := range t.queue {
		for t.owed.crowded() && !t.ends() {
			time.Sleep(100 * time.Millisecond)
		}
		batch := []*audit.Event{e}
		for len(batch) < maxBatch && len(t.queue) > 0 {
			if e, ok := <-t.queue; ok {
				batch = append(batch, e)
			}
		}
		err := t.append(batch, false)
		for tries := 0; err != nil && !errors.Is(err, auditlog.ErrClosed) && tries < 10; tries++ {
			time.Sleep(500 * time.Millisecond)
			err = t.append(batch, true)
		}
		if t.told(batch, err == nil, 1); err != nil {
			t.log.Error("events were lost", "count", len(batch), "error", err)
			t.miss(uint64(len(batch)))
		} else {
			t.tell()
		}
	}
}

// ends reports that no more is queued.
func (t *AuditLog) ends() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ending
}

// miss counts events that are lost.
func (t *AuditLog) miss(n uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.missed += n
}

// tell has the log say how many events are lost, if any are.
func (t *AuditLog) tell() {
	t.mu.Lock()
	n := t.missed
	t.missed = 0
	t.mu.Unlock()
	if n == 0 {
		return
	}
	e := auditlog.Notice(audit.StateDropped, fmt.Sprintf("%d events of the daemon are missing because the audit log could not be written, or its queue was full", n), int(n))
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := t.Append(ctx, e); err != nil {
		t.log.Error("the audit log does not say that events were lost; that is tried again", "count", n, "error", err)
		t.miss(n)
	}
}

// append is write with a bound on how long it waits.
func (t *AuditLog) append(batch []*audit.Event, again bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return t.write(ctx, batch, again)
}

// handOver ends the daemon's writing; setWorker names the worker that writes next. If the
// log could not be reopened before, it is tried again here, so that it recovers with the
// next attempt to start a worker.
func (t *AuditLog) handOver() (auditlog.Handover, error) {
	own, err := t.writer()
	if err != nil {
		return auditlog.Handover{}, err
	}
	h, err := own.HandOver()
	if h.Next == 0 {
		return h, err
	}
	if err != nil {
		t.log.Error("events were lost", "error", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.add(own.Stats())
	t.begun = h.Next
	return h, nil
}

// writer is the daemon's own log, opened when it is not.
func (t *AuditLog) writer() (*auditlog.Log, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.own == nil {
		if err := t.open(); err != nil {
			return nil, err
		}
	}
	return t.own, nil
}

// add closes a writer's account. t.mu is held.
func (t *AuditLog) add(s auditlog.Stats) {
	t.base, t.last = sum(t.base, s), auditlog.Stats{}
}

func sum(a, b auditlog.Stats) auditlog.Stats {
	a.Events += b.Events
	a.Groups += b.Groups
	a.Syncs += b.Syncs
	a.Failures += b.Failures
	a.Dropped += b.Dropped
	return a
}

// setWorker names the worker that writes, and how it is ended.
func (t *AuditLog) setWorker(p *ipc.Peer, end func(why error)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.peer, t.end = p, end
	t.change()
}

// setLastStats keeps the worker's own last statistics.
func (t *AuditLog) setLastStats(s auditlog.Stats) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = s
}

// takeBack reopens the log when the worker that wrote it is dead, and writes what that has
// left out. While it cannot be opened, as on a full disk, appending fails.
func (t *AuditLog) takeBack() error {
	err := t.reopen()
	t.settle(0)
	t.tell()
	return err
}

func (t *AuditLog) reopen() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var cerr error
	if t.own != nil {
		cerr = t.own.Close() // its lock, which is given up whatever this says (close(2))
	}
	t.own, t.peer, t.end = nil, nil, nil
	err := t.open()
	if err != nil {
		t.change() // callers need not wait
	}
	return errors.Join(err, cerr)
}

// open opens a log that no process writes, and goes on after all numbers that it had, even
// if the worker has cut it. t.mu is held.
func (t *AuditLog) open() error {
	o := t.opts
	_, seen := t.owed.of(nil)
	o.After = max(t.reached(), max(t.begun, 1)-1, seen)
	own, err := auditlog.Open(t.dir, o)
	if err != nil {
		return err
	}
	t.last.Events = own.Begins() - t.begun
	t.add(t.last)
	t.own, t.begun = own, own.Begins()
	t.durable = min(t.durable, own.Begins()-1) // the worker's word ends with it
	t.change()
	return nil
}

// change wakes the callers that wait for the log to change hands. t.mu is held.
func (t *AuditLog) change() {
	close(t.moved)
	t.moved = make(chan struct{})
}

// Stats is [auditlog.Log.Stats] of all writers since OpenAuditLog. The syncs of a worker that
// died are missing from when it was last asked.
func (t *AuditLog) Stats() auditlog.Stats {
	t.mu.Lock()
	own, peer := t.own, t.peer
	t.mu.Unlock()
	now, _ := statsOf(own, peer)
	t.mu.Lock()
	defer t.mu.Unlock()
	if peer != nil && peer == t.peer {
		if now.Events >= t.last.Events {
			t.last = now
		}
		now = t.last
	}
	now.Dropped += t.dropped
	return sum(t.base, now)
}

// statsOf are those of the writer; ok is false where there is none, or it does not answer.
func statsOf(own *auditlog.Log, peer *ipc.Peer) (now auditlog.Stats, ok bool) {
	if peer == nil {
		if own != nil {
			now = own.Stats()
		}
		return now, own != nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := peer.Call(ctx, workerapi.MethodStats, ipc.None{}, &now); err != nil {
		return auditlog.Stats{}, false
	}
	return now, true
}

// Durable is the number of the last event that is known to be durable. If the worker that
// writes does not answer, it is that of an earlier call.
func (t *AuditLog) Durable() uint64 {
	t.mu.Lock()
	own, peer, begun := t.own, t.peer, t.begun
	t.mu.Unlock()
	reached := uint64(0)
	if own != nil && peer == nil {
		begun = own.Begins()
	}
	if now, ok := statsOf(own, peer); ok {
		reached = begun - 1 + now.Events
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.durable = max(t.durable, reached)
	return t.durable
}

// Flush writes queued events. Enqueue takes none from then on.
func (t *AuditLog) Flush() {
	t.mu.Lock()
	if !t.ending {
		t.ending = true
		close(t.queue)
	}
	t.mu.Unlock()
	<-t.done
}

// Close writes queued events, and what the log should have and has not, and closes it. The
// worker must have ended.
func (t *AuditLog) Close() error {
	t.Flush()
	t.settleWithin(0, time.Minute) // the last time
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil
	}
	t.closed = true
	close(t.moved)
	if t.own == nil {
		return nil
	}
	return t.own.Close()
}
