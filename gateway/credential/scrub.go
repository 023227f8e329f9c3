package credential

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// MinScrub is the length in bytes below which a value is not looked for in
// responses: it would be found in text that has nothing to do with it. Such a
// value is still found where it is part of a longer one that was injected, as a
// password is of user:password.
const MinScrub = 8

// Scrubber removes secrets from what an upstream sends back. It finds a value
// as it is and in the forms that [spellings] lists, and writes as many asterisks
// in its place, so that a Content-Length stays true.
//
// It sees bytes, not what they mean: a compressed body, or a part of one that a
// Range request fetched, hides a value from it. The caller asks for identity
// encoding, or decodes, and refuses ranges.
//
// The search is Wu and Manber's ("A fast algorithm for multi-pattern searching",
// 1994): a window as long as the shortest pattern slides by as much as its last
// two bytes allow. A Scrubber is immutable and safe for concurrent use.
type Scrubber struct {
	patterns []string
	window   int
	longest  int
	shift    []uint8  // by hash of a window's last two bytes; 0: look at the chain
	head     []uint16 // by the same hash: 1 + index of the first candidate pattern
	next     []uint16 // by pattern: 1 + index of the next candidate
	first    [256][]uint16
}

const (
	hashSize = 1 << 13
	// maxWindow fits a shift into a byte.
	maxWindow = 200
	// maxPatterns fits an index into 16 bits; some 1,000 secrets at once.
	maxPatterns = 1<<16 - 2
	redaction   = '*'
)

func hash(a, b byte) uint { return (uint(a)<<5 ^ uint(b)) & (hashSize - 1) }

// NewScrubber returns a Scrubber for the secrets.
func NewScrubber(secrets []Secret) *Scrubber {
	s := &Scrubber{}
	seen := make(map[string]bool)
	for _, secret := range secrets {
		if len(secret.Reveal()) < MinScrub {
			continue
		}
		for _, p := range spellings(secret.Reveal()) {
			if !seen[p] && len(s.patterns) < maxPatterns {
				seen[p] = true
				s.patterns = append(s.patterns, p)
			}
		}
	}
	if len(s.patterns) == 0 {
		return s
	}
	s.window = maxWindow
	for _, p := range s.patterns {
		s.window, s.longest = min(s.window, len(p)), max(s.longest, len(p))
	}
	s.shift = bytes.Repeat([]byte{uint8(s.window - 1)}, hashSize)
	s.head = make([]uint16, hashSize)
	s.next = make([]uint16, len(s.patterns))
	for i, p := range s.patterns {
		s.first[p[0]] = append(s.first[p[0]], uint16(i))
		for j := 1; j < s.window; j++ {
			h := hash(p[j-1], p[j])
			s.shift[h] = min(s.shift[h], uint8(s.window-1-j))
		}
		last := hash(p[s.window-2], p[s.window-1])
		s.next[i], s.head[last] = s.head[last], uint16(i+1)
	}
	return s
}

// Format keeps the patterns out of whatever prints a Scrubber.
func (s *Scrubber) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(redacted)) }

// span is a half-open range of bytes.
type span struct{ from, to int }

// find calls found for every occurrence, overlapping ones included, in the
// order of where they begin.
func (s *Scrubber) find(data []byte, found func(span)) {
	if s.window == 0 {
		return
	}
	for i := s.window - 1; i < len(data); {
		h := hash(data[i-1], data[i])
		if skip := s.shift[h]; skip > 0 {
			i += int(skip)
			continue
		}
		from := i - s.window + 1
		for n := s.head[h]; n != 0; n = s.next[n-1] {
			p := s.patterns[n-1]
			if to := from + len(p); to <= len(data) && string(data[from:to]) == p {
				found(span{from, to})
			}
		}
		i++
	}
}

// undecided returns where the longest end of data begins that is the beginning
// of a pattern, or len(data).
func (s *Scrubber) undecided(data []byte) int {
	for i := max(0, len(data)-s.longest+1); i < len(data); i++ {
		tail := data[i:]
		for _, n := range s.first[tail[0]] {
			if p := s.patterns[n]; len(tail) < len(p) && p[:len(tail)] == string(tail) {
				return i
			}
		}
	}
	return len(data)
}

// Header scrubs the values of a header in place, deletes what has a secret in
// its name and returns how many occurrences it found. Call it for trailers too.
func (s *Scrubber) Header(h http.Header) int {
	hits := 0
	for name, values := range h {
		if s.named(name) {
			delete(h, name)
			hits++
			continue
		}
		for i, v := range values {
			var clean []byte
			s.find([]byte(v), func(at span) {
				if clean == nil {
					clean = []byte(v)
				}
				redact(clean[at.from:at.to])
				hits++
			})
			if clean != nil {
				values[i] = string(clean)
			}
		}
	}
	return hits
}

// named says whether a header's name holds one of the secrets in any spelling
// and any case, since net/http changes the case of names.
func (s *Scrubber) named(name string) bool {
	if s.window == 0 || len(name) < s.window {
		return false
	}
	name = strings.ToLower(name)
	return slices.ContainsFunc(s.patterns, func(p string) bool {
		return len(p) <= len(name) && strings.Contains(name, strings.ToLower(p))
	})
}

// contains says whether a text holds one of the secrets in any spelling.
func (s *Scrubber) contains(text string) bool {
	hit := false
	s.find([]byte(text), func(span) { hit = true })
	return hit
}

// Reader returns a body that reads as the given one does, scrubbed. It keeps
// back no more than an end that may be the beginning of a secret, so that a
// stream of events keeps flowing. hit, unless nil, is called for each
// occurrence, in the goroutine that reads.
func (s *Scrubber) Reader(body io.ReadCloser, hit func()) io.ReadCloser {
	if s.window == 0 {
		return body
	}
	if hit == nil {
		hit = func() {}
	}
	return &scrubbed{Scrubber: s, body: body, hit: hit}
}

// chunk is how many bytes of a body are read at a time.
const chunk = 32 << 10

// buffers are what readers of bodies that have ended leave to the next.
var buffers sync.Pool

type scrubbed struct {
	*Scrubber
	body io.ReadCloser
	hit  func()

	buf   []byte // space for the undecided end and a chunk
	kept  int    // bytes at the start of buf that wait for more to be decided
	mask  int    // of those, how many a match that began before them covers
	ready []byte // decided, part of buf
	err   error  // after ready
	spans []span
}

func (r *scrubbed) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for len(r.ready) == 0 {
		if r.err != nil {
			r.release()
			return 0, r.err
		}
		r.fill()
	}
	n := copy(p, r.ready)
	r.ready = r.ready[n:]
	return n, nil
}

// fill reads once and decides as many bytes as it can.
func (r *scrubbed) fill() {
	if r.buf == nil {
		// The undecided end is shorter than the longest pattern; twice that and
		// two chunks leave room to keep it apart from what is handed out.
		r.acquire(2*r.longest + chunk)
	}
	// What was kept sits at the end of the buffer while ready was handed out.
	keptAt := len(r.buf) - r.longest
	copy(r.buf, r.buf[keptAt:keptAt+r.kept])
	n, err := r.body.Read(r.buf[r.kept : r.kept+chunk])
	r.err = err
	data := r.buf[:r.kept+n]

	r.spans = r.spans[:0]
	r.find(data, func(at span) {
		// One that ends in what was kept has been seen in the last round.
		if at.to > r.kept {
			r.hit()
		}
		r.spans = append(r.spans, at)
	})
	decided := len(data)
	if err == nil {
		decided = r.undecided(data)
	}
	r.kept = copy(r.buf[keptAt:], data[decided:])

	redact(data[:min(r.mask, decided)])
	mask := max(0, r.mask-decided)
	for _, at := range r.spans {
		if at.from < decided {
			redact(data[at.from:min(at.to, decided)])
			mask = max(mask, at.to-decided)
		}
	}
	r.mask = mask
	r.ready = data[:decided]
}

func (r *scrubbed) acquire(size int) {
	if b, ok := buffers.Get().(*[]byte); ok && cap(*b) >= size {
		r.buf = (*b)[:size]
		return
	}
	r.buf = make([]byte, size)
}

// release gives the buffer back once all in it has been handed out. Only Read
// does so, since Close may come from another goroutine at any time: a body that
// is not read to its end leaves its buffer to the collector.
func (r *scrubbed) release() {
	if r.buf != nil {
		b := r.buf
		r.buf, r.ready = nil, nil
		buffers.Put(&b)
	}
}

func (r *scrubbed) Close() error { return r.body.Close() }

func redact(b []byte) {
	for i := range b {
		b[i] = redaction
	}
}
