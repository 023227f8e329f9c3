package audit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"sync"
)

// maxLine bounds one event on disk, in bytes with its newline.
const maxLine = 1 << 20

// maxSequence is beyond what any log reaches; what claims more is not ours.
const maxSequence = 1 << 62

// line is an event encoded by its caller, whose sequence number the writer
// fills in: encoding runs on all cores, numbering on one.
type line struct {
	buf []byte
	at  int // offset of the sequence number's digit, 0
}

var lines = sync.Pool{New: func() any { return new(line) }}

// The first of its kind in a line is the event's own: metadata comes first, and
// a quote within a string is always escaped.
var (
	lineStart   = []byte(`{"metadata":{`)
	sequenceKey = []byte(`"sequence":`)
)

func encode(e *Event) (*line, error) {
	l := lines.Get().(*line)
	l.buf, l.at = appendEvent(l.buf[:0], e)
	l.buf = append(l.buf, '\n')
	if n := len(l.buf); n > maxLine-20 {
		l.free()
		return nil, fmt.Errorf("audit event %s: %w: %d bytes", e.ID(), ErrTooLarge, n)
	}
	return l, nil
}

// appendTo appends the line under its number.
func (l *line) appendTo(dst []byte, sequence uint64) []byte {
	dst = append(dst, l.buf[:l.at]...)
	dst = strconv.AppendUint(dst, sequence, 10)
	return append(dst, l.buf[l.at+1:]...)
}

// free gives the line back; one that grew large is left to the collector.
func (l *line) free() {
	if cap(l.buf) <= 64<<10 {
		lines.Put(l)
	}
}

// sequenceOf is the number of a line from the log. It is false for what is not
// a line of a log.
func sequenceOf(b []byte) (uint64, bool) {
	_, rest, ok := bytes.Cut(b, sequenceKey)
	if !ok || !bytes.HasPrefix(b, lineStart) || !json.Valid(b) {
		return 0, false
	}
	end := 0
	for end < len(rest) && '0' <= rest[end] && rest[end] <= '9' {
		end++
	}
	n, err := strconv.ParseUint(string(rest[:end]), 10, 64)
	return n, err == nil && 0 < n && n < maxSequence
}
