package placeholder

import (
	"bytes"
	"crypto/subtle"
	"slices"
	"strings"
)

// Kind is how a text spells characters.
type Kind byte

// Kinds of text.
const (
	Raw  Kind = iota // as they are
	Form             // percent-encoded, or as they are (URL Standard, application/x-www-form-urlencoded)
	JSON             // as \u and four digits, or as they are (RFC 8259, section 7)
)

// Set finds the placeholders that one sandbox may hold. The nil Set finds none. It is safe
// for concurrent use.
type Set struct {
	held     []Held
	starts   []start
	least    int         // of the lengths of the starts, in bytes
	shift    [4096]uint8 // how far a search may go on after two bytes: see next
	most     int         // characters of the longest placeholder
	shortest int         // characters of the shortest
	firsts   [256]bool   // characters that one begins with
}

// start is a text that some placeholders begin with: no encoding changes it, and all of it
// is public.
type start struct {
	text []byte
	held []int // which
}

// New returns the Set of some placeholders, nil for none.
func New(held []Held) *Set {
	if len(held) == 0 {
		return nil
	}
	s := &Set{held: held}
	for i, h := range held {
		text := h.Text[:h.Public]
		s.firsts[text[0]] = true
		if n := strings.IndexByte(text, ':'); n >= 0 { // which forms and URLs spell otherwise
			text = text[:n]
		}
		s.most = max(s.most, len(h.Text))
		if i == 0 || len(h.Text) < s.shortest {
			s.shortest = len(h.Text)
		}
		s.add(text, i)
	}
	s.least = len(s.starts[0].text)
	for _, t := range s.starts {
		s.least = min(s.least, len(t.text))
	}
	for i := range s.shift {
		s.shift[i] = uint8(min(s.least-1, 255))
	}
	for _, t := range s.starts {
		for i := 1; i < s.least; i++ {
			b := block(t.text[i-1], t.text[i])
			s.shift[b] = min(s.shift[b], uint8(min(s.least-1-i, 255)))
		}
	}
	return s
}

func (s *Set) add(text string, held int) {
	for i := range s.starts {
		if string(s.starts[i].text) == text {
			s.starts[i].held = append(s.starts[i].held, held)
			return
		}
	}
	s.starts = append(s.starts, start{[]byte(text), []int{held}})
}

func block(a, b byte) int { return int(a)<<4&0xfff ^ int(b) }

// In reports whether a placeholder is in a text.
func (s *Set) In(text []byte, k Kind) bool {
	if s == nil {
		return false
	}
	_, found, _, _ := s.find(text, 0, k, true)
	return found
}

// Of returns the credentials whose placeholders are in a text, each once.
func (s *Set) Of(text string, k Kind) (names []string) {
	if s == nil {
		return nil
	}
	data := []byte(text)
	for from := 0; ; {
		m, found, _, _ := s.find(data, from, k, true)
		if !found {
			return names
		}
		if from = m.end; !slices.Contains(names, m.held.Credential) {
			names = append(names, m.held.Credential)
		}
	}
}

// Is returns the credential whose placeholder a text is.
func (s *Set) Is(text string) (credential string, is bool) {
	if s == nil || len(text) > s.most {
		return "", false
	}
	m, found, _, _ := s.at([]byte(text), 0, Raw)
	if !found || m.end != len(text) {
		return "", false
	}
	return m.held.Credential, true
}

// Text returns the newest placeholder of a credential, "" for none.
func (s *Set) Text(credential string) (text string) {
	if s == nil {
		return ""
	}
	for _, h := range s.held {
		if h.Credential == credential {
			text = h.Text
		}
	}
	return text
}

// OfName returns the credential whose placeholder's random part is in the name of a host,
// whatever the letters' case; "" for none.
func (s *Set) OfName(host string) string {
	if s == nil {
		return ""
	}
	host = strings.ToLower(host)
	for _, h := range s.held {
		if strings.Contains(host, strings.ToLower(h.Text[h.Public:])) {
			return h.Credential
		}
	}
	return ""
}

// Replace replaces the placeholders in a text: see [Set.Stream].
func (s *Set) Replace(text string, k Kind, instead func(credential string) ([]byte, error)) (string, error) {
	var out strings.Builder
	t := s.Stream(k, instead)
	t.Feed([]byte(text), true)
	for {
		p, err := t.Next()
		if err != nil || p == nil {
			return out.String(), err
		}
		out.Write(p)
	}
}

// match is a placeholder in a text.
type match struct {
	at, end int
	held    *Held
}

// find looks for the first placeholder in data from a position on, at which a character
// begins. Without one, all that is before held is part of none. From there on there may be
// the beginning of one; from sure on there is, but for the part that is compared in
// constant time. last says that nothing follows data.
func (s *Set) find(data []byte, from int, k Kind, last bool) (m match, found bool, held, sure int) {
	held, sure = len(data), len(data)
	if k == Raw || plain(data[from:], k) {
		for at := from; ; at++ {
			if at = s.next(data, at); at < 0 {
				break
			}
			if k == JSON && at > from && data[at-1] == '\\' {
				return s.findSlowly(data, from, k, last)
			}
			m, found, more, _ := s.at(data, at, k) // whose start is whole, or nearly
			if found {
				return m, true, at, at
			}
			if more && !last {
				return match{}, false, at, at
			}
		}
		if !last {
			held = len(data) - s.beginning(data[from:])
		}
		if k == JSON && held > from && data[held-1] == '\\' {
			return s.findSlowly(data, from, k, last)
		}
		return match{}, false, held, sure
	}
	return s.findSlowly(data, from, k, last)
}

// plain says that no character is spelled otherwise than as it is.
func plain(data []byte, k Kind) bool {
	if k == Form {
		return bytes.IndexByte(data, '%') < 0
	}
	return !bytes.HasSuffix(data, []byte(`\`)) && !bytes.Contains(data, []byte(`\u`))
}

// next is where the next start is that may begin a placeholder, -1 for nowhere. Of most
// texts it looks at few bytes: a whole placeholder is a run of its characters, and cannot
// stand between two looks that are as far apart as the shortest is long.
func (s *Set) next(data []byte, from int) int {
	for at := from + s.shortest - 1; at < len(data); at = from + s.shortest - 1 {
		if !ours[data[at]] {
			from = at + 1
			continue
		}
		begin, end := at, at+1
		for begin > from && ours[data[begin-1]] {
			begin--
		}
		for end < len(data) && ours[data[end]] {
			end++
		}
		from = begin
		if end == len(data) {
			break // more of it may come
		}
		if end-begin >= s.shortest {
			if found := s.nextIn(data[:end], begin); found >= 0 {
				return found
			}
		}
		from = end + 1
	}
	return s.nextIn(data, from)
}

// nextIn is where the next start is, -1 for nowhere (Wu and Manber, A fast algorithm for
// multi-pattern searching, 1994, with blocks of two bytes).
func (s *Set) nextIn(data []byte, from int) int {
	for i := from + s.least - 1; i < len(data); {
		n := s.shift[block(data[i-1], data[i])]
		if n > 0 {
			i += int(n)
			continue
		}
		at := i - s.least + 1
		for _, t := range s.starts {
			if bytes.HasPrefix(data[at:], t.text) || len(data)-at < len(t.text) && bytes.HasPrefix(t.text, data[at:]) {
				return at
			}
		}
		i++
	}
	return -1
}

// beginning is how many bytes at the end of data may be the beginning of a start.
func (s *Set) beginning(data []byte) int {
	longest := 0
	for _, t := range s.starts {
		for n := min(len(t.text)-1, len(data)); n > longest; n-- {
			if bytes.Equal(data[len(data)-n:], t.text[:n]) {
				longest = n
			}
		}
	}
	return longest
}

// findSlowly is find where characters are spelled otherwise.
func (s *Set) findSlowly(data []byte, from int, k Kind, last bool) (_ match, found bool, held, sure int) {
	for at := from; at < len(data); {
		c, n, partly := character(data[at:], k)
		if !s.firsts[c] && !partly {
			at += n
			continue
		}
		m, found, more, begun := s.at(data, at, k)
		switch {
		case found:
			return m, true, at, at
		case more && !last && begun:
			return match{}, false, at, at
		case more && !last:
			return match{}, false, at, len(data)
		}
		at += n
	}
	return match{}, false, len(data), len(data)
}

// at says whether a placeholder is at a position. more says that what is there up to the
// end of data may be the beginning of one; begun, that this has a whole start.
func (s *Set) at(data []byte, at int, k Kind) (m match, found, more, begun bool) {
	text, end, cut := make([]byte, 0, 96), at, false
	for len(text) < s.most {
		c, n, partly := character(data[end:], k)
		if cut = n == 0 || partly; cut || !ours[c] {
			break
		}
		text = append(text, c)
		end += n
		if len(text) == s.least && !s.starting(text) {
			return match{}, false, false, false
		}
	}
	for i := range s.held {
		h := &s.held[i]
		n := min(len(text), h.Public)
		switch {
		case string(text[:n]) != h.Text[:n]:
		case len(text) < len(h.Text):
			more, begun = more || cut, begun || cut && len(text) >= s.least
		case subtle.ConstantTimeCompare(text[:len(h.Text)], []byte(h.Text)) == 1:
			m, found = match{at, at + spelled(data[at:], k, len(h.Text)), h}, true
		}
	}
	return m, found, more, begun
}

// spelled is how many bytes the first characters of data take.
func spelled(data []byte, k Kind, characters int) (size int) {
	for range characters {
		_, n, _ := character(data[size:], k)
		size += n
	}
	return size
}

// starting says whether a text that is as long as the shortest start begins one.
func (s *Set) starting(text []byte) bool {
	for _, t := range s.starts {
		if bytes.HasPrefix(t.text, text) {
			return true
		}
	}
	return false
}

// ours are the characters that placeholders have.
var ours = func() (is [256]bool) {
	for _, c := range "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz._~-:" {
		is[c] = true
	}
	return is
}()

// character reads a character and says how many bytes it takes. partly says that there may
// be more of it.
func character(p []byte, k Kind) (c byte, n int, partly bool) {
	if len(p) == 0 {
		return 0, 0, false
	}
	switch {
	case k == Form && p[0] == '%':
		return hex(p, 1, 2)
	case k == JSON && p[0] == '\\':
		if len(p) == 1 {
			return 0, 1, true
		}
		if p[1] != 'u' {
			return 0, 2, false // no placeholder has what it stands for
		}
		if zeros := p[2:min(4, len(p))]; string(zeros) != "00"[:len(zeros)] {
			return 0, 2, false
		}
		return hex(p, 4, 2)
	}
	return p[0], 1, false
}

// hex reads the byte that p[at:at+digits] spells.
func hex(p []byte, at, digits int) (c byte, n int, partly bool) {
	for i := at; i < at+digits; i++ {
		if i >= len(p) {
			return 0, len(p), true
		}
		d := strings.IndexByte("0123456789abcdef", p[i]|0x20)
		if d < 0 || p[i]|0x20 != p[i] && p[i] < 'A' {
			return 0, at, false
		}
		c = c<<4 | byte(d)
	}
	return c, at + digits, false
}
