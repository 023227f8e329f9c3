package auditlog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/internal/durable"
)

// Open opens the log in dir, makes it if need be, and continues after the last event.
//
// An unfinished end, as a crash leaves it, was never acknowledged: it is moved to a file
// beside the segment and logged. A line that was altered, or a bad one with events after
// it, is damage: the segment stays as it is, a new one begins, and its first event names
// the file and the offset. Open does not refuse a damaged log: that would turn one bad
// byte into an outage, and readers report the damage for good.
func Open(dir string, opts Options) (*Log, error) {
	l := newLog(dir, opts)
	if err := l.start(); err != nil {
		if l.lock != nil {
			l.lock.Close()
		}
		return nil, fmt.Errorf("opening the audit log in %s: %w", dir, err)
	}
	l.begins = l.next
	go l.run()
	return l, nil
}

func (l *Log) start() error {
	if err := durable.MkdirAll(l.dir, 0o700); err != nil {
		return err
	}
	var err error
	if l.lock, err = os.Open(l.dir); err != nil {
		return err
	}
	if err := l.lock.Chmod(0o700); err != nil {
		return err
	}
	if err := unix.Flock(int(l.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			return ErrLocked
		}
		return os.NewSyscallError("flock", err)
	}
	all, err := segments(l.dir)
	if err != nil {
		return err
	}
	if len(all) > 0 {
		if err := l.resume(all[len(all)-1]); err != nil {
			return err
		}
	}
	return l.skip()
}

// skip goes on after the numbers that the log is known to have reached. They are missing.
func (l *Log) skip() error {
	last := l.next - 1
	if l.opts.After <= last {
		return nil
	}
	l.next = l.opts.After + 1
	message := fmt.Sprintf("events %d to %d are missing: the log had reached number %d, and ends before it", last+1, l.opts.After, l.opts.After)
	l.opts.Logger.Error("the end of the audit log is gone", "last", last, "reached", l.opts.After)
	b, err := l.opts.encode(Notice("audit-truncated", message, 0))
	if err != nil {
		return err
	}
	l.queue(b)
	if l.current != nil {
		err = l.current.Close()
		l.current = nil
	}
	return err
}

// resume takes the last segment over.
func (l *Log) resume(last segment) error {
	v, err := inspect(last)
	if err != nil {
		return err
	}
	l.next = v.next
	if v.damage != nil {
		l.opts.Logger.Error("the audit log is damaged: the segment is left as it is, a new one begins",
			"file", v.damage.File, "offset", v.damage.Offset, "reason", v.damage.Reason)
		b, err := l.opts.encode(Notice("audit-damaged", v.damage.Error(), 0))
		if err != nil {
			return err
		}
		l.queue(b)
		return nil
	}
	if v.compressed {
		return nil
	}
	if v.torn > 0 {
		tail, err := unfinished(last, v.size)
		if err != nil {
			return fmt.Errorf("reading the unfinished end of %s: %w", last.path(), err)
		}
		if len(tail) > 0 {
			aside := fmt.Sprintf("%s.torn-%d", last.path(), time.Now().UnixNano())
			if err := durable.WriteFile(aside, tail, 0o600); err != nil {
				return fmt.Errorf("setting the unfinished end of %s aside: %w", last.path(), err)
			}
			l.opts.Logger.Warn("the audit log had an unfinished end, never acknowledged: it was cut off and set aside",
				"file", last.path(), "offset", v.size, "bytes", len(tail), "aside", aside)
		}
	}
	f, err := l.opts.open(last.path(), 0)
	if err != nil {
		return err
	}
	if v.torn > 0 {
		err = f.Truncate(v.size)
	}
	// A process that was killed may have written what it had not synced yet.
	if err = errors.Join(err, f.Sync(), durable.SyncDir(l.dir)); err != nil {
		return errors.Join(err, f.Close())
	}
	l.current, l.size = f, v.size
	_ = f.Room(0, l.reserve) // or with the first event
	return nil
}

// maxTorn is how much is kept of an unfinished end, in bytes: what a crash leaves
// is one group. Anything else there was put there.
const maxTorn = maxAhead + 4<<20

// unfinished is what follows offset, but for the zeros at the end: the writer
// keeps some ahead.
func unfinished(s segment, offset int64) ([]byte, error) {
	f, err := os.Open(s.path())
	if err != nil {
		return nil, err
	}
	defer f.Close()
	tail, err := io.ReadAll(io.NewSectionReader(f, offset, maxTorn))
	return bytes.TrimRight(tail, "\x00"), err
}

// dense reads a file without its holes, of which a single zero is left: a file
// of a few bytes may have a hole of any size (lseek(2), SEEK_HOLE).
type dense struct {
	*os.File
	at  int64 // of the next byte
	end int64 // of the data that it is in
}

func (d *dense) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	if d.at == d.end {
		data, err := d.Seek(d.at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return d.last(b)
		}
		if err != nil {
			return 0, err
		}
		if d.end, err = d.Seek(data, unix.SEEK_HOLE); err != nil {
			return 0, err
		}
		if data > d.at {
			d.at, b[0] = data, 0
			return 1, nil
		}
	}
	n, err := d.ReadAt(b[:min(int64(len(b)), d.end-d.at)], d.at)
	d.at += int64(n)
	if n > 0 {
		err = nil
	}
	return n, err
}

// last is the hole at the end, if there is one.
func (d *dense) last(b []byte) (int, error) {
	i, err := d.Stat()
	if err != nil {
		return 0, err
	}
	if i.Size() <= d.at {
		return 0, io.EOF
	}
	d.at, d.end, b[0] = i.Size(), i.Size(), 0
	return 1, nil
}
