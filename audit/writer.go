package audit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/internal/durable"
)

// run is the writer.
func (l *Log) run() {
	defer close(l.done)
	flush := time.NewTimer(idleFlush)
	armed := true
	for {
		select {
		case <-l.wake:
		case <-l.nudge:
			if !armed {
				flush.Reset(idleFlush)
				armed = true
			}
			continue
		case <-flush.C:
			armed = false
		}
		// Whoever is ready to append does so first and shares the data sync.
		// When nobody is, this costs nothing.
		runtime.Gosched()
		l.mu.Lock()
		jobs, closed := l.jobs, l.closed
		dropped, refused := l.dropped, l.refused
		l.jobs = nil
		l.mu.Unlock()
		if len(jobs) > 0 || dropped > 0 || refused > 0 {
			if !l.commit(jobs, dropped, refused) && !armed {
				flush.Reset(retry)
				armed = true
			}
		}
		if closed {
			flush.Stop()
			return
		}
	}
}

// commit makes one group of the jobs and tells who waits.
func (l *Log) commit(jobs []*job, dropped, refused uint64) bool {
	first := l.next
	l.buf = l.buf[:0]
	for _, notice := range notices(dropped, refused) {
		l.buf = notice.appendTo(l.buf, l.next)
		l.next++
	}
	for _, j := range jobs {
		for _, b := range j.lines {
			l.buf = b.appendTo(l.buf, l.next)
			l.next++
		}
	}
	err := l.write(first)
	if err != nil {
		l.next = first
		l.failed(jobs, err)
		return false
	}
	if l.failing {
		l.failing = false
		l.opts.Logger.Info("the audit log can be written again", "dir", l.dir)
	}
	l.mu.Lock()
	l.dropped -= dropped
	l.refused -= refused
	l.stats.Groups++
	l.stats.Events += l.next - first
	for _, j := range jobs {
		if j.done == nil {
			l.queued -= len(j.lines)
			for _, b := range j.lines {
				l.held -= len(b.buf)
			}
		}
	}
	l.mu.Unlock()
	at := l.next
	for _, j := range jobs {
		at -= uint64(len(j.lines))
	}
	for _, j := range jobs {
		if j.done != nil {
			j.done <- outcome{first: at}
		}
		at += uint64(len(j.lines))
		for _, b := range j.lines {
			b.free()
		}
	}
	if cap(l.buf) > 4<<20 {
		l.buf = nil
	}
	return true
}

// failed tells who waits; what nobody waits for goes back to the front.
func (l *Log) failed(jobs []*job, cause error) {
	if !l.failing {
		l.failing = true
		l.opts.Logger.Error("the audit log cannot be written: requests are refused until it can", "dir", l.dir, "err", cause)
	}
	err := fmt.Errorf("%w: %w", ErrUnwritable, cause)
	var kept []*job
	l.mu.Lock()
	l.stats.Failures++
	for _, j := range jobs {
		if j.done == nil {
			kept = append(kept, j)
		} else {
			l.refused += uint64(len(j.lines))
		}
	}
	l.jobs = append(kept, l.jobs...)
	l.mu.Unlock()
	for _, j := range jobs {
		if j.done != nil {
			j.done <- outcome{err: err}
		}
	}
}

// notices are the log's own events: what is missing in it.
func notices(dropped, refused uint64) []*line {
	var all []*line
	for _, n := range []struct {
		count          uint64
		state, message string
	}{
		{refused, "audit-refused", "%d events were refused because the audit log could not be written; nothing was done on them"},
		{dropped, "audit-dropped", "%d events are missing because the audit log's queue was full"},
	} {
		if n.count == 0 {
			continue
		}
		if b, err := encode(notice(n.state, fmt.Sprintf(n.message, n.count), int(n.count))); err == nil {
			all = append(all, b)
		}
	}
	return all
}

func notice(state, message string, count int) *Event {
	e := New(KindLifecycle, ClassLifecycle, ActivityOther)
	e.SeverityID, e.StatusID = SeverityHigh, StatusFailure
	e.App = &e.Metadata.Product
	e.Message, e.Count = message, count
	e.Unmapped.Sallyport.State = state
	return e
}

// write makes buf durable; first is the number of its first event. After an
// error the current segment ends where it last was durable, or is no longer
// current.
func (l *Log) write(first uint64) error {
	if l.current == nil || l.size > 0 && l.size+int64(len(l.buf)) > l.opts.SegmentSize {
		if err := l.rotate(first); err != nil {
			return err
		}
	}
	if _, err := l.current.Write(l.buf); err != nil {
		// A full disk leaves the file sound: cut off what fitted. After any
		// other error nothing about the file is certain.
		full := errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
		if terr := l.current.Truncate(l.size); terr != nil || !full {
			l.abandon(first)
		}
		return err
	}
	l.mu.Lock()
	l.stats.Syncs++
	l.mu.Unlock()
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
	path := segment{l.dir, first}.path()
	if l.void == path {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		l.void = ""
	}
	f, err := l.opts.open(path, os.O_CREATE|os.O_EXCL)
	if err != nil {
		return err
	}
	if err := durable.SyncDir(l.dir); err != nil {
		f.Close()
		l.void = path
		return err
	}
	if l.current != nil {
		l.current.Close() // all in it is durable
	}
	l.current, l.size = f, 0
	return nil
}
