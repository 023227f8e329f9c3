package scrub

import (
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
)

// scan finds where patterns of about one length may be in a text that has no escapes,
// or none any more.
//
// It looks at every step-th window of the text, and whether its hash is that of
// one of the last windows of a pattern's [anchor], of which there are as many. So its
// work depends on lengths alone, unless a whole window of a pattern is in the text. A
// window has [MinLength] bytes at least. It is at the end because beginnings (sk-proj-)
// are known to everybody.
//
// This takes letters of either case for one, and leaves it to what follows to tell.
type scan struct {
	window int
	step   int // in a text as it is
	near   int // in a text without its escapes; 0: no pattern is looked for there
	// seed keeps the text's author from writing what has the hash of something else.
	seed [2]uint64

	// some says whether there may be a window: by the upper bits of its hash which
	// number, by the lower ones which bit of it.
	some  []uint64
	shift uint     // leaves those upper bits
	heads []uint32 // 1 + index into ends, by other bits
	ends  []end
}

// end is a window at the end of a pattern.
type end struct {
	hash    uint64
	next    uint32 // with the same head: 1 + index
	pattern uint16
	after   uint32 // bytes of the pattern that follow
}

const (
	// lower, set in a byte, makes letters of either case one. Some other bytes
	// become one too.
	lower = 0x20
	// lowers sets lower in eight bytes.
	lowers = lower * 0x0101010101010101
)

// classes are what divides patterns: a short one makes windows short, and does so
// to those of its class only. Hexadecimal takes twice the digits for as much of a value.
var classes = []struct {
	length, window int
	hex            bool
}{{MinLength, 8, false}, {16, 12, false}, {32, 16, false}, {16, 16, true}, {2*16 - (wrap - 1), longWindow, true}}

// class returns which a pattern is of whose anchor has a length.
func (p *pattern) class(length int) int {
	n := len(classes) - 1
	for length < classes[n].length || classes[n].hex && !p.fold {
		n--
	}
	return n
}

const (
	maxStep    = 24
	longWindow = 24
	// leastNear makes the shortest run in which a pattern is looked for without its
	// escapes 21 bytes long, 33 of hexadecimal; taken less after what is known.
	leastNear = 4
	enough    = taken + 24 + maxStep - 1
)

// anchor is the part of a pattern that ends in the windows that are looked up.
type anchor struct {
	to, length int
	bare       bool // it is the same in a text without escapes, but for taken bytes
	taken      int
}

// anchor returns the last run of plain characters that is long enough or else as long
// as any, or all of the pattern. Text that is known at its ends is no part of it.
func (p *pattern) anchor() (a anchor) {
	from, to := p.known.head, len(p.text)-p.known.tail
	if to-from < MinLength {
		from, to = 0, len(p.text)
	}
	run, lost := 0, taken
	for i := from; i > 0 && lost > 0 && plain(p.text[i-1]); i-- {
		lost--
	}
	for i := from; i <= to; i++ {
		if i < to && plain(p.text[i]) {
			run++
			continue
		}
		n := min(run, enough)
		if n >= max(classes[1].length, lost+classes[p.class(max(n, MinLength))].window+leastNear-1) && n >= a.length {
			a = anchor{i, n, true, lost}
		}
		run, lost = 0, taken
	}
	if !a.bare {
		a = anchor{to, to - from, false, 0}
	}
	return a
}

// newScans returns a scan for each class of which there are patterns.
func newScans(patterns []pattern) (all []*scan) {
	anchors := make([]anchor, len(patterns))
	of := make([]int, len(patterns))
	for i := range patterns {
		anchors[i] = patterns[i].anchor()
		of[i] = patterns[i].class(anchors[i].length)
	}
	for class := range classes {
		x := &scan{window: classes[class].window, step: maxStep}
		count := 0
		for i, a := range anchors {
			if of[i] != class {
				continue
			}
			count++
			x.step = min(x.step, a.length-x.window+1)
			if near := a.length - a.taken - x.window + 1; a.bare && (x.near == 0 || near < x.near) {
				x.near = near
			}
		}
		if count == 0 {
			continue
		}
		x.near = min(x.near, x.step)
		for i := range x.seed {
			x.seed[i] = rand.Uint64() | 1
		}
		count *= x.step
		heads := 1 << bits.Len(uint(count))
		x.shift = uint(bits.LeadingZeros64(uint64(heads) - 1))
		x.some, x.heads, x.ends = make([]uint64, heads), make([]uint32, heads), make([]end, 0, count)
		for i, a := range anchors {
			if of[i] == class {
				x.add(uint16(i), patterns[i].text, a.to)
			}
		}
		all = append(all, x)
	}
	return all
}

func (x *scan) add(pattern uint16, text string, to int) {
	for back := range x.step {
		window := []byte(text[to-back-x.window : to-back])
		h := x.hash(window)
		x.some[h>>x.shift] |= 1 << (h & 63)
		head := &x.heads[h>>6&uint64(len(x.heads)-1)]
		x.ends = append(x.ends, end{hash: h, next: *head, pattern: pattern, after: uint32(len(text) - to + back)})
		*head = uint32(len(x.ends))
	}
}

// hash is that of a window. It is made of products of 128 bits, as wyhash is, so
// that each bit of the seed changes all.
func (x *scan) hash(w []byte) uint64 {
	if x.window == longWindow {
		return hashLong((*[longWindow]byte)(w), x.seed[0], x.seed[1])
	}
	return hash(w, w[x.window-8:], x.seed[0], x.seed[1])
}

// hash is of a window of 8 to 16 bytes, by its first and its last 8.
func hash(first, last []byte, a, b uint64) uint64 { return product(word(first)^a, word(last)^b) }

func hashLong(w *[longWindow]byte, a, b uint64) uint64 {
	return product(product(word(w[:8])^a, word(w[8:16])^b)^word(w[16:]), a)
}

func word(b []byte) uint64 { return binary.LittleEndian.Uint64(b) | lowers }

func product(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

// next returns where the next window ends that there may be, of every step-th from the
// one on that ends at a place, and its hash. It counts those that it looks up. The two loops
// differ in the hash alone, which has to be inlined.
func (x *scan) next(data []byte, at, step int, windows *int) (int, uint64) {
	a, b, some, shift := x.seed[0], x.seed[1], x.some, x.shift&63
	window, from := x.window, at
	if window == longWindow {
		for ; at <= len(data); at += step {
			if h := hashLong((*[longWindow]byte)(data[at-longWindow:at]), a, b); some[h>>shift]>>(h&63)&1 != 0 {
				*windows += (at-from)/step + 1
				return at, h
			}
		}
	}
	for ; at <= len(data); at += step {
		if h := hash(data[at-window:at], data[at-8:at], a, b); some[h>>shift]>>(h&63)&1 != 0 {
			*windows += (at-from)/step + 1
			return at, h
		}
	}
	*windows += (at - from) / step
	return at, 0
}

// with calls found for each pattern that has a window of a hash.
func (x *scan) with(h uint64, found func(*end)) {
	for n := x.heads[h>>6&uint64(len(x.heads)-1)]; n != 0; n = x.ends[n-1].next {
		if e := &x.ends[n-1]; e.hash == h {
			found(e)
		}
	}
}
