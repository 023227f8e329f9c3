package echo

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
)

// gate tells where in a text there may be occurrences with an escape, in a time that
// depends on the text and not on what the patterns say, unless the text has nearly
// all of a pattern's last characters at once.
//
// Where there are escapes it looks up bytes of the text as it is, at places so far
// apart that one of them is in the end of whatever pattern, and around escapes so of
// the text without them. They are taken off in the one way in which they can stand
// for what a [gated] pattern is made of, and all ends of lines with them. Every
// occurrence comes to its pattern so, but for a few characters at its beginning,
// which an escape that began before it can take in.
type gate struct {
	apart     int    // how far places are
	low, high uint64 // of the hash; nobody outside knows them
	shift     int
	soon      set // by the hash's first bits
	grams     map[uint64]struct{}
}

const (
	// long is how many bytes are looked up at a place.
	long = 12
	// The next place is at least so far, which lets patterns be short, and at most so
	// far. Half of what the shortest pattern allows keeps what is looked up to the
	// patterns' ends: how they begin may be known.
	leastApart, mostApart = 4, 16
	// taken is how many characters of an occurrence what comes before can take in:
	// %252541 ones that follow a percent sign.
	taken = 6
	// block is how much without escapes is looked at together.
	block = 2 << 10
)

// gated says whether a gate finds a pattern.
func gated(text string) bool {
	return len(text) >= taken+long+leastApart-1 && strings.IndexFunc(text, func(c rune) bool { return c >= 0x80 || !plain(byte(c)) }) < 0
}

// plain is what an escape can stand for in a pattern with a gate.
func plain(c byte) bool { return c >= ' ' && c <= '~' && c != '%' && c != '\\' && c != '&' && c != ';' }

func newGate(texts []string) *gate {
	g := &gate{apart: mostApart, low: rand.Uint64() | 1, high: rand.Uint64() | 1, grams: make(map[uint64]struct{})}
	for _, t := range texts {
		g.apart = min(g.apart, max(leastApart, (len(t)-taken-long+1)/2))
	}
	for _, t := range texts {
		for i := range g.apart {
			end := len(t) - i
			g.grams[g.hash([]byte(t[end-long:end]))] = struct{}{}
		}
	}
	size := 14
	for 1<<size < 32*len(g.grams) && size < 20 {
		size++
	}
	g.shift, g.soon = 64-size, newSet(size)
	for h := range g.grams {
		g.soon.add(uint32(h >> g.shift))
	}
	return g
}

// fold makes letters of either case one.
const fold = lower * 0x0101010101010101

// hash takes letters of either case for one.
func (g *gate) hash(text []byte) uint64 {
	return (binary.LittleEndian.Uint64(text)|fold)*g.low + uint64(binary.LittleEndian.Uint32(text[8:])|fold&0xFFFFFFFF)*g.high
}

// find looks up the places from one on. It returns the first where something is, if
// any, or else the first that is too near to the text's end.
func (g *gate) find(text []byte, at int) (place int, found bool) {
	soon, shift, apart, low, high := g.soon, g.shift&63, g.apart, g.low, g.high
	for t := text[min(at, len(text)):]; len(t) >= long; t = t[apart:] {
		h := (binary.LittleEndian.Uint64(t)|fold)*low + uint64(binary.LittleEndian.Uint32(t[8:12])|fold&0xFFFFFFFF)*high
		if i := h >> shift; soon[i/64]>>(i%64)&1 != 0 {
			if _, ok := g.grams[h]; ok {
				return len(text) - len(t), true
			}
		}
		if len(t) < apart+long {
			return len(text) - len(t) + apart, false
		}
	}
	return at, false
}

// spans returns where there may be occurrences with an escape that are no longer than
// most.
func (g *gate) spans(data []byte, most int) (all []span) {
	add := func(from, to int) { all = append(all, span{from: max(0, from-most), to: min(len(data), to+most)}) }
	if !g.unescaped(data, add) {
		return nil
	}
	for at, found := g.find(data, 0); found; at, found = g.find(data, at+g.apart) {
		add(at, at+long)
	}
	if len(all) < 2 {
		return all
	}
	slices.SortFunc(all, func(a, b span) int { return a.from - b.from })
	n := 0
	for _, s := range all[1:] {
		if last := &all[n]; s.from <= last.to {
			last.to = max(last.to, s.to)
		} else {
			n++
			all[n] = s
		}
	}
	return all[:n+1]
}

var blocks = sync.Pool{New: func() any { return new([block]byte) }}

// unescaped calls add with parts of data that come to something around escapes, and
// returns whether there are any.
func (g *gate) unescaped(data []byte, add func(from, to int)) bool {
	reach := long + g.apart - 1 // at the end of a pattern, one place of which is looked up
	var buf *[block]byte
	var n, from, done int // what is in buf begins somewhere; the last escape's end
	look := func(at int) {
		next, found := g.find(buf[:n], 0)
		if found {
			add(from, at)
		}
		for found {
			next, found = g.find(buf[:n], next+g.apart)
		}
		n, from = copy(buf[:], buf[min(next, n):n]), at
	}
	put := func(c byte, at int) {
		if n == block {
			look(at)
		}
		buf[n] = c
		n++
	}
	next := ahead{data: data}
	for at := 0; ; {
		if at = next.from(at); at == len(data) {
			return buf != nil
		}
		c, size := unescape(data, at)
		if size == 0 {
			at++
			continue
		}
		if buf == nil {
			buf = blocks.Get().(*[block]byte)
			defer blocks.Put(buf)
		}
		from = max(done, at-reach)
		n = copy(buf[:], data[from:at])
		for size > 0 {
			switch {
			case data[at] == '\n' && n > 0 && buf[n-1] == '\r':
				n--
			case c != '\n' && c != '\r':
				put(c, at)
			}
			at += size
			done, size = at, 0
			for at < min(len(data), done+reach) {
				if begins[data[at]] {
					if c, size = unescape(data, at); size > 0 {
						break
					}
				}
				put(data[at], at)
				at++
			}
		}
		look(at)
	}
}

// escapes begin what is taken off.
const escapes = `%\&` + "\n"

// begins is the set of them.
var begins = func() (table [256]bool) {
	for _, c := range []byte(escapes) {
		table[c] = true
	}
	return table
}()

// ahead finds them in a text.
type ahead struct {
	data []byte
	next [len(escapes)]int // 1 + where each is, or the end; 0: unknown
}

// from returns where the first is from a place on, or where the text ends.
func (a *ahead) from(at int) int {
	first := len(a.data)
	for i := range a.next {
		if a.next[i] <= at {
			a.next[i] = len(a.data) + 1
			if k := bytes.IndexByte(a.data[at:], escapes[i]); k >= 0 {
				a.next[i] = at + k + 1
			}
		}
		first = min(first, a.next[i]-1)
	}
	return first
}

// unescape returns the one character that an escape at a place may stand for in a
// pattern with a gate, or the end of a line. There is none where the size is 0.
func unescape(data []byte, at int) (c byte, size int) {
	text := data[at:]
	if text[0] == '\n' {
		if at > 0 && len(text) > 1 && beforeEnd[data[at-1]] && afterEnd[text[1]] {
			return '\n', 1
		}
		return 0, 0
	}
	if c, n, sure := peek(text); sure {
		if n > 0 && (plain(c) || c == '\n' || c == '\r') {
			return c, n
		}
		return 0, 0
	}
	var r readings
	read(text, &r)
	for i := range r.list[:r.n] {
		if e := &r.list[i]; e.lineEnd() || e.size == 1 && plain(e.text[0]) {
			return e.text[0], int(e.n)
		}
	}
	return 0, 0
}

// beforeEnd and afterEnd are what may be before and after the end of a line within
// digits, some of them escaped.
var beforeEnd, afterEnd = func() (before, after [256]bool) {
	for c := range 256 {
		digit := alphanumeric(byte(c)) || strings.IndexByte("+/-_", byte(c)) >= 0
		before[c] = digit || strings.IndexByte(";\r\n", byte(c)) >= 0
		after[c] = digit || strings.IndexByte(introducers, byte(c)) >= 0
	}
	return before, after
}()
