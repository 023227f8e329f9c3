package auditlog

import (
	"encoding/json"
	"fmt"
	"strconv"
	"sync"

	gojson "github.com/goccy/go-json"

	"sallyport/audit"
)

// maxLine bounds one event on disk, in bytes with its newline.
const maxLine = 1 << 20

// maxSequence is beyond what any log reaches; what claims more is not ours. Numbers below
// it are exact in JSON.
const maxSequence = maxExact

// batch is what one call brings: its events encoded, for the writer to number.
// Encoding runs on all cores, numbering on one.
type batch struct {
	buf   []byte
	at    []int        // offsets of the sequence numbers, each the digit 0
	out   chan outcome // what Append waits for, of capacity one; nil of Enqueue's
	worth worth        // the least of its events'
}

type outcome struct {
	first uint64 // number of the batch's first event
	err   error
}

var batches = sync.Pool{New: func() any { return new(batch) }}

// sequenceKey begins the event's own number where it is first in a line: no key before
// metadata.sequence has this name, none of them is anybody's to choose, and a quote within
// a string is always escaped.
var sequenceKey = []byte(`"sequence":`)

func (o Options) encode(events ...*audit.Event) (*batch, error) {
	b := batches.Get().(*batch)
	b.buf, b.at, b.out, b.worth = b.buf[:0], b.at[:0], nil, worths-1
	for _, e := range events {
		e.SetPlace(o.Cluster, o.Node)
		b.worth = min(b.worth, worthOf(e))
		start, at := len(b.buf), 0
		var err error
		if b.buf, at, err = appendEvent(b.buf, e); err != nil {
			b.free()
			return nil, err
		}
		b.buf, b.at = append(b.buf, '\n'), append(b.at, at)
		if n := len(b.buf) - start; n > maxLine-20 {
			b.free()
			return nil, fmt.Errorf("audit event %s: %w: %d bytes", e.ID(), ErrTooLarge, n)
		}
	}
	return b, nil
}

// appendTo appends the lines under their numbers and returns the number after.
func (b *batch) appendTo(dst []byte, sequence uint64) ([]byte, uint64) {
	from := 0
	for _, at := range b.at {
		dst = append(dst, b.buf[from:at]...)
		dst = strconv.AppendUint(dst, sequence, 10)
		sequence++
		from = at + 1
	}
	return append(dst, b.buf[from:]...), sequence
}

// most bounds what appendTo appends, in bytes.
func (b *batch) most() int { return len(b.buf) + 20*len(b.at) }

// free gives the batch back to be used again: nobody else may hold it. One that
// grew large is left to the collector.
func (b *batch) free() {
	if cap(b.buf) <= 64<<10 {
		batches.Put(b)
	}
}

// sequenceOf is the number of a line from the log. It is false for what is not
// a line of a log.
func sequenceOf(b []byte) (uint64, bool) {
	var line struct {
		Metadata struct {
			Sequence uint64 `json:"sequence"`
		} `json:"metadata"`
	}
	if !json.Valid(b) || gojson.Unmarshal(b, &line) != nil {
		return 0, false
	}
	n := line.Metadata.Sequence
	return n, 0 < n && n < maxSequence
}
