// Package scrub takes secrets out of what an upstream sends back.
//
// It finds a value in the forms that [spellings] lists, each of whose characters
// can be escaped in the ways that [read] knows, and writes as many asterisks in
// its place: lengths stay true, and text stays text if the secret is text.
// Chunks, frames and fragments of a message do not hide a value.
//
// It does not find a value that the upstream cut in pieces, one event or
// message after another or by Range, which the caller keeps from it; one that is
// encrypted, in an archive, or encoded twice in different ways, but for escaped
// text; and one shorter than [MinLength].
//
// # What its work tells
//
// A sandbox that chooses some bytes of a text and sees what becomes of it learns
// whether a whole value is in it. It must not learn whether a part is: it would
// find the value byte by byte. So what is kept back of a text, until more comes or
// it ends, never depends on what the text or the values say, but on how long they
// are: always the same number of bytes, as many as the longest occurrence can have.
// Of a text that breaks off they are lost. Pieces end where those of the input did,
// so many bytes before.
//
// A text ends with its body, message or frame's message. Messages are those of the
// RPCs of [framings] and of the [streams] whose messages begin with their lengths,
// as a Content-Type says and the server sends them: of what else is sent as such,
// a value is taken for parts where a length says so. In a body that is none of
// messages a text ends besides with each line, so that streams of events, of lines of
// JSON or of a log flow. No value goes on beyond a line's end but one with lines
// itself, whose long lines are values of their own, and digits that were broken
// into lines: a line that ends in [digits] or more of these ends no text. Where all
// lines of a value are short, no line ends a text.
//
// How long a search takes depends on the text, on the values' lengths, and on which of
// their characters escapes are made of: not on whether parts of values are in the text,
// but for one case. A window of a form of a value, 16 bytes (12 of a form shorter than
// 32, 8 of one shorter than 16; of hexadecimal 24, and 16 where there are fewer than 29),
// has the form looked for around it, in a time that again depends on lengths unless all of
// it is there: 12 bytes of a value of 28 or more, 8 of one of 16 or more, 6 of any other.
// The windows are among the last 47 bytes of the form or of a run of plain characters in
// it, before the last line of a PEM file. Of a value that holds another one of its name
// they are in that: "Bearer " and a username are known to others. They have to be guessed
// at once, unless other public bytes are next to them: then up to 23 can be guessed one by
// one. Letters of either case are the same for all of this.
//
// With each piece of a text that comes all that is kept back is searched again: a text in
// very small pieces takes as many times as long.
package scrub

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"

	"sallyport/gateway/credential/decode"
)

// MinLength is the length in bytes below which a value is not looked for: it
// would be found in text that has nothing to do with it. Such a value is still
// found where it is part of a longer one that was injected, as a password is of
// user:password.
const MinLength = 8

// Found describes an occurrence of a value.
type Found struct {
	Name string // of whose value it is
	// Public reports that the value is no secret: seeing that it was found reveals none.
	Public bool
}

// Value is a text to find, and the description of its occurrences.
type Value struct {
	Text string
	Found
	// Length is how long, in bytes, a value is taken for where that is shown by
	// what is kept back of a text: for one in a spelling whose length depends on
	// what it says, that of its plain form. 0: of Text.
	Length int
}

// Scrubber finds values and overwrites them. It is safe for concurrent use. The zero
// Scrubber looks for nothing until Use.
type Scrubber struct {
	index atomic.Pointer[index] // nil: there is nothing to look for
	share *decode.Share         // of the memory for what is decoded, nil without a bound
}

const redaction = '*'

// New returns a Scrubber for the values. White space around them is not part of
// them, unless they would be too short.
func New(values []Value) *Scrubber {
	var (
		patterns []pattern
		found    []Found // by pattern
		whole    bool
	)
	seen := make(map[pattern]int)
	for _, v := range values {
		value, span := v.Text, stretch*cmp.Or(v.Length, len(v.Text))
		if short := strings.TrimSpace(value); len(short) >= MinLength {
			value = short
		}
		if len(value) < MinLength {
			continue
		}
		texts := append(lines(value), value)
		whole = whole || len(texts) == 1 && strings.Contains(value, "\n")
		for _, text := range texts {
			// Two alphabets may give the same digits: that is not to show in the work.
			first := len(patterns)
			for _, p := range spellings(text, span, knownOf(text, v, values)) {
				if at, ok := seen[p]; !ok || at >= first {
					seen[p] = len(patterns)
					patterns, found = append(patterns, p), append(found, v.Found)
				} else if found[at].Public && !v.Public {
					found[at] = v.Found
				}
			}
		}
	}
	s := new(Scrubber)
	if len(patterns) > 0 {
		x := newIndex(patterns, found)
		x.whole = whole
		s.index.Store(x)
	}
	return s
}

// Use makes the Scrubber look for another one's values, also in texts that it is in the
// middle of: everything read after Use has returned is searched for them, together with
// what was undecided then.
func (s *Scrubber) Use(other *Scrubber) { s.index.Store(other.index.Load()) }

// Within bounds the memory that all responses together take to be decoded. Call it before
// any is decoded. A response for which there is no memory waits, and then breaks off.
func (s *Scrubber) Within(share *decode.Share) { s.share = share }

// Format prints no value.
func (s *Scrubber) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte("REDACTED")) }

// None reports whether there is nothing to look for now.
func (s *Scrubber) None() bool { return s.index.Load() == nil }

// Header overwrites values in a header, or in trailers, and deletes fields with a value in
// their name. hit, unless nil, is called for each occurrence.
func (s *Scrubber) Header(h http.Header, hit func(Found)) {
	index := s.index.Load()
	if index == nil {
		return
	}
	if hit == nil {
		hit = func(Found) {}
	}
	room := bufferPool.Get().(*buffers)
	defer bufferPool.Put(room)
	text, space := room.text[:0], room.spans[:0]
	for name, values := range h {
		// Names have lost their case on the way.
		if len(name) >= index.window {
			find := search{index: index, fold: true, spans: space}
			if find.run(append(text, name...), len(name)); len(find.spans) > 0 {
				delete(h, name)
				hit(find.first())
				continue
			}
		}
		for i, v := range values {
			if len(v) < index.window {
				continue
			}
			clean := append(text, v...)
			sift := window{search: search{index: index, spans: space}, hit: hit}
			sift.advance(clean, true)
			if sift.hits > 0 {
				values[i] = string(clean)
			}
		}
	}
}

// buffers is what searching a header's texts takes.
type buffers struct {
	text  [512]byte
	spans [8]span
}

var bufferPool = sync.Pool{New: func() any { return new(buffers) }}

// In reports whether a text holds one of the values in any spelling.
func (s *Scrubber) In(text string) bool {
	find := search{index: s.index.Load()}
	find.run([]byte(text), len(text))
	return len(find.spans) > 0
}

// window scrubs one text that comes in pieces.
type window struct {
	search
	scrubber *Scrubber // whose index is used, as it is then
	hit      func(Found)
	hits     int  // so far; overlapping ones are one
	public   bool // what was reported of those that overlap
	masked   int  // bytes at the start of what is undecided that a hit covers
	lined    bool // a text ends with each line
	digits   int  // at the end of what is decided
}

// reset takes up what is looked for now. It comes after data was read and before
// it is searched: what follows from a value's having left is read later still.
func (s *window) reset() {
	if s.scrubber != nil {
		s.index = s.scrubber.index.Load()
	}
}

// advance overwrites the secrets in data and returns how many bytes of it are
// decided. The rest, as long as the longest occurrence or what has come since the
// text last ended, is to be offered again, with what follows, unless this is the
// last of the text.
func (s *window) advance(data []byte, last bool) (decided int) {
	s.reset()
	decided = len(data)
	if s.index != nil && !last {
		decided = max(0, len(data)-s.tail)
		if s.lined && !s.whole {
			decided = s.lineEnd(data, decided)
		}
	}
	if s.lined {
		s.digits = digitsBefore(data[:decided], s.digits)
	}
	s.run(data, decided)
	redact(data[:min(s.masked, decided)])
	// An occurrence that begins in the decided part ends in data.
	for _, at := range s.spans {
		// Of those that overlap one is reported, but for a public one that a secret
		// one follows: that is to be known.
		found, alone := s.found[at.pattern], at.from >= s.masked
		if alone {
			s.hits++
		}
		if alone || s.public && !found.Public {
			s.public = found.Public
			if s.hit != nil {
				s.hit(found)
			}
		}
		redact(data[at.from:min(at.to, decided)])
		s.masked = max(s.masked, at.to)
	}
	s.masked = max(0, s.masked-decided)
	return decided
}

// digits is how many digits of base64 or hexadecimal at the end of a line may be
// a part of what was broken into lines. Nobody breaks into shorter ones; the names
// that logs end lines with, UUIDs too, are shorter.
const digits = 40

// lineEnd returns where the last line ends in data that may end a text, or a
// place before which there is none that matters.
func (s *window) lineEnd(data []byte, place int) int {
	for end := len(data); ; {
		n := bytes.LastIndexByte(data[place:end], '\n')
		if n < 0 {
			return place
		}
		if end = place + n; digitsBefore(bytes.TrimSuffix(data[:end], []byte{'\r'}), s.digits) < digits {
			return end + 1
		}
	}
}

// digitsBefore counts the digits at the end of a text, up to enough of them, where
// before the text there were some.
func digitsBefore(text []byte, before int) (n int) {
	for n < digits {
		if n == len(text) {
			return min(n+before, digits)
		}
		if c := text[len(text)-1-n]; !alphanumeric(c) && c != '+' && c != '/' && c != '-' && c != '_' {
			break
		}
		n++
	}
	return n
}

func redact(b []byte) {
	for i := range b {
		b[i] = redaction
	}
}

// Reader returns a scrubbed body. It keeps back the bytes since the last line's end, but
// no more than the longest possible occurrence of a value; it drops them if the body
// breaks off. hit, unless nil, is called for each occurrence, in the goroutine that reads.
func (s *Scrubber) Reader(body io.ReadCloser, hit func(Found)) io.ReadCloser {
	return &scrubbed{reader: s.reader(body, hit), Closer: body}
}

// chunk is how many bytes are read at a time into a small buffer.
const chunk = 4 << 10

type scrubbed struct {
	reader
	io.Closer
}

func (s *Scrubber) reader(src io.Reader, hit func(Found)) reader {
	r := reader{text: s.text(hit), src: src}
	r.lined = true
	return r
}

// reader scrubs all that it reads as one text.
type reader struct {
	text
	src   io.Reader
	ready []byte // decided
	err   error  // after ready
}

func (r *reader) Read(p []byte) (n int, err error) {
	for len(p) > 0 && n == 0 {
		switch {
		case len(r.ready) > 0:
			n = copy(p, r.ready)
			r.ready = r.ready[n:]
		case r.err != nil:
			return 0, r.err
		case len(p) >= r.kept()+chunk, r.kept() == 0 && r.scrubber.None():
			n = r.direct(p)
		default:
			var got int
			got, r.err = r.src.Read(r.room(max(chunk, r.kept())))
			r.ready = r.add(got, r.err == io.EOF)
		}
	}
	return n, nil
}

// direct reads into p itself, which saves copying all of it, and returns how
// much of it is decided.
func (r *reader) direct(p []byte) int {
	var n int
	kept := copy(p, r.buf[r.from:r.to])
	n, r.err = r.src.Read(p[kept:])
	data := p[:kept+n]
	decided := r.advance(data, r.err == io.EOF)
	r.from, r.to = 0, 0
	if len(data) > decided {
		r.to = copy(r.room(len(data)-decided), data[decided:])
	}
	return decided
}
