package echo

import "strings"

// index is a set of patterns, ready to be found.
//
// What is in a text as the pattern is, the common case, is found by [scan]s. Any
// other occurrence has a first escape, and before that the
// beginning of the pattern as it is. So each byte of the text that introduces an
// escape is looked at, together with the bytes before it, for places in patterns
// where the escape can stand.
//
// All of this takes letters of either case for one, and leaves it to the
// comparison that follows to tell.
type index struct {
	patterns []pattern
	found    []Found // what is reported of the values, by pattern
	window   int     // length of the shortest pattern
	longest  int     // of the longest
	tail     int     // longer than no occurrence of any is; by the lengths of values alone

	scans []*scan

	// The patterns that are looked for at all escapes, and those that are where the
	// gate says that they may be, in indexes of their own without scans. Nil: none.
	open, shut *index
	gate       *gate // nil without shut

	// Places where an escape can stand: within the first three bytes of a
	// pattern by what it stands for, later by the hash of the three bytes before
	// it. Of the latter places only every eighth is there.
	early  [256][]place
	places []place
	later  []uint32 // by hash: 1 + index into places
	bits   int      // of that hash

	// What tells soon that there is nothing to find.
	introducers []byte    // that matter
	holds       [256]bool // whether an escape that stands for a byte can be in a pattern
	first       [256]bool // the first bytes of patterns
	pairs       set       // the first two bytes of patterns
	grams       set       // any three bytes of patterns
}

// place is one in a pattern.
type place struct {
	pattern uint16
	at      uint32
	next    uint32 // with the same hash: 1 + index
}

const (
	// maxPatterns fits an index into 16 bits; some 4,000 values at once.
	maxPatterns = 1<<16 - 2
	// gram is how many bytes are hashed.
	gram = 3
	// stride is how far apart the places of later are.
	stride = 8
	// lower, set in a byte, makes letters of either case one. Some other bytes
	// become one too.
	lower = 0x20
)

// mix hashes the last three of four bytes, given as a little-endian number.
func mix(four uint32, bits int) uint32 {
	return (four | lower<<24 | lower<<16 | lower<<8 | 0xFF) * 0x9E3779B1 >> (32 - bits)
}

// mixAt hashes the first three bytes of a text.
func mixAt[text string | []byte](t text, bits int) uint32 {
	return mix(uint32(t[0])<<8|uint32(t[1])<<16|uint32(t[2])<<24, bits)
}

// set is one of small numbers.
type set []uint64

func newSet(bits int) set              { return make(set, 1<<bits/64) }
func (s set) add(i uint32)             { s[i/64] |= 1 << (i % 64) }
func (s set) has(i uint32) bool        { return s[i/64]>>(i%64)&1 != 0 }
func pairOf(first, second byte) uint32 { return uint32(first|lower)<<8 | uint32(second|lower) }

// newIndex takes one pattern at least.
func newIndex(patterns []pattern, found []Found) *index {
	x := &index{patterns: patterns[:min(len(patterns), maxPatterns)], found: found}
	x.window = len(patterns[0].text)
	var open, shut []uint16
	var texts []string
	for i := range x.patterns {
		p := &x.patterns[i]
		x.window, x.tail = min(x.window, len(p.text)), max(x.tail, p.span)
		if gated(p.text) {
			shut, texts = append(shut, uint16(i)), append(texts, p.text)
		} else {
			open = append(open, uint16(i))
		}
	}
	x.scans = newScans(x.patterns)
	if len(open) > 0 {
		x.open = newTables(x.patterns, open)
	}
	if len(shut) > 0 {
		x.shut, x.gate = newTables(x.patterns, shut), newGate(texts)
	}
	return x
}

// newTables returns an index of some patterns for what has escapes.
func newTables(patterns []pattern, some []uint16) *index {
	x := &index{patterns: patterns}
	places := 0
	for _, i := range some {
		p := &x.patterns[i]
		x.longest = max(x.longest, len(p.text))
		places += 2 + len(p.text)/stride
		if p.lines || strings.Contains(p.text, "\n") {
			x.holds['\n'], x.holds['\r'] = true, true
		}
	}
	x.introducers = []byte(`%\&`)
	if x.holds['\n'] {
		x.introducers = append(x.introducers, '\n')
	}
	for x.bits = 8; 1<<x.bits < 2*places && x.bits < 18; {
		x.bits++
	}
	x.places = make([]place, 0, places)
	x.later = make([]uint32, 1<<x.bits)
	x.grams = newSet(x.gramBits())
	x.pairs = newSet(16)
	for _, i := range some {
		x.add(i)
	}
	return x
}

// gramBits is the size of the hash for grams, of which there are stride times
// as many as places. They are sparse: hardly any that is looked up is there.
func (x *index) gramBits() int { return x.bits + 6 }

func (x *index) add(i uint16) {
	text := x.patterns[i].text
	for _, c := range []byte(text) {
		x.holds[c|lower], x.holds[c&^lower] = true, true
	}
	x.first[text[0]|lower] = true
	x.pairs.add(pairOf(text[0], text[1]))
	for j := range len(text) - gram {
		x.grams.add(mixAt(text[j:], x.gramBits()))
	}

	for j := range gram {
		x.early[text[j]|lower] = append(x.early[text[j]|lower], place{pattern: i, at: uint32(j)})
	}
	for j := gram; j < len(text); j = j&^(stride-1) + stride {
		h := mixAt(text[j-gram:], x.bits)
		x.places = append(x.places, place{pattern: i, at: uint32(j), next: x.later[h]})
		x.later[h] = uint32(len(x.places))
	}
}
