package scrub

import "math/bits"

// matcher finds some patterns in whatever spelling.
//
// From the end of a text to its beginning it works out for each place from which bytes
// of the patterns on they are there up to their ends: one bit for each byte, all at
// once. The time that it takes depends on how long the patterns are and on where the text has
// escapes, not on what of the patterns is in it.
//
// It takes letters of either case for one.
type matcher struct {
	patterns []uint16
	longest  int
	words    int      // that bits for all of the patterns' bytes, one after another, take
	holds    []uint64 // words by byte: where the patterns have it
	firsts   []uint64 // the first byte of each
	lasts    []uint64
	breaks   []uint64 // where lines may end before a byte
	lines    bool     // they may somewhere
	at       []int    // where the bits of each pattern begin
}

func newMatcher(all []pattern, some ...uint16) *matcher {
	m := &matcher{patterns: some}
	size := 0
	for _, n := range some {
		m.at = append(m.at, size)
		size += len(all[n].text)
	}
	m.words = (size + 63) / 64
	space := make([]uint64, (3+256)*m.words)
	m.firsts, m.lasts, m.breaks, m.holds = space[:m.words], space[m.words:2*m.words], space[2*m.words:3*m.words], space[3*m.words:]
	for k, n := range some {
		p := &all[n]
		m.longest = max(m.longest, len(p.text))
		m.lines = m.lines || p.lines
		for i := range len(p.text) {
			place := m.at[k] + i
			word, bit := place/64, uint64(1)<<(place%64)
			c := p.text[i]
			m.holds[int(c)*m.words+word] |= bit
			if 'a' <= c|lower && c|lower <= 'z' {
				m.holds[int(c^lower)*m.words+word] |= bit
			}
			if i == 0 {
				m.firsts[word] |= bit
			}
			if i == len(p.text)-1 {
				m.lasts[word] |= bit
			}
			if p.lines && i >= wrap {
				m.breaks[word] |= bit
			}
		}
	}
	return m
}

// before works out the bits at a place from those after the byte there.
func (m *matcher) before(bits, after []uint64, c byte) {
	holds := m.holds[int(c)*m.words:][:len(bits)]
	lasts, after := m.lasts[:len(bits)], after[:len(bits)]
	carry := uint64(0)
	for i := len(bits) - 1; i >= 0; i-- {
		v := after[i]
		bits[i] = (v>>1 | carry | lasts[i]) & holds[i]
		carry = v << 63
	}
}

// places is how many places' bits are kept, more than an escape has bytes.
const places = 32

// match finds the patterns of a matcher that are in a range of data.
func (s *search) match(m *matcher, from, to int) {
	// Besides all bits there are those of what begins with none of maxEnds ends of lines,
	// and with up to one.
	w, kinds := m.words, 1
	if m.lines {
		kinds += maxEnds
	}
	if size := (places*kinds + 1) * w; cap(s.space) < size {
		s.space = make([]uint64, size)
	}
	s.space = s.space[:cap(s.space)]
	clear(s.space)
	row := func(kind, at int) []uint64 { return s.space[(kind*places+at%places)*w:][:w] }
	more := s.space[places*kinds*w:][:w]
	for at := to - 1; at >= from; at-- {
		s.work.steps += w
		now, c := row(0, at), s.data[at]
		m.before(now, row(0, at+1), c)
		if introduces[c] || m.lines {
			s.readings(m, at, row, more)
		}
		for i, begin := range m.firsts {
			if found := now[i] & begin; found != 0 && at < s.limit {
				s.occur(m, at, i, found)
			}
		}
	}
}

// readings adds to the bits at a place those for the escapes that may be there.
func (s *search) readings(m *matcher, at int, row func(kind, at int) []uint64, more []uint64) {
	var r readings
	if introduces[s.data[at]] {
		read(s.data[at:], &r)
	}
	now := row(0, at)
	for i := range r.list[:r.n] {
		e := &r.list[i]
		after := row(0, at+int(e.n))
		for k := int(e.size) - 1; k >= 0; k-- {
			s.work.steps += m.words
			m.before(more, after, e.text[k])
			after = more
		}
		for i, v := range more {
			now[i] |= v
		}
	}
	if !m.lines {
		return
	}
	none, one := row(1, at), row(2, at)
	copy(none, now)
	clear(one)
	for i := range r.list[:r.n] {
		if e := &r.list[i]; e.lineEnd() {
			s.work.steps += m.words
			afterNone, afterOne := row(1, at+int(e.n)), row(2, at+int(e.n))
			for i, v := range m.breaks {
				one[i] |= afterNone[i] & v
				now[i] |= (afterNone[i] | afterOne[i]) & v
			}
		}
	}
}

// occur notes occurrences that begin at a place, by bits of one word.
func (s *search) occur(m *matcher, at, word int, begins uint64) {
	for ; begins != 0; begins &= begins - 1 {
		bit := 64*word + bits.TrailingZeros64(begins)
		for k, n := range m.patterns {
			if m.at[k] == bit {
				s.work.follows++
				if to := s.patterns[n].follow(s.data, at, s.fold); to >= 0 {
					s.spans = append(s.spans, span{at, to, n})
				}
			}
		}
	}
}
