// Package echo takes secrets out of what an upstream sends back.
//
// It finds a value in the forms that [spellings] lists, each of whose characters
// can be escaped in the ways that [read] knows, and writes as many asterisks in
// its place: lengths stay true, and text stays text if the secret is text.
// Chunks, frames and fragments of a message do not hide a value.
//
// What it does not find is a value that the upstream cut in pieces, one event or
// message after another or by Range, which the caller keeps from it; one that is
// encrypted, in an archive, or encoded twice in different ways, but for escaped
// text; and one shorter than [MinLength].
package echo

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
)

// MinLength is the length in bytes below which a value is not looked for: it
// would be found in text that has nothing to do with it. Such a value is still
// found where it is part of a longer one that was injected, as a password is of
// user:password.
const MinLength = 8

// Scrubber finds some values and overwrites them. It is immutable and safe for
// concurrent use.
type Scrubber struct{ index *index }

const redaction = '*'

// New returns a Scrubber for the values. White space around them is not part of
// them, unless they would be too short.
func New(values []string) *Scrubber {
	var patterns []pattern
	seen := make(map[pattern]bool)
	for _, value := range values {
		if short := strings.TrimSpace(value); len(short) >= MinLength {
			value = short
		}
		if len(value) < MinLength {
			continue
		}
		for _, p := range spellings(value) {
			if !seen[p] {
				seen[p] = true
				patterns = append(patterns, p)
			}
		}
	}
	return &Scrubber{newIndex(patterns)}
}

// Format keeps the patterns out of whatever prints a Scrubber.
func (s *Scrubber) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte("REDACTED")) }

// none says that there is nothing to look for.
func (s *Scrubber) none() bool { return s.index.window == 0 }

// Header scrubs the values of a header in place, deletes what has a secret in
// its name and returns how many it found. Call it for trailers too.
func (s *Scrubber) Header(h http.Header) int {
	if s.none() {
		return 0
	}
	hits := 0
	room := rooms.Get().(*room)
	defer rooms.Put(room)
	text, space := room.text[:0], room.spans[:0]
	for name, values := range h {
		// Names have lost their case on the way.
		if len(name) >= s.index.window {
			find := search{index: s.index, fold: true, spans: space}
			if find.run(append(text, name...), true); len(find.spans) > 0 {
				delete(h, name)
				hits++
				continue
			}
		}
		for i, v := range values {
			if len(v) < s.index.window {
				continue
			}
			clean := append(text, v...)
			sift := sieve{search: search{index: s.index, spans: space}}
			sift.sift(clean, true)
			if sift.hits > 0 {
				values[i] = string(clean)
				hits += sift.hits
			}
		}
	}
	return hits
}

// room is what searching a header's texts takes.
type room struct {
	text  [512]byte
	spans [8]span
}

var rooms = sync.Pool{New: func() any { return new(room) }}

// In says whether a text holds one of the values in any spelling.
func (s *Scrubber) In(text string) bool {
	find := search{index: s.index}
	find.run([]byte(text), true)
	return len(find.spans) > 0
}

// sieve scrubs one text that comes in pieces.
type sieve struct {
	search
	hits   int // so far; overlapping ones are one
	masked int // bytes at the start of what is undecided that a hit covers
}

func (s *Scrubber) sieve() sieve { return sieve{search: search{index: s.index}} }

// sift overwrites the secrets in data and returns how many bytes of it are
// decided. The rest may be the beginning of a secret: it is to be offered again,
// with what follows, unless this is the last of the text.
func (s *sieve) sift(data []byte, last bool) (decided int) {
	s.run(data, last)
	decided = s.open
	redact(data[:min(s.masked, decided)])
	// What begins in the decided part ends in data, or it would not be decided;
	// what begins after it will be found again.
	for _, at := range s.spans {
		if at.from >= decided {
			break
		}
		if at.from >= s.masked {
			s.hits++
		}
		redact(data[at.from:min(at.to, decided)])
		s.masked = max(s.masked, at.to)
	}
	s.masked = max(0, s.masked-decided)
	return decided
}

func redact(b []byte) {
	for i := range b {
		b[i] = redaction
	}
}

// Reader returns a body that reads as the given one does, scrubbed. It keeps
// back no more than an end that may be the beginning of a secret, so that a
// stream of events keeps flowing; when the body breaks off it keeps that for
// good. hit, unless nil, is called for each occurrence, in the goroutine that
// reads.
func (s *Scrubber) Reader(body io.ReadCloser, hit func()) io.ReadCloser {
	if s.none() {
		return body
	}
	return &scrubbed{reader: s.reader(body, hit), Closer: body}
}

// chunk is how many bytes are read at a time by who has no room for so many.
const chunk = 4 << 10

type scrubbed struct {
	reader
	io.Closer
}

func (s *Scrubber) reader(src io.Reader, hit func()) reader {
	return reader{text: s.text(hit), src: src}
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
		case len(p) >= r.kept()+chunk:
			n = r.direct(p)
		default:
			var got int
			got, r.err = r.src.Read(r.room(chunk))
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
	decided := r.count(data, r.err == io.EOF)
	r.from, r.to = 0, 0
	if len(data) > decided {
		r.to = copy(r.room(len(data)-decided), data[decided:])
	}
	return decided
}
