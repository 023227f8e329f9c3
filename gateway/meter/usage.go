// Package meter reads what answers of LLM APIs say they have used, in tokens, as
// the answers stream past.
//
// A [Reader] takes the bytes of one answer, decoded, in pieces of any size. It keeps
// none of them: its memory is the same for all answers. It knows JSON, streams of
// events (https://html.spec.whatwg.org/multipage/server-sent-events.html) with JSON in
// them, and JSON texts one after the other, in the forms of OpenAI, Anthropic,
// Google and those who copy them. A number counts only where such an API puts it:
// what a model writes, which is in strings, is none. Where a number comes more than
// once the largest counts, since they are all of what was used up to there.
//
// It believes an upstream that reports less than it charges.
package meter

import (
	"bytes"
	"strings"
)

// maxCount bounds each number that an answer reports: more is taken for this much.
const maxCount = 1 << 40

// Tokens is what one request has used. In has Cached and CacheWrite in it.
type Tokens struct {
	In, Out    int64
	Cached     int64 // read from the provider's cache
	CacheWrite int64 // written to it
}

// Sum is all of them.
func (t Tokens) Sum() int64 { return t.In + t.Out }

// Report is what has been read of an answer.
type Report struct {
	Tokens
	Model string // as the answer names it, or empty
	// Reported says that there was a usage in it, Final that no more of one is to
	// come: the answer has ended, or said so.
	Reported, Final bool
	// Text is how many bytes a model may have written, whatever is reported.
	Text int64
}

// Reader reads one answer. Make it with [NewReader].
type Reader struct {
	events bool
	opaque bool // no JSON
	doc    scanner
	total  int64 // bytes

	now   [slots]int64 // of the document that is read
	named string
	ends  bool

	most  [slots]int64
	model string
	odd   bool // some number was no count
	final bool

	// Of a stream of events.
	begun  bool    // the line has been looked at
	data   bool    // the line's value is data
	field  [8]byte // the line's beginning
	n      int     // of field
	after  byte    // \r, of which \n may be the other half
	first  bool    // the line's value has just begun
	lines  int     // of data of the event
	length int64   // of the event's data
	start  [6]byte // of the event's data
}

// NewReader is for an answer of that Content-Type.
func NewReader(contentType string) *Reader {
	r := &Reader{}
	r.events = isStream(contentType)
	r.opaque = !r.events && !strings.Contains(media(contentType), "json")
	r.doc.scalar, r.doc.whole = r.scalar, r.commit
	return r
}

func media(contentType string) string {
	media, _, _ := strings.Cut(strings.ToLower(contentType), ";")
	return strings.TrimSpace(media)
}

// isStream tells whether an answer of that Content-Type is a stream of events.
func isStream(contentType string) bool { return media(contentType) == "text/event-stream" }

// Write takes more of the answer.
func (r *Reader) Write(p []byte) {
	r.total += int64(len(p))
	switch {
	case r.opaque:
	case r.events:
		r.stream(p)
	default:
		r.doc.write(p)
		// Another text may follow; one that is no JSON is none.
	}
}

// End says that the answer has come to its regular end.
func (r *Reader) End() {
	if r.events {
		r.dispatch() // some servers leave the last empty line out
	}
	r.final = r.final || r.events || r.opaque || !r.doc.open()
}

// Report is what has been read so far.
func (r *Reader) Report() Report {
	slot := func(k key) int64 { return r.most[k-kInput] }
	t := Tokens{
		In:  slot(kInput) + slot(kToolInput) + slot(kRead) + slot(kMade),
		Out: slot(kOutput) + slot(kThoughts),
	}
	if total := slot(kTotal); total > t.In+t.Out {
		t.Out = total - t.In // some leave thoughts out of the parts
	}
	t.Cached = min(slot(kCached)+slot(kRead), t.In)
	t.CacheWrite = min(slot(kWritten)+slot(kMade), t.In-t.Cached)
	text := r.total
	if r.events {
		text = r.doc.content
		if r.lines > 0 {
			text += r.length // of an event that has not ended
		}
	}
	return Report{
		Tokens: t, Model: r.model, Reported: t.In+t.Out > 0, Text: text,
		Final: r.final && !r.odd || !r.events && !r.opaque && !r.odd && !r.doc.open() && t.In+t.Out > 0,
	}
}

// scalar is told of what is in the document.
func (r *Reader) scalar(level int, kind byte, text []byte) {
	path := r.doc.path[1 : level+1]
	if len(path) > 1 && path[0] == kHolder {
		path = path[1:]
	}
	switch k := path[len(path)-1]; {
	case len(path) == 1 && kind == '"' && (k == kModel || k == kModelVersion):
		if string(text) != r.model { // as each event says it again
			r.named = Name(text)
		}
	case level == 1 && kind == '"' && k == kType:
		switch string(text) {
		case "message_stop", "response.completed", "response.incomplete", "response.failed":
			r.ends = true
		}
	case len(path) == 2 && path[0] == kUsage && k >= kInput && k < kLast,
		len(path) == 3 && path[0] == kUsage && path[1] == kDetails && (k == kCached || k == kWritten):
		if kind == 'n' {
			return // not known yet
		}
		n, ok := count(kind, text)
		r.odd = r.odd || !ok
		r.now[k-kInput] = max(r.now[k-kInput], n)
	}
}

// commit takes what was in a document when that is whole.
func (r *Reader) commit() {
	for i, n := range r.now {
		r.most[i] = max(r.most[i], n)
	}
	r.now = [slots]int64{}
	if r.named != "" {
		r.model, r.named = r.named, ""
	}
	r.final = r.final || r.ends
	r.ends = false
}

// count reads a number of tokens.
func count(kind byte, text []byte) (n int64, ok bool) {
	if kind != '0' || len(text) == 0 {
		return 0, false
	}
	for _, c := range text {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = min(n*10+int64(c-'0'), maxCount)
	}
	return n, true
}

// Name is the name of a model, or empty for what is not one.
func Name(text []byte) string {
	if len(text) == 0 || len(text) > 100 {
		return ""
	}
	for _, c := range text {
		letter := c|0x20 >= 'a' && c|0x20 <= 'z' || c >= '0' && c <= '9'
		if !letter && !strings.ContainsRune("-_.:/@+", rune(c)) {
			return ""
		}
	}
	return string(text)
}

// stream reads lines of events.
func (r *Reader) stream(p []byte) {
	for len(p) > 0 {
		if r.after == '\r' && p[0] == '\n' {
			r.after, p = 0, p[1:]
			continue
		}
		r.after = 0
		if !r.begun {
			c := p[0]
			if c != '\n' && c != '\r' && c != ':' {
				if r.field[r.n] = c; r.n < len(r.field)-1 {
					r.n++
				} else {
					r.begun = true // a longer name than data
				}
				p = p[1:]
				continue
			}
			name := bytes.TrimPrefix(r.field[:r.n], []byte("\xef\xbb\xbf"))
			r.data = string(name) == "data"
			if c == ':' {
				r.begun, r.first, p = true, true, p[1:]
				if r.data {
					r.next()
				}
				continue
			}
			if r.n == 0 {
				r.dispatch()
			}
		}
		end := bytes.IndexAny(p, "\r\n")
		value := p
		if end >= 0 {
			value = p[:end]
		}
		if r.data && len(value) > 0 {
			if r.first && value[0] == ' ' {
				value = value[1:]
			}
			r.feed(value)
			r.first = false
		}
		if end < 0 {
			return
		}
		r.after, p = p[end], p[end+1:]
		r.begun, r.data, r.first, r.n = false, false, false, 0
	}
}

// next begins a line of an event's data.
func (r *Reader) next() {
	if r.lines++; r.lines > 1 {
		r.feed([]byte{'\n'})
	}
}

func (r *Reader) feed(value []byte) {
	if r.length < int64(len(r.start)) {
		copy(r.start[r.length:], value)
	}
	r.length += int64(len(value))
	r.doc.write(value)
}

// dispatch ends an event.
func (r *Reader) dispatch() {
	if r.lines == 0 {
		return
	}
	switch {
	case r.length == int64(len("[DONE]")) && string(r.start[:]) == "[DONE]":
		r.final = true // OpenAI's word for the end
	case r.doc.open():
		r.doc.content += r.length // no JSON: all of it may be a model's
	}
	r.lines, r.length, r.now, r.named, r.ends = 0, 0, [slots]int64{}, "", false
	r.doc.reset()
}
