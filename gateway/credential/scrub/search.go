package scrub

import (
	"bytes"
	"slices"
	"strings"
)

// index is a set of patterns, ready to be found.
type index struct {
	patterns []pattern
	found    []Found // what is reported of the values, by pattern
	window   int     // length of the shortest pattern
	tail     int     // longer than no occurrence of any is; by the lengths of values alone
	whole    bool    // no text ends with a line: all lines of some value are too short to be values of their own

	scans []*scan
	reach int // how many bytes of a text its scans need on either side of an escape

	// loose are the patterns that are not the same in a text without its escapes, nil
	// if there are none.
	loose *matcher
}

// maxPatterns fits an index into 16 bits; some 4,000 values at once.
const maxPatterns = 1<<16 - 2

// newIndex takes one pattern at least.
func newIndex(patterns []pattern, found []Found) *index {
	x := &index{patterns: patterns[:min(len(patterns), maxPatterns)], found: found}
	x.window = len(patterns[0].text)
	var loose []uint16
	for i := range x.patterns {
		p := &x.patterns[i]
		x.window, x.tail = min(x.window, len(p.text)), max(x.tail, p.span)
		if !p.anchor().bare {
			loose = append(loose, uint16(i))
		}
	}
	x.scans = newScans(x.patterns)
	for _, scan := range x.scans {
		if scan.near > 0 {
			x.reach = max(x.reach, scan.window+scan.step-1)
		}
	}
	if len(loose) > 0 {
		x.loose = newMatcher(x.patterns, loose...)
	}
	return x
}

// span is a half-open range of bytes, and the pattern that is there.
type span struct {
	from, to int
	pattern  uint16
}

// search is one of a text.
type search struct {
	*index      // nil: there is nothing to find
	fold   bool // letters are the same in either case
	spans  []span
	work   work

	data   []byte
	limit  int
	likely []span   // where a window of a pattern is, and as far as an occurrence can go
	space  []uint64 // of matchers
}

// work is what a search has done. Tests hold that it tells nothing.
type work struct {
	windows int // that were looked up
	escapes int // that were taken off
	hits    int // windows that a pattern has
	steps   int // words of bits of the patterns that were worked out
	follows int // occurrences whose end was looked for
}

// run finds every occurrence in data that begins before a limit, overlapping ones
// included, in the order of where they begin, public ones last.
func (s *search) run(data []byte, limit int) {
	s.spans, s.likely = s.spans[:0], s.likely[:0]
	if s.index == nil || limit <= 0 {
		return
	}
	s.data, s.limit = data, limit
	for _, x := range s.scans {
		s.look(x, data, x.step, 0, 0)
	}
	if s.reach > 0 {
		s.bare()
	}
	if s.loose != nil {
		s.around()
	}
	if len(s.likely) > 0 {
		s.verify()
	}
	if len(s.spans) > 1 {
		slices.SortFunc(s.spans, func(a, b span) int {
			if a.from != b.from || s.found[a.pattern].Public == s.found[b.pattern].Public {
				return a.from - b.from
			}
			if s.found[a.pattern].Public {
				return 1
			}
			return -1
		})
	}
	s.data = nil
}

// first is what is reported of the spans as one: that of the first secret one, if any is.
func (s *search) first() Found {
	for _, at := range s.spans {
		if found := s.found[at.pattern]; !found.Public {
			return found
		}
	}
	return s.found[s.spans[0].pattern]
}

// look notes where patterns may be by a scan of a text, which stands for a range of
// data unless it is data itself.
func (s *search) look(x *scan, text []byte, step, from, to int) {
	for at := x.window; ; at += step {
		var h uint64
		if at, h = x.next(text, at, step, &s.work.windows); at > len(text) {
			return
		}
		x.with(h, func(e *end) {
			s.work.hits++
			begin, end := from, to
			if to == 0 {
				begin, end = at-x.window, at
			}
			most := s.patterns[e.pattern].span
			s.likely = append(s.likely, span{max(0, begin-most), min(len(s.data), end+min(most, int(e.after)*mostOfOne)), e.pattern})
		})
	}
}

// mostOfOne is how many bytes one character takes in an occurrence at most, with the
// ends of lines before it.
const mostOfOne = (1 + maxEnds) * maxEscape

// verify finds the patterns where they are likely.
func (s *search) verify() {
	slices.SortFunc(s.likely, func(a, b span) int {
		if a.pattern != b.pattern {
			return int(a.pattern) - int(b.pattern)
		}
		return a.from - b.from
	})
	for i := 0; i < len(s.likely); {
		n := s.likely[i].pattern
		m := newMatcher(s.patterns, n)
		for i < len(s.likely) && s.likely[i].pattern == n {
			from, to := s.likely[i].from, s.likely[i].to
			for i++; i < len(s.likely) && s.likely[i].pattern == n && s.likely[i].from <= to; i++ {
				to = max(to, s.likely[i].to)
			}
			s.match(m, from, to)
		}
	}
}

// around finds loose patterns wherever the text has something that begins an escape,
// as far as the patterns reach. A pattern that has none in it is found by its end.
func (s *search) around() {
	m, ahead := s.loose, ahead{data: s.data}
	from, to := 0, 0
	for at := ahead.from(0); at < len(s.data); at = ahead.from(at + 1) {
		if !m.lines && s.data[at] == '\n' && (at == 0 || s.data[at-1] != '\r') {
			continue
		}
		if at-m.longest > to {
			s.match(m, from, to)
			from = at - m.longest
		}
		if from >= s.limit {
			return
		}
		to = min(len(s.data), at+maxEscape+m.longest)
	}
	s.match(m, from, to)
}

// escapes begin what stands for something else: introducers, but for the CR of CRLF.
const escapes = `%\&` + "\n"

// ahead finds them in a text, but for those that what is beside them makes nothing of.
type ahead struct {
	data []byte
	next [len(escapes)]int // 1 + where each is, or the end; 0: unknown
}

// from returns where the first is from a place on, or where the text ends.
func (a *ahead) from(at int) int {
	first := len(a.data)
	for i, place := range a.next {
		if place <= at {
			place = a.find(i, at) + 1
			a.next[i] = place
		}
		first = min(first, place-1)
	}
	return first
}

func (a *ahead) find(i, at int) int {
	for {
		n := bytes.IndexByte(a.data[at:], escapes[i])
		if n < 0 {
			return len(a.data)
		}
		at += n
		if escapes[i] == '\n' {
			if at > 0 && beforeEnd[a.data[at-1]] {
				return at
			}
		} else if at+1 < len(a.data) && follows[a.data[at+1]]>>i&1 != 0 {
			return at
		}
		at++
	}
}

// follows tells after which of the escapes, by bit, a byte can be for them to be any.
var follows = func() (table [256]uint8) {
	for c := range table {
		for i, can := range []bool{unhex[c] <= 0xF, shorthand[c] != 0, strings.IndexByte("#algq", byte(c)) >= 0} {
			if can {
				table[c] |= 1 << i
			}
		}
	}
	return table
}()
