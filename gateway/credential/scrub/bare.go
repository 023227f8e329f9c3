package scrub

import (
	"strings"
	"sync"
)

// bare looks for patterns in what is around escapes, without these.
//
// They are taken off in the one way in which they can stand for what is [plain], and
// all ends of lines within digits with them: that depends on the text alone. So every
// occurrence comes to the plain characters of its pattern, but for a few after others,
// which an escape that began before them can take in.
func (s *search) bare() {
	data, reach := s.data, s.reach
	var buf *[block]byte
	n, from, done := 0, 0, 0 // what is in buf, where that begins in data, the last escape's end
	next := ahead{data: data}
	for at := 0; ; {
		if at = next.from(at); at == len(data) {
			break
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
			s.work.escapes++
			switch {
			case data[at] == '\n' && n > 0 && buf[n-1] == '\r':
				n--
			case c != '\n' && c != '\r':
				buf[n] = c
				n++
			}
			at += size
			if n+reach >= block {
				s.within(buf[:n], from, at)
				n, from = copy(buf[:], buf[n-reach:n]), at
			}
			done, size = at, 0
			for end := min(len(data), done+reach); at < end; at++ {
				if begins[data[at]] {
					if c, size = unescape(data, at); size > 0 {
						break
					}
				}
				buf[n] = data[at]
				n++
			}
		}
		s.within(buf[:n], from, at)
	}
}

// within looks for patterns in what a range of data says.
func (s *search) within(text []byte, from, to int) {
	for _, x := range s.scans {
		if x.near > 0 {
			s.look(x, text, x.near, from, to)
		}
	}
}

const (
	// taken is how many plain characters what comes before can take in: %252541 those
	// that follow a percent sign.
	taken = 6
	// block is how much is looked at together.
	block = 2 << 10
)

var blocks = sync.Pool{New: func() any { return new([block]byte) }}

// plain is what escapes are taken off for.
func plain(c byte) bool { return c >= ' ' && c <= '~' && c != '%' && c != '\\' && c != '&' && c != ';' }

// begins is the set of what begins an escape.
var begins = func() (table [256]bool) {
	for _, c := range []byte(escapes) {
		table[c] = true
	}
	return table
}()

// unescape returns the one plain character that an escape at a place may stand for, or
// the end of a line. There is none where the size is 0.
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
