package scrub

import (
	"bytes"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// reading is one way to understand the beginning of a text as an escaped
// character.
type reading struct {
	text [utf8.UTFMax]byte
	size uint8 // of text
	n    uint8 // bytes that it takes
}

// bytes returns what the escape stands for.
func (r *reading) bytes() []byte { return r.text[:r.size] }

// lineEnd says whether the escape stands for a part of the end of a line.
func (r *reading) lineEnd() bool {
	return r.size == 1 && (r.text[0] == '\n' || r.text[0] == '\r')
}

// readings are the ways to understand the beginning of one text. It has a
// fixed size, so that none is allocated for an escape.
type readings struct {
	list [8]reading
	n    int
}

func (r *readings) addByte(c byte, n int) {
	r.list[r.n] = reading{text: [utf8.UTFMax]byte{c}, size: 1, n: uint8(n)}
	r.n++
}

func (r *readings) addRune(c rune, n int) {
	next := &r.list[r.n]
	*next = reading{n: uint8(n)}
	next.size = uint8(utf8.EncodeRune(next.text[:], c))
	r.n++
}

const (
	// nesting is how many more times an escaped text may have been escaped in
	// the same way, as JSON is that quotes JSON.
	nesting = 2
	// maxRun is how many backslashes that can come to: one, or two, doubled
	// each time.
	maxRun = 8
	// maxEscape is how many bytes an escape can take: a pair of surrogates.
	maxEscape = 2 * (maxRun + 5)
)

// introducers begin what read understands. The last two only end lines.
const introducers = `%\&` + "\r\n"

// read finds out what escape a text begins with:
//
//   - percent-encoding, %2F, also twice or three times
//   - JSON's and its like (RFC 8259; JavaScript, Python, the shell): \n, \/,
//     \u002F, pairs of surrogates, \x2F, and a backslash before any other
//     punctuation; each also within strings within strings
//   - HTML's and XML's: &amp; &lt; &gt; &quot; &apos; &#47; &#x2F;, and with an
//     ampersand that is itself escaped
//   - the end of a line, LF or CRLF
//
// More than one reading is possible: %2541 is %41, or A that was encoded twice.
func read(text []byte, r *readings) {
	r.n = 0
	switch text[0] {
	case '%':
		r.percent(text)
	case '\\':
		r.backslash(text)
	case '&':
		r.ampersand(text)
	case '\n':
		r.addByte('\n', 1)
	case '\r':
		if len(text) > 1 && text[1] == '\n' {
			r.addByte('\n', 2)
		}
	}
}

// peek does the same for what is common, and much faster. If it is sure then
// the only reading takes n bytes and stands for c, or there is none and n is 0.
func peek(text []byte) (c byte, n int, sure bool) {
	switch text[0] {
	case '\n':
		return '\n', 1, true
	case '%':
		if len(text) < 3 {
			return 0, 0, false
		}
		hi, lo := unhex[text[1]], unhex[text[2]]
		if hi|lo > 0xF {
			return 0, 0, true
		}
		c = hi<<4 | lo
		return c, 3, c != '%'
	case '\\':
		if len(text) < 2 {
			return 0, 0, false
		}
		switch c = shorthand[text[1]]; c {
		case '\\':
			return 0, 0, false
		case 0:
			return 0, 0, true
		}
		return c, 2, true
	case '&':
		if len(text) < 6 {
			return 0, 0, false
		}
		switch text[1] {
		case 'a':
			// &amp;lang= is more common than what is nested.
			if string(text[1:5]) == "amp;" && strings.IndexByte("#alqg", text[5]) < 0 {
				return '&', 5, true
			}
			return 0, 0, false
		case '#', 'l', 'g', 'q':
			return 0, 0, false
		}
		return 0, 0, true
	}
	return 0, 0, false
}

// shorthand is what a backslash before a byte stands for; a backslash if that
// takes a closer look, and zero if it is nothing.
var shorthand = func() (table [256]byte) {
	for c := byte(' '); c <= '~'; c++ {
		if !alphanumeric(c) {
			table[c] = c
		}
	}
	table['b'], table['f'], table['n'], table['r'], table['t'] = '\b', '\f', '\n', '\r', '\t'
	table['u'], table['x'] = '\\', '\\'
	return table
}()

func (r *readings) percent(text []byte) {
	for at := 1; at <= 1+2*nesting; at += 2 {
		v, digits := number(text[at:], 16, 2)
		if digits < 2 {
			return
		}
		r.addByte(byte(v), at+2)
		if v != '%' {
			return
		}
	}
}

func (r *readings) backslash(text []byte) {
	run := 1
	for run < len(text) && run <= maxRun && text[run] == '\\' {
		run++
	}
	for n := 2; n <= min(run, maxRun); n *= 2 {
		r.addByte('\\', n)
	}
	if run > maxRun || run == len(text) {
		return
	}
	switch c := text[run]; c {
	case 'u':
		r.unicode(text, run+1)
	case 'x':
		v, digits := number(text[run+1:], 16, 2)
		if digits < 2 {
			return
		}
		r.addByte(byte(v), run+3)
		if v >= utf8.RuneSelf {
			r.addRune(v, run+3)
		}
	default:
		if shorthand[c] != 0 {
			r.addByte(shorthand[c], run+1)
		}
	}
}

// unicode reads the digits of \u, which begin at the given place, and the other
// half of a pair of surrogates.
func (r *readings) unicode(text []byte, at int) {
	hi, digits := number(text[at:], 16, 4)
	if digits < 4 {
		return
	}
	at += 4
	if !utf16.IsSurrogate(hi) {
		r.addRune(hi, at)
		return
	}
	for run := 0; at < len(text) && text[at] == '\\' && run < maxRun; run++ {
		at++
	}
	if at == len(text) || text[at] != 'u' || text[at-1] != '\\' {
		return
	}
	lo, digits := number(text[at+1:], 16, 4)
	if digits < 4 {
		return
	}
	if c := utf16.DecodeRune(hi, lo); c != utf8.RuneError {
		r.addRune(c, at+5)
	}
}

var entities = []struct {
	name string
	c    byte
}{{"amp;", '&'}, {"lt;", '<'}, {"gt;", '>'}, {"quot;", '"'}, {"apos;", '\''}}

func (r *readings) ampersand(text []byte) {
	at := 1
	for range 1 + nesting {
		r.entity(text, at)
		if !bytes.HasPrefix(text[at:], []byte("amp;")) {
			return
		}
		at += len("amp;")
	}
}

// entity reads what comes after an ampersand.
func (r *readings) entity(text []byte, at int) {
	rest := text[at:]
	if len(rest) > 0 && rest[0] == '#' {
		r.reference(text, at+1)
		return
	}
	for _, e := range entities {
		if len(rest) >= len(e.name) && string(rest[:len(e.name)]) == e.name {
			r.addByte(e.c, at+len(e.name))
			return
		}
	}
}

// reference reads what comes after &#.
func (r *readings) reference(text []byte, at int) {
	base := 10
	if at < len(text) && text[at]|0x20 == 'x' {
		base = 16
		at++
	}
	// Leading zeros are usual, as in &#039;.
	v, digits := number(text[at:], base, 7)
	if at += digits; digits > 0 && at < len(text) && text[at] == ';' && utf8.ValidRune(v) {
		r.addRune(v, at+1)
	}
}

// number reads up to most digits.
func number(text []byte, base, most int) (v rune, digits int) {
	for digits < min(most, len(text)) {
		d := unhex[text[digits]]
		if int(d) >= base {
			break
		}
		v = v*rune(base) + rune(d)
		digits++
	}
	return v, digits
}

// unhex is the value of a digit, or more than any.
var unhex = func() (table [256]uint8) {
	for c := range table {
		table[c] = 0xFF
		if v, err := strconv.ParseUint(string(rune(c)), 16, 8); err == nil {
			table[c] = uint8(v)
		}
	}
	return table
}()

func alphanumeric(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z'
}

// introduces is the set of introducers.
var introduces = func() (table [256]bool) {
	for _, c := range []byte(introducers) {
		table[c] = true
	}
	return table
}()
