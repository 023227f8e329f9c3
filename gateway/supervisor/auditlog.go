package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"sallyport/audit"
	"sallyport/gateway/workerapi"
	"sallyport/internal/ipc"
)

// Bounds of what Enqueue takes.
const (
	maxQueue = 8192
	maxBatch = 64
)

// AuditLog is the daemon's view of the audit log, whoever writes it: the process
// while there is one, else the daemon. It is safe for concurrent use.
type AuditLog struct {
	dir  string
	opts audit.Options
	log  *slog.Logger

	patience time.Duration // with a process that is to append

	queue chan *audit.Event
	done  chan struct{} // Enqueue's goroutine has ended

	mu      sync.Mutex
	own     *audit.Log    // open while the daemon writes; holds the folder's lock otherwise; nil when it could not be opened again
	peer    *ipc.Peer     // of who writes, nil for the daemon
	moved   chan struct{} // closed when one of the two changes
	ending  bool          // no more is queued
	closed  bool
	dropped uint64
	base    audit.Stats // of the writers before this one
	begun   uint64      // number of the first event of this writer
	last    audit.Stats // of this writer, when it was asked last
}

// OpenAuditLog opens the log for the daemon.
func OpenAuditLog(dir string, o audit.Options) (*AuditLog, error) {
	own, err := audit.Open(dir, o)
	if err != nil {
		return nil, err
	}
	t := &AuditLog{
		dir: dir, opts: o, log: o.Logger, own: own, patience: workerapi.AnswerWithin,
		queue: make(chan *audit.Event, maxQueue), done: make(chan struct{}), moved: make(chan struct{}),
	}
	go t.flush()
	return t, nil
}

// Append is [audit.Log.Append], but that numbers are set in the log only, and
// that the events name the context's operator. While the log changes hands it
// waits.
func (t *AuditLog) Append(ctx context.Context, events ...*audit.Event) error {
	audit.Attribute(ctx, events...)
	t.mu.Lock()
	own, peer, moved, closed, begun := t.own, t.peer, t.moved, t.closed, t.begun
	t.mu.Unlock()
	switch {
	case closed:
		return audit.ErrClosed
	case peer != nil:
		return t.remote(ctx, peer, moved, begun, events)
	case own != nil:
		err := own.Append(ctx, events...)
		if !errors.Is(err, audit.ErrClosed) {
			return err
		}
	default:
		return fmt.Errorf("%w: it could not be opened again", audit.ErrUnwritable)
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

// remote has the process append. When it dies meanwhile, the events may be in
// the log or not: they are looked for before they are appended again. One that
// does not answer is ended: it would keep the daemon from whatever waits for a
// record, as the change of a policy does.
func (t *AuditLog) remote(ctx context.Context, p *ipc.Peer, moved <-chan struct{}, begun uint64, events []*audit.Event) error {
	within, cancel := context.WithTimeout(ctx, t.patience)
	defer cancel()
	begin := time.Now()
	err := p.Call(within, workerapi.MethodAppend, workerapi.AppendRequest{Events: events}, &ipc.None{})
	// Not by whose deadline it was: the caller may have as much patience.
	if errors.Is(err, context.DeadlineExceeded) && (ctx.Err() == nil || time.Since(begin) > t.patience*9/10) {
		t.log.Error("the gateway's process does not write the audit log and is ended", "error", err)
		_ = p.Close()
		err = ipc.ErrClosed
	}
	var refused *ipc.RemoteError
	if errors.As(err, &refused) {
		return fmt.Errorf("%w: %w", audit.ErrUnwritable, err)
	}
	if !errors.Is(err, ipc.ErrClosed) {
		return err
	}
	if err := t.wait(ctx, moved); err != nil {
		return err
	}
	if there, err := t.holds(begun, events); err != nil || there {
		return err
	}
	return t.Append(ctx, events...)
}

// holds says whether the log, from an event on, has the events: a process
// appends all of a call's or none.
func (t *AuditLog) holds(from uint64, events []*audit.Event) (bool, error) {
	want := events[0].ID()
	for e, err := range audit.Read(context.Background(), t.dir, audit.Query{From: from}) {
		if err != nil {
			return false, err
		}
		if e.ID() == want {
			return true, nil
		}
	}
	return false, nil
}

// Enqueue is [audit.Log.Enqueue].
func (t *AuditLog) Enqueue(e *audit.Event) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ending {
		return audit.ErrClosed
	}
	select {
	case t.queue <- e:
		return nil
	default:
		t.dropped++
		return audit.ErrFull
	}
}

// flush appends what is queued, until Close.
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
			if errors.Is(err, audit.ErrClosed) || tries == 10 {
				t.log.Error("events were lost", "count", len(batch), "error", err)
				break
			}
			time.Sleep(500 * time.Millisecond)
		}
	}
}

// append is Append with a bound on how long it waits.
func (t *AuditLog) append(batch []*audit.Event) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return t.Append(ctx, batch...)
}

// handOver ends the daemon's writing, for a process that then gets give. A log
// that could not be opened again is tried first, so that it recovers with the
// next process that the Warden tries to start.
func (t *AuditLog) handOver() (audit.Handover, error) {
	own, err := t.writer()
	if err != nil {
		return audit.Handover{}, err
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
func (t *AuditLog) writer() (*audit.Log, error) {
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
func (t *AuditLog) add(s audit.Stats) {
	t.base.Events += s.Events
	t.base.Groups += s.Groups
	t.base.Syncs += s.Syncs
	t.base.Failures += s.Failures
	t.base.Dropped += s.Dropped
	t.last = audit.Stats{}
}

// setWorker says who writes.
func (t *AuditLog) setWorker(p *ipc.Peer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.peer = p
	t.change()
}

// setLastStats takes down what the process says that it did, as its last word.
func (t *AuditLog) setLastStats(s audit.Stats) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = s
}

// takeBack opens the log again when who wrote it is dead. While it cannot be
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
		t.change() // those who wait need not
	}
	return errors.Join(err, cerr)
}

// open is for a log that nobody writes. t.mu is held.
func (t *AuditLog) open() error {
	own, err := audit.Open(t.dir, t.opts)
	if err != nil {
		return err
	}
	t.last.Events = own.Begins() - t.begun
	t.add(t.last)
	t.own, t.begun = own, own.Begins()
	t.change()
	return nil
}

// change tells those who wait that another writes, or nobody. t.mu is held.
func (t *AuditLog) change() {
	close(t.moved)
	t.moved = make(chan struct{})
}

// Stats is [audit.Log.Stats] of all that wrote since OpenAuditLog. Of a process that
// died, the syncs since it was asked last are missing.
func (t *AuditLog) Stats() audit.Stats {
	t.mu.Lock()
	own, peer := t.own, t.peer
	t.mu.Unlock()
	var now audit.Stats
	if peer != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := peer.Call(ctx, workerapi.MethodStats, ipc.None{}, &now); err != nil {
			now = audit.Stats{}
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

// Close writes what is queued and ends the log. The process must have ended.
func (t *AuditLog) Close() error {
	t.mu.Lock()
	if t.ending {
		t.mu.Unlock()
		<-t.done
		return nil
	}
	t.ending = true
	close(t.queue)
	t.mu.Unlock()
	<-t.done
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	close(t.moved)
	if t.own == nil {
		return nil
	}
	return t.own.Close()
}
