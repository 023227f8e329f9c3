package echo

import (
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
)

// scan finds the patterns of about one length in a text, where they stand without
// escapes.
//
// It looks at every step-th window of the text, and whether its hash is that of
// one of the last windows of a pattern, of which there are step. So its work
// depends on lengths alone, unless a whole window of a pattern is in the text: then
// there is a comparison more, which takes as long whether it finds anything or
// not. A window has [MinLength] bytes at least. It is at the end of a pattern
// because beginnings (sk-proj-) are known to everybody.
//
// This takes letters of either case for one, and leaves it to the comparison to
// tell.
type scan struct {
	window, step int
	longest      int // length of the longest pattern
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
	after   uint8 // bytes of the pattern that follow
}

const (
	maxStep = 24
	// lowers sets lower in eight bytes.
	lowers = lower * 0x0101010101010101
)

// classes are what divides patterns: a short one makes windows short, and does so
// to those of its class only.
var classes = []struct{ length, window int }{{MinLength, 8}, {16, 12}, {32, 16}}

func classOf(p *pattern) int {
	n := len(classes) - 1
	for len(p.text) < classes[n].length {
		n--
	}
	return n
}

// newScans returns a scan for each class of which there are patterns.
func newScans(patterns []pattern) (all []*scan) {
	for class := range classes {
		shortest, longest, count := 0, 0, 0
		for i := range patterns {
			if n := len(patterns[i].text); classOf(&patterns[i]) == class {
				if count++; shortest == 0 || n < shortest {
					shortest = n
				}
				longest = max(longest, n)
			}
		}
		if count == 0 {
			continue
		}
		x := &scan{longest: longest}
		x.window = classes[class].window
		x.step = min(shortest-x.window+1, maxStep)
		for i := range x.seed {
			x.seed[i] = rand.Uint64() | 1
		}
		count *= x.step
		heads := 1 << bits.Len(uint(count))
		x.shift = uint(bits.LeadingZeros64(uint64(heads) - 1))
		x.some, x.heads, x.ends = make([]uint64, heads), make([]uint32, heads), make([]end, 0, count)
		for i := range patterns {
			if classOf(&patterns[i]) == class {
				x.add(uint16(i), patterns[i].text)
			}
		}
		all = append(all, x)
	}
	return all
}

func (x *scan) add(pattern uint16, text string) {
	for after := range x.step {
		window := []byte(text[len(text)-after-x.window : len(text)-after])
		h := x.hash(window)
		x.some[h>>x.shift] |= 1 << (h & 63)
		head := &x.heads[h>>6&uint64(len(x.heads)-1)]
		x.ends = append(x.ends, end{hash: h, next: *head, pattern: pattern, after: uint8(after)})
		*head = uint32(len(x.ends))
	}
}

// hash is that of a window. It is made of products of 128 bits, as wyhash is, so
// that each bit of the seed changes all.
func (x *scan) hash(w []byte) uint64 {
	switch x.window {
	case 8:
		return hash8((*[8]byte)(w), x.seed[0], x.seed[1])
	case 12:
		return hash12((*[12]byte)(w), x.seed[0], x.seed[1])
	default:
		return hash16((*[16]byte)(w), x.seed[0], x.seed[1])
	}
}

func hash8(w *[8]byte, a, b uint64) uint64 {
	return product(word(w[:])^a, b)
}

func hash12(w *[12]byte, a, b uint64) uint64 {
	return product(word(w[:8])^a, word(w[4:])^b)
}

func hash16(w *[16]byte, a, b uint64) uint64 {
	return product(word(w[:8])^a, word(w[8:])^b)
}

func word(b []byte) uint64 { return binary.LittleEndian.Uint64(b) | lowers }

func product(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

// plain finds what has no escape in it.
func (s *search) plain() {
	for _, x := range s.scans {
		data := s.data[:min(len(s.data), s.limit-1+x.longest)]
		next := x.next16
		switch x.window {
		case 8:
			next = x.next8
		case 12:
			next = x.next12
		}
		for at := x.window; ; at += x.step {
			var h uint64
			if at, s.work.windows, h = next(data, at, s.work.windows); at > len(data) {
				break
			}
			s.compare(x, h, at)
		}
	}
}

// next8, next12 and next16 return where the next window ends that there may be,
// and its hash. They count the windows that they look up. The hash is all in which
// they differ: it has to be inlined.

func (x *scan) next8(data []byte, at, windows int) (int, int, uint64) {
	seed0, seed1, some, shift, step := x.seed[0], x.seed[1], x.some, x.shift&63, x.step
	for ; at <= len(data); at += step {
		windows++
		h := hash8((*[8]byte)(data[at-8:at]), seed0, seed1)
		if some[h>>shift]>>(h&63)&1 != 0 {
			return at, windows, h
		}
	}
	return at, windows, 0
}

func (x *scan) next12(data []byte, at, windows int) (int, int, uint64) {
	seed0, seed1, some, shift, step := x.seed[0], x.seed[1], x.some, x.shift&63, x.step
	for ; at <= len(data); at += step {
		windows++
		h := hash12((*[12]byte)(data[at-12:at]), seed0, seed1)
		if some[h>>shift]>>(h&63)&1 != 0 {
			return at, windows, h
		}
	}
	return at, windows, 0
}

func (x *scan) next16(data []byte, at, windows int) (int, int, uint64) {
	seed0, seed1, some, shift, step := x.seed[0], x.seed[1], x.some, x.shift&63, x.step
	for ; at <= len(data); at += step {
		windows++
		h := hash16((*[16]byte)(data[at-16:at]), seed0, seed1)
		if some[h>>shift]>>(h&63)&1 != 0 {
			return at, windows, h
		}
	}
	return at, windows, 0
}

// compare compares the patterns which have a window of that hash, which ends at a
// place.
func (s *search) compare(x *scan, h uint64, at int) {
	for n := x.heads[h>>6&uint64(len(x.heads)-1)]; n != 0; n = x.ends[n-1].next {
		e := &x.ends[n-1]
		if e.hash != h {
			continue
		}
		s.work.compared++
		p := &s.patterns[e.pattern]
		to := at + int(e.after)
		from := to - len(p.text)
		if from >= 0 && from < s.limit && to <= len(s.data) && equal(s.data[from:to], p.text, s.fold || p.fold) {
			s.spans = append(s.spans, span{from, to, e.pattern})
		}
	}
}

// work is what a search has done. Tests hold that it tells nothing.
type work struct {
	windows  int // that were looked up
	compared int // patterns that were compared with the text
}
