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
	moved   chan struct{} // closed when one of the two changes
	ending  bool          // no more is queued
	closed  bool
	dropped uint64
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
	go t.flush()
	return t, nil
}

// Append is [auditlog.Log.Append], except that the log alone sets the events' numbers and
// that each event names the context's operator. It waits while the log changes hands.
func (t *AuditLog) Append(ctx context.Context, events ...*audit.Event) error {
	audit.Attribute(ctx, events...)
	for _, e := range events { // as the log does: what a worker owes is compared with that
		e.SetPlace(t.opts.Cluster, t.opts.Node)
	}
	t.mu.Lock()
	own, peer, moved, closed, begun := t.own, t.peer, t.moved, t.closed, t.begun
	t.mu.Unlock()
	switch {
	case closed:
		return auditlog.ErrClosed
	case peer != nil:
		return t.remote(ctx, peer, moved, begun, events)
	case own != nil:
		err := own.Append(ctx, events...)
		if !errors.Is(err, auditlog.ErrClosed) {
			return err
		}
	default:
		return fmt.Errorf("%w: it could not be opened again", auditlog.ErrUnwritable)
	}
	if err := t.wait(ctx, moved); err != nil {
		return err
	}
	return t.Append(ctx, events...)
}

func (t *AuditLog) wait(ctx context.Context, moved <-chan struct{}) error {
	select {
	case <-moved:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// remote has the worker append. If the worker dies meanwhile, the events may be in the log
// or not, so they are looked up before they are appended again. A worker that does not
// answer is ended: it would block every change that must be recorded, such as that of a
// policy.
func (t *AuditLog) remote(ctx context.Context, p *ipc.Peer, moved <-chan struct{}, begun uint64, events []*audit.Event) error {
	within, cancel := context.WithTimeout(ctx, t.patience)
	defer cancel()
	begin := time.Now()
	t.owed.ask(events)
	err := p.Call(within, workerapi.MethodAppend, workerapi.AppendRequest{Events: events}, &ipc.None{})
	t.owed.told(events, err == nil)
	// The two deadlines may be equal, so time decides whose it was.
	if errors.Is(err, context.DeadlineExceeded) && (ctx.Err() == nil || time.Since(begin) > t.patience*9/10) {
		t.log.Error("the gateway's process does not write the audit log and is ended", "error", err)
		_ = p.Close()
		err = ipc.ErrClosed
	}
	var refused *ipc.RemoteError
	if errors.As(err, &refused) {
		return fmt.Errorf("%w: %w", auditlog.ErrUnwritable, err)
	}
	if !errors.Is(err, ipc.ErrClosed) {
		return err
	}
	if err := t.wait(ctx, moved); err != nil {
		return err
	}
	if there, err := t.holds(ctx, begun, events); err != nil || there {
		return err
	}
	return t.Append(ctx, events...)
}

// holds reports whether the log has the events, from a number on. A worker appends all
// events of a call or none.
func (t *AuditLog) holds(ctx context.Context, from uint64, events []*audit.Event) (bool, error) {
	want := events[0].ID()
	for e, err := range auditlog.Undamaged(auditlog.Read(ctx, t.dir, auditlog.Query{From: from})) {
		if err != nil {
			return false, err
		}
		if e.ID() == want {
			return true, nil
		}
	}
	return false, nil
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
		return auditlog.ErrFull
	}
}

// flush appends queued events until Close.
func (t *AuditLog) flush() {
	defer close(t.done)
	for e := range t.queue {
		batch := []*audit.Event{e}
		for len(batch) < maxBatch && len(t.queue) > 0 {
			if e, ok := <-t.queue; ok {
				batch = append(batch, e)
			}
		}
		for tries := 0; ; tries++ {
			err := t.append(batch)
			if err == nil {
				break
			}
			if errors.Is(err, auditlog.ErrClosed) || tries == 10 {
				t.log.Error("events were lost", "count", len(batch), "error", err)
				break
			}
			time.Sleep(500 * time.Millisecond)
		}
	}
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
	t.base.Events += s.Events
	t.base.Groups += s.Groups
	t.base.Syncs += s.Syncs
	t.base.Failures += s.Failures
	t.base.Dropped += s.Dropped
	t.last = auditlog.Stats{}
}

// setWorker names the worker that writes.
func (t *AuditLog) setWorker(p *ipc.Peer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.peer = p
	t.change()
}

// setLastStats keeps the worker's own last statistics.
func (t *AuditLog) setLastStats(s auditlog.Stats) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = s
}

// takeBack reopens the log when the worker that wrote it is dead. While it cannot be
// opened, as on a full disk, appending fails.
func (t *AuditLog) takeBack() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var cerr error
	if t.own != nil {
		cerr = t.own.Close() // its lock, which is given up whatever this says (close(2))
	}
	t.own, t.peer = nil, nil
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
	o.After = max(t.reached(), max(t.begun, 1)-1)
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
	var now auditlog.Stats
	if peer != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := peer.Call(ctx, workerapi.MethodStats, ipc.None{}, &now); err != nil {
			now = auditlog.Stats{}
		}
	} else if own != nil {
		now = own.Stats()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if peer != nil && peer == t.peer {
		if now.Events >= t.last.Events {
			t.last = now
		}
		now = t.last
	}
	sum := t.base
	sum.Events += now.Events
	sum.Groups += now.Groups
	sum.Syncs += now.Syncs
	sum.Failures += now.Failures
	sum.Dropped += now.Dropped + t.dropped
	return sum
}

// Durable is the number of the last event that is known to be durable. If the worker that
// writes does not answer, it is that of an earlier call.
func (t *AuditLog) Durable() uint64 {
	t.mu.Lock()
	own, peer, begun := t.own, t.peer, t.begun
	t.mu.Unlock()
	reached := uint64(0)
	switch {
	case peer != nil:
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		var now auditlog.Stats
		if err := peer.Call(ctx, workerapi.MethodStats, ipc.None{}, &now); err == nil {
			reached = begun - 1 + now.Events
		}
	case own != nil:
		reached = own.Begins() - 1 + own.Stats().Events
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

// Close writes queued events and closes the log. The worker must have ended.
func (t *AuditLog) Close() error {
	t.Flush()
	t.owed.work.Wait()
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
