package echo

import (
	"bytes"
	"slices"
)

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

	data  []byte
	limit int
}

// run finds every occurrence in data that begins before a limit, overlapping ones
// included, in the order of where they begin, public ones last.
func (s *search) run(data []byte, limit int) {
	s.spans, s.data, s.limit = s.spans[:0], data, limit
	x := s.index
	if x == nil || limit <= 0 {
		return
	}
	s.plain()
	if x.open != nil {
		s.index = x.open
		s.escapes(data, 0, limit)
	}
	if x.shut != nil {
		s.index = x.shut
		for _, at := range x.gate.spans(data, x.tail) {
			s.escapes(data[at.from:at.to], at.from, limit-at.from)
		}
	}
	s.index, s.data = x, nil
	if len(s.spans) > 1 {
		slices.SortFunc(s.spans, func(a, b span) int {
			if a.from != b.from || x.found[a.pattern].Public == x.found[b.pattern].Public {
				return a.from - b.from
			}
			if x.found[a.pattern].Public {
				return 1
			}
			return -1
		})
	}
}

// first is what is reported of the spans as one: that of the first secret one, if any is.
func (s *search) first() Found {
	for _, at := range s.spans {
		if found := s.index.found[at.pattern]; !found.Public {
			return found
		}
	}
	return s.index.found[s.spans[0].pattern]
}

// escapes finds what has an escape in it, in a part of the text that begins
// somewhere.
func (s *search) escapes(data []byte, begin, limit int) {
	if limit <= 0 {
		return
	}
	before := len(s.spans)
	s.data, s.limit = data, limit
	for _, c := range s.introducers {
		for at := 0; at < len(data); at++ {
			n := bytes.IndexByte(data[at:], c)
			if at += n; n < 0 || at-s.longest >= limit {
				break
			}
			if s.alive(data, at) {
				s.escaped(at)
			}
		}
	}
	for i := range s.spans[before:] {
		at := &s.spans[before+i]
		at.from, at.to = at.from+begin, at.to+begin
	}
}

// equal compares a text with as much of a pattern, and takes no longer the more of
// it is equal.
func equal(data []byte, text string, fold bool) bool {
	var differs byte
	if fold {
		for i, c := range data {
			differs |= lowered[c] ^ lowered[text[i]]
		}
		return differs == 0
	}
	for i, c := range data {
		differs |= c ^ text[i]
	}
	return differs == 0
}

// lowered makes ASCII's letters lower case.
var lowered = func() (table [256]byte) {
	for c := range table {
		table[c] = byte(c)
		if 'A' <= c && c <= 'Z' {
			table[c] |= lower
		}
	}
	return table
}()

func equalByte(a, b byte, fold bool) bool {
	return a == b || fold && a|lower == b|lower && 'a' <= a|lower && a|lower <= 'z'
}

// alive says whether an escape in a text may be in an occurrence. It spares the
// rest most of its work.
func (x *index) alive(data []byte, at int) bool {
	c, n, sure := peek(data[at:])
	switch {
	case !sure:
		return true
	case n == 0 || !x.holds[c]:
		return false
	case at >= gram && x.within(data, at):
		return true
	case c == '\n' && at > 0 && data[at-1] == '\r':
		return true
	}
	return x.begins(data, at, c, n)
}

// within says whether the three bytes before a place may be in a pattern.
func (x *index) within(data []byte, at int) bool {
	return x.grams.has(mixAt(data[at-gram:], x.gramBits()))
}

// begins says whether an escape of n bytes that stands for c may be one of the
// first three characters of an occurrence.
func (x *index) begins(data []byte, at int, c byte, n int) bool {
	return at >= 1 && x.pairs.has(pairOf(data[at-1], c)) ||
		at >= 2 && x.pairs.has(pairOf(data[at-2], data[at-1])) ||
		x.follows(c, data[at+n:])
}

// follows says whether an occurrence may begin with a character and what a text
// begins with.
func (x *index) follows(c byte, text []byte) bool {
	switch {
	case !x.first[c|lower] || len(text) == 0:
		return false
	case x.pairs.has(pairOf(c, text[0])):
		return true
	case !introduces[text[0]]:
		return false
	}
	second, n, sure := peek(text)
	if sure {
		return n > 0 && x.pairs.has(pairOf(c, second))
	}
	var r readings
	read(text, &r)
	for i := range r.list[:r.n] {
		if x.pairs.has(pairOf(c, r.list[i].text[0])) {
			return true
		}
	}
	return false
}

// escaped finds the occurrences whose first escape is that at a place.
func (s *search) escaped(at int) {
	if s.data[at] == '\n' && at > 0 && s.data[at-1] == '\r' {
		at--
	}
	var r readings
	read(s.data[at:], &r)
	for i := range r.list[:r.n] {
		e := &r.list[i]
		if !s.holds[e.text[0]] {
			continue
		}
		if e.size > 1 || s.begins(s.data, at, e.text[0], int(e.n)) {
			for _, where := range s.early[e.text[0]|lower] {
				s.match(at, e, where.pattern, int(where.at))
			}
		}
		if at < gram || !s.within(s.data, at) {
			continue
		}
		for back := range min(stride, at-gram+1) {
			for n := s.later[mixAt(s.data[at-back-gram:], s.bits)]; n != 0; n = s.places[n-1].next {
				s.match(at, e, s.places[n-1].pattern, int(s.places[n-1].at)+back)
			}
		}
	}
}

// match finds the occurrence of a pattern whose first escape, at a place in
// data, stands for the pattern's byte i.
func (s *search) match(at int, e *reading, n uint16, i int) {
	p := &s.patterns[n]
	if i >= len(p.text) || i > at || at-i >= s.limit {
		return
	}
	took, ok := p.takes(i, e, s.fold)
	if !ok || !equal(s.data[at-i:at], p.text[:i], s.fold || p.fold) {
		return
	}
	begin, _ := state{i: i, at: at}.on(took, int(e.n))
	if to := p.follow(s.data, at-i, begin, s.fold); to >= 0 {
		s.spans = append(s.spans, span{at - i, to, n})
	}
}
