package auditlog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
)

// ErrNoEntry is returned by a Picker where the event of a number is not at the place that
// it was asked for.
var ErrNoEntry = errors.New("the event is not where it was in the audit log")

// Picker reads single events of a log whose places are known from [Entries]. It knows the
// segments that there were when it was opened. It is not safe for concurrent use.
type Picker struct {
	all  []segment
	file *content // of the segment that was read last
	of   uint64   // number that it begins with
	buf  []byte
}

// OpenPicker returns a Picker of the log in dir.
func OpenPicker(dir string) (*Picker, error) {
	all, err := segments(dir)
	return &Picker{all: all}, err
}

// Close closes the file that was read last.
func (p *Picker) Close() error {
	if p.file == nil {
		return nil
	}
	err := p.file.Close()
	p.file = nil
	return err
}

// First is the number that the log begins with, or 0 if it is empty.
func (p *Picker) First() uint64 {
	if len(p.all) == 0 {
		return 0
	}
	return p.all[0].first
}

// Pick returns the event of a number, whose line begins at an offset of its segment. The
// error wraps ErrNoEntry if there is another one, or none. JSON is valid until the next
// call.
func (p *Picker) Pick(number uint64, offset int64) (Entry, error) {
	if err := p.open(number); err != nil {
		return Entry{}, err
	}
	line, err := p.line(offset)
	if err != nil {
		return Entry{}, err
	}
	e, err := decode(line)
	if err != nil || e.Metadata.Sequence != number {
		return Entry{}, fmt.Errorf("%w: %d", ErrNoEntry, number)
	}
	return Entry{number, line, e, offset}, nil
}

// open opens the segment of a number: the last one that does not begin after it.
func (p *Picker) open(number uint64) error {
	at := slices.IndexFunc(p.all, func(s segment) bool { return s.first > number })
	if at < 0 {
		at = len(p.all)
	}
	if at == 0 {
		return fmt.Errorf("%w: %d", ErrNoEntry, number)
	}
	s := p.all[at-1]
	if p.file != nil && p.of == s.first {
		return nil
	}
	f, err := s.open()
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %d", ErrNoEntry, number)
	} else if err != nil {
		return err
	}
	_ = p.Close() // it was only read
	p.file, p.of = f, s.first
	return nil
}

// usualLine is how much is read at first, in bytes: most lines are shorter.
const usualLine = 4 << 10

// line reads from an offset to the end of the line.
func (p *Picker) line(offset int64) ([]byte, error) {
	for size := usualLine; ; size *= 4 {
		size = min(size, maxLine)
		p.buf = slices.Grow(p.buf[:0], size)[:size]
		n, err := p.file.ReadAt(p.buf, offset)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		if end := bytes.IndexByte(p.buf[:n], '\n'); end >= 0 {
			return p.buf[:end], nil
		}
		if n < size || size == maxLine {
			return nil, fmt.Errorf("%w: no line at byte %d of the segment of event %d", ErrNoEntry, offset, p.of)
		}
	}
}
