package auditlog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"

	"sallyport/audit"
	"sallyport/internal/durable"
)

// run is the writer.
func (l *Log) run() {
	defer close(l.done)
	for range l.wake {
		for {
			// Other callers that are ready to append do so first and share the data
			// sync. When nobody is, this costs nothing.
			runtime.Gosched()
			g, ok := l.gather()
			if ok {
				l.commit(g, ordinary)
			}
			if g.last {
				return
			}
			if !ok {
				break
			}
		}
	}
}

// group is what one write and one data sync are for.
type group struct {
	batches          []*batch
	dropped, refused uint64 // to be said in it
	last             bool   // the log is closed
}

// gather takes all that waits, or as much of it as a group may have: the rest is
// the next one. It is false if that can wait longer.
func (l *Log) gather() (g group, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.awaited == 0 && !l.due && !l.closed {
		return g, false
	}
	n, size := 0, 0
	for n < len(l.batches) {
		size += l.batches[n].most()
		if n > 0 && size > l.opts.group {
			break
		}
		n++
	}
	rest := l.batches[n:]
	g.batches, l.batches, l.spare = l.batches[:n], append(l.spare, rest...), nil
	clear(rest)
	l.awaited = 0
	for _, b := range l.batches {
		if b.out != nil {
			l.awaited++
		}
	}
	l.due = len(l.batches) > 0
	g.last = l.closed && len(l.batches) == 0
	g.dropped, g.refused = l.dropped, l.refused
	return g, len(g.batches) > 0 || g.dropped > 0 || g.refused > 0
}

// commit makes the group durable and tells who waits. Of one that has no room on the
// disk it does with what is worth more of the log's reserve than w.
func (l *Log) commit(g group, w worth) {
	first := l.next
	l.buf, l.syncs = l.buf[:0], 0
	for _, b := range l.notices(g.dropped, g.refused) {
		l.buf, l.next = b.appendTo(l.buf, l.next)
	}
	at := l.next
	for _, b := range g.batches {
		l.buf, l.next = b.appendTo(l.buf, l.next)
	}
	if err := l.write(first, w); err != nil {
		l.next = first
		more := group{}
		if w+1 < worths && full(err) {
			more, g = g.above(w + 1)
		}
		l.failed(g, err)
		if len(more.batches) > 0 {
			l.commit(more, w+1)
		}
		return
	}
	if l.failing && w == ordinary {
		l.failing = false
		l.opts.Logger.Info("the audit log can be written again", "dir", l.dir)
	}
	l.mu.Lock()
	l.dropped -= g.dropped
	l.refused -= g.refused
	l.stats.Groups++
	l.stats.Syncs += l.syncs
	l.stats.Events += l.next - first
	for _, b := range g.batches {
		if b.out == nil {
			l.queued -= len(b.at)
			l.held -= len(b.buf)
		}
	}
	l.mu.Unlock()
	for _, b := range g.batches {
		n := uint64(len(b.at))
		if b.out != nil {
			b.out <- outcome{first: at} // and it is no longer ours
		} else {
			b.free()
		}
		at += n
	}
	l.reuse(g.batches)
	if cap(l.buf) > maxSpare {
		l.buf = nil
	}
}

// reuse keeps a list for the group after the next.
func (l *Log) reuse(list []*batch) {
	clear(list)
	if cap(list) <= 4096 {
		l.spare = list[:0]
	}
}

// failed tells who waits; what nobody waits for goes back to the front.
func (l *Log) failed(g group, cause error) {
	if !l.failing {
		l.failing = true
		l.opts.Logger.Error("the audit log cannot be written: requests are refused until it can", "dir", l.dir, "error", cause)
	}
	err := fmt.Errorf("%w: %w", ErrUnwritable, cause)
	var kept, told []*batch
	l.mu.Lock()
	l.stats.Failures++
	l.stats.Syncs += l.syncs
	for _, b := range g.batches {
		if b.out != nil {
			told = append(told, b)
			l.refused += uint64(len(b.at))
		} else {
			kept = append(kept, b)
		}
	}
	l.batches = append(kept, l.batches...)
	l.arm(retry)
	l.mu.Unlock()
	for _, b := range told {
		b.out <- outcome{err: err}
	}
}

// notices are the log's own events: what is missing in it.
func (l *Log) notices(dropped, refused uint64) []*batch {
	var all []*batch
	for _, n := range []struct {
		count          uint64
		state, message string
	}{
		{refused, "audit-refused", "%d events were refused because the audit log could not be written; nothing was done on them"},
		{dropped, audit.StateDropped, "%d events are missing because the audit log's queue was full"},
	} {
		if n.count == 0 {
			continue
		}
		if b, err := l.opts.encode(Notice(n.state, fmt.Sprintf(n.message, n.count), int(n.count))); err == nil {
			all = append(all, b)
		}
	}
	return all
}

// Notice is an event of the log's own: something is missing in it, count events where that is known.
func Notice(state, message string, count int) *audit.Event {
	e := audit.Change("Sallyport", state)
	e.SeverityID, e.StatusID = audit.SeverityHigh, audit.StatusFailure
	e.Message, e.Count = message, count
	return e
}

// write makes buf durable; first is the number of its first event. After an
// error the current segment ends where it last was durable, or is no longer
// current.
func (l *Log) write(first uint64, w worth) error {
	over := l.size > 0 && l.size+int64(len(l.buf)) > l.opts.SegmentSize
	keep := l.keep(w)
	if l.current != nil && !l.unmade {
		// The next segment is begun where there is room for its reserve. Until then
		// what is worth this one's goes on here.
		more := keep
		if over && w == ordinary {
			more += l.reserve
		}
		if err := l.current.Room(len(l.buf), more); err != nil {
			return err
		}
		over = over && w == ordinary
	}
	if l.current == nil || over || l.unmade {
		l.unmade = true
		if err := l.rotate(first); err != nil {
			return err
		}
		l.unmade = false
		if err := l.current.Room(len(l.buf), keep); err != nil {
			return err
		}
	}
	if _, err := l.current.Write(l.buf); err != nil {
		// A full disk leaves the file sound: cut off what fitted. After any
		// other error nothing about the file is certain.
		if terr := l.current.Truncate(l.size); terr != nil || !full(err) {
			l.abandon(first)
		}
		return err
	}
	l.syncs++
	if err := l.current.Sync(); err != nil {
		// The kernel may report a lost page once only and then call it clean
		// (fsync(2)): a second sync would prove nothing. The tail goes, so that
		// a process that starts now does not take it for durable.
		l.current.Truncate(l.size)
		l.abandon(first)
		return err
	}
	l.size += int64(len(l.buf))
	return nil
}

// abandon gives the current segment up; the next group begins another.
func (l *Log) abandon(first uint64) {
	l.current.Close()
	l.current = nil
	if l.size == 0 {
		l.void = segment{l.dir, first}.path()
	}
}

// rotate begins the segment named by first.
func (l *Log) rotate(first uint64) error {
	f, err := l.begin(first)
	if err != nil {
		return err
	}
	if l.current != nil {
		l.current.Close() // all in it is durable
	}
	l.current, l.size = f, 0
	return nil
}

// begin makes the segment named by first, durably.
func (l *Log) begin(first uint64) (file, error) {
	if l.opts.Segment != nil {
		f, err := l.opts.Segment(first)
		if err != nil {
			return nil, err
		}
		return newFile(f, 0), nil
	}
	path := segment{l.dir, first}.path()
	if l.void == path {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		l.void = ""
	}
	f, err := l.opts.open(path, os.O_CREATE|os.O_EXCL)
	if err != nil {
		return nil, err
	}
	if err := durable.SyncDir(l.dir); err != nil {
		f.Close()
		l.void = path
		return nil, err
	}
	return f, nil
}
