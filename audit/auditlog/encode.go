package auditlog

import (
	"bytes"
	"fmt"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/goccy/go-json"

	"sallyport/audit"
)

// appendEvent appends an event under the number 0, and returns the offset of that digit.
// The line is canonical JSON (RFC 8785): two programs that encode the same event write
// the same bytes, so that they can be hashed.
//
// go-json is three times as fast as a canonical encoder, and each request waits for two
// events to be encoded. It writes the canonical form since fields are in the order of
// their keys. Anything else that could make a difference is rare, and takes the slow way.
func appendEvent(dst []byte, e *audit.Event) (_ []byte, sequence int, err error) {
	e.Metadata.Sequence = 0
	whole, err := marshal(dst, e)
	line := whole[len(dst):]
	if err == nil && inexact(e) {
		line, err = exact(line)
	}
	if err == nil && (!utf8.Valid(line) || unsorted(e)) {
		line, err = canonical(line)
	}
	if err != nil {
		return dst, 0, fmt.Errorf("encoding audit event %s: %w", e.ID(), err)
	}
	sequence = len(dst) + bytes.Index(line, sequenceKey) + len(sequenceKey)
	return append(whole[:len(dst)], line...), sequence, nil
}

// Canonical is the line of an event under the number 0.
func Canonical(e *audit.Event) ([]byte, error) {
	copied := *e
	line, _, err := appendEvent(nil, &copied)
	return line, err
}

// Is reports whether an entry is a line of [Canonical] under its own number, byte for byte.
func (e Entry) Is(line []byte) bool {
	zero := fmt.Appendf(nil, "%s0", sequenceKey)
	return bytes.Equal(e.JSON, bytes.Replace(line, zero, fmt.Appendf(nil, "%s%d", sequenceKey, e.Number), 1))
}

// marshal appends an event, its strings as they are, but for what JSON must have escaped.
func marshal(dst []byte, e *audit.Event) ([]byte, error) {
	to := appender(dst)
	// Marshal would make another slice for each event, which is half of its cost.
	if err := json.NewEncoder(&to).EncodeWithOption(e, json.DisableHTMLEscape(), json.DisableNormalizeUTF8()); err != nil {
		return dst, err
	}
	return to[:len(to)-1], nil // without the newline that an Encoder ends with
}

// appender is an io.Writer that never fails.
type appender []byte

func (a *appender) Write(p []byte) (int, error) {
	*a = append(*a, p...)
	return len(p), nil
}

// canonical is the canonical form of a line. A byte that is not UTF-8 becomes U+FFFD.
func canonical(line []byte) ([]byte, error) {
	v := jsontext.Value(bytes.Map(func(r rune) rune { return r }, line))
	err := v.Canonicalize()
	return v, err
}

// maxExact is the largest integer up to which all have a place in a double, as which a
// reader may take a number in JSON.
const maxExact = 1<<53 - 1

// integers calls f with all numbers of an event that a request or its answer can say.
func integers(e *audit.Event, f func(*int64)) {
	if q := e.HTTPRequest; q != nil {
		f(&q.Length)
	}
	for _, by := range e.Evidences {
		if q := by.HTTPRequest; q != nil {
			f(&q.Length)
		}
	}
	if a := e.HTTPResponse; a != nil {
		f(&a.Length)
	}
	if t := e.Traffic; t != nil {
		f(&t.BytesIn)
		f(&t.BytesOut)
		f(&t.Packets)
	}
	if m := e.MessageContext; m != nil {
		f(&m.Completion)
		f(&m.Prompt)
		f(&m.Total)
	}
	x := &e.Unmapped.Sallyport
	if t := x.Tokens; t != nil {
		f(&t.CacheWrite)
		f(&t.Cached)
		f(&t.In)
		f(&t.Out)
	}
	for i := range x.Limits {
		f(&x.Limits[i].Period)
		f(&x.Limits[i].Uses)
	}
	if a := x.Approval; a != nil {
		f(&a.Until)
	}
	f(&e.Duration)
	f(&e.StartTime)
	f(&e.Time)
}

func inexact(e *audit.Event) (found bool) {
	integers(e, func(n *int64) { found = found || *n != bounded(*n) })
	return found
}

// exact writes a line again with numbers that are exact.
func exact(line []byte) ([]byte, error) {
	e, err := decode(line)
	if err != nil {
		return nil, err
	}
	integers(e, func(n *int64) { *n = bounded(*n) })
	return marshal(nil, e)
}

func bounded(n int64) int64 { return min(max(n, -maxExact), maxExact) }

// unsorted says that tags may be in another order than that of RFC 8785: by UTF-16,
// what is beyond the Basic Multilingual Plane comes before the end of it.
func unsorted(e *audit.Event) bool {
	for k := range e.Unmapped.Sallyport.Tags {
		for i := range len(k) {
			if k[i] >= 0xf0 {
				return true
			}
		}
	}
	return false
}

// decode reads a line of a log.
func decode(line []byte) (*audit.Event, error) {
	e := new(audit.Event)
	return e, json.Unmarshal(line, e)
}
