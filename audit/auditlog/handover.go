package auditlog

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/internal/durable"
)

// Handover is the point at which a log continues in another process.
type Handover struct {
	// Next is the number of the next event.
	Next uint64
	// File is the last segment, written up to Size. It is nil if a segment must be begun
	// first.
	File *os.File
	Size int64
}

// HandOver writes queued events and ends the writing, so that another process can
// [Continue]. The folder stays locked until Close; every other call returns ErrClosed. An
// error means that queued events were lost; the Handover is valid all the same, unless it
// is zero.
func (l *Log) HandOver() (Handover, error) {
	if !l.end() {
		return Handover{}, ErrClosed
	}
	var lost error
	if l.queued > 0 {
		lost = fmt.Errorf("%w: %d queued events are lost", ErrUnwritable, l.queued)
		l.queued = 0
	}
	h := Handover{Next: l.next}
	if l.current == nil {
		return h, lost
	}
	err := l.current.Close() // all in it is durable
	l.current = nil
	all, serr := segments(l.dir)
	if err = errors.Join(err, serr); err != nil || len(all) == 0 {
		return Handover{}, errors.Join(lost, err)
	}
	if h.File, err = os.OpenFile(all[len(all)-1].path(), os.O_RDWR|unix.O_NOFOLLOW, 0); err != nil {
		return Handover{}, errors.Join(lost, err)
	}
	h.Size = l.size
	return h, lost
}

// Begins is the number of the first event after Open.
func (l *Log) Begins() uint64 { return l.begins }

// Continue continues the log that another process has handed over. Options.Segment is
// required, since this process need not reach the folder.
func Continue(h Handover, o Options) (*Log, error) {
	if o.Segment == nil || h.Next == 0 {
		return nil, errors.New("continuing the audit log: nobody makes its segments")
	}
	l := newLog("", o)
	l.next = h.Next
	if h.File != nil {
		f := newFile(h.File, h.Size)
		if err := f.Truncate(h.Size); err != nil {
			return nil, errors.Join(fmt.Errorf("continuing the audit log: %w", err), f.Close())
		}
		l.current, l.size = f, h.Size
		_ = f.Room(0, l.reserve) // or with the first event
	}
	go l.run()
	return l, nil
}

// minEvent is less than what any event of New takes on disk, in bytes.
const minEvent = 256

// reach is how many numbers a segment can have at most.
func reach(segmentSize int64) uint64 { return uint64(MaxSegment(segmentSize)) / minEvent }

// NewSegment makes the segment that begins with event first, durably, for a process that
// continues the log. segmentSize is Options.SegmentSize. It refuses a number that the log
// has passed, and one that it cannot have reached. An existing segment of that number, in
// which nothing counts according to its writer, is set aside; a second one is removed.
func NewSegment(dir string, first uint64, segmentSize int64) (*os.File, error) {
	all, err := segments(dir)
	if err != nil {
		return nil, err
	}
	last := uint64(1)
	if n := len(all); n > 0 {
		last = all[n-1].first
	}
	switch {
	case first < last:
		return nil, fmt.Errorf("the audit log has passed event %d", first)
	case first >= maxSequence || first-last > reach(segmentSize):
		return nil, fmt.Errorf("the audit log is not near event %d", first)
	}
	path := segment{dir, first}.path()
	if len(all) > 0 && last == first {
		if err := void(path); err != nil {
			return nil, err
		}
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := durable.SyncDir(dir); err != nil {
		return nil, errors.Join(err, f.Close(), os.Remove(path))
	}
	return f, nil
}

// void sets a segment aside. One of a number is enough to see what was there,
// and whoever asks for more does not fill the disk.
func void(path string) error {
	aside, err := filepath.Glob(path + ".void-*")
	switch {
	case err != nil:
		return err
	case len(aside) > 0:
		return os.Remove(path)
	}
	return os.Rename(path, fmt.Sprintf("%s.void-%d", path, time.Now().UnixNano()))
}

// newLog fills in what is left out.
func newLog(dir string, opts Options) *Log {
	if opts.SegmentSize <= 0 {
		opts.SegmentSize = defaultSegment
	}
	if opts.Queue <= 0 {
		opts.Queue = 8192
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	opts.group = cmp.Or(opts.group, maxGroup)
	if opts.open == nil {
		opts.open = openFile
	}
	l := &Log{
		dir: dir, opts: opts, next: 1, reserve: min(opts.SegmentSize, maxReserve),
		wake: make(chan struct{}, 1), done: make(chan struct{}),
	}
	l.flush = time.AfterFunc(time.Hour, l.expire)
	l.flush.Stop()
	return l
}
