package meter

import "bytes"

// scanner reads JSON (RFC 8259) as it comes in pieces of any size. It keeps no
// more than the text of one scalar's beginning, and where that stands. Text that is not
// JSON is bad for good, until it is reset.
//
// Levels count open containers from 1; an array around everything counts for
// none, since Gemini sends its stream as one.
type scanner struct {
	// scalar is told of each scalar of the first levels whose text is short enough
	// to be of interest. The text is valid during the call.
	scalar func(level int, kind byte, text []byte)
	// whole is called at the end of each document, and of each within an array
	// around everything.
	whole func()

	state   state
	depth   int
	around  int // 1 within an array around everything
	objects [maxDepth/64 + 1]uint64
	path    [maxLevel + 1]key // by level: the key that is read
	last    key               // of the value that is read, whatever its level
	naming  bool              // the string is a key
	hex     int               // digits of an escape that have come
	rune    rune
	text    [maxText]byte
	n       int   // of text; more than that is too long
	content int64 // bytes of strings that a model may have written
}

const (
	maxDepth = 256
	maxLevel = 4
	maxText  = 128
	// deep is the level from which on all is content: what providers put around it
	// is above.
	deep = 7
)

type state uint8

const (
	atValue state = iota // also where there is nothing yet
	atFirst              // of an array
	atKey
	atFirstKey
	atColon
	atNext
	inString
	inEscape
	inHex
	inWord
	bad
)

func (s *scanner) reset() {
	s.state, s.depth, s.around, s.naming, s.n = atValue, 0, 0, false, 0
	s.path, s.last = [maxLevel + 1]key{}, 0
}

// open tells whether a document has begun and not ended.
func (s *scanner) open() bool { return s.depth > 0 || s.state != atValue }

func (s *scanner) level() int { return s.depth - s.around }

func (s *scanner) object() bool { return s.objects[s.depth/64]&(1<<(s.depth%64)) != 0 }

func (s *scanner) write(p []byte) {
	for i := 0; i < len(p) && s.state != bad; i++ {
		if s.state == inString {
			from := i
			for i < len(p) && p[i] != '"' && p[i] != '\\' && p[i] >= ' ' {
				i++
			}
			s.add(p[from:i])
			if i == len(p) {
				return
			}
		}
		s.step(p[i])
	}
}

// add takes more of a string or a word.
func (s *scanner) add(b []byte) {
	if s.n <= maxText {
		n := copy(s.text[min(s.n, maxText):], b)
		if s.n += n; n < len(b) {
			s.n = maxText + 1
		}
	}
	s.weigh(int64(len(b)))
}

func (s *scanner) weigh(n int64) {
	if s.level() >= deep || s.state >= inString && s.state <= inHex && !s.naming && !s.last.envelope() {
		s.content += n
	}
}

func (s *scanner) step(c byte) {
	switch s.state {
	case inString:
		switch {
		case c == '"':
			s.closeString()
		case c == '\\':
			s.state = inEscape
		default:
			s.state = bad
		}
		return
	case inEscape:
		s.escape(c)
		return
	case inHex:
		s.unicode(c)
		return
	case inWord:
		if c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c == '.' || c == '-' || c == '+' || c == 'E' {
			s.add([]byte{c})
			return
		}
		if s.closeWord(); s.state == bad {
			return
		}
	}
	if c == ' ' || c == '\t' || c == '\n' || c == '\r' {
		return
	}
	switch s.state {
	case atFirst, atValue:
		if c == ']' && s.state == atFirst {
			s.close()
			return
		}
		s.begin(c)
	case atKey, atFirstKey:
		switch {
		case c == '"':
			s.state, s.naming, s.n = inString, true, 0
		case c == '}' && s.state == atFirstKey:
			s.close()
		default:
			s.state = bad
		}
	case atColon:
		s.state = atValue
		if c != ':' {
			s.state = bad
		}
	case atNext:
		switch {
		case c == ',' && s.object():
			s.state = atKey
		case c == ',':
			s.state = atValue
		case c == '}' && s.object(), c == ']' && !s.object():
			s.close()
		default:
			s.state = bad
		}
	}
}

// begin is the first byte of a value.
func (s *scanner) begin(c byte) {
	if s.depth > 0 && !s.object() {
		s.last = 0
	}
	switch {
	case c == '{', c == '[':
		if s.depth == maxDepth {
			s.state = bad
			return
		}
		if s.depth == 0 && c == '[' {
			s.around = 1
		}
		s.depth++
		bit := uint64(1) << (s.depth % 64)
		s.state = atFirst
		s.objects[s.depth/64] &^= bit
		if c == '{' {
			s.objects[s.depth/64] |= bit
			s.state = atFirstKey
		}
		if l := s.level(); l >= 1 && l <= maxLevel {
			s.path[l] = 0 // an array's values have none
		}
	case c == '"':
		s.state, s.naming, s.n = inString, false, 0
	case c >= '0' && c <= '9', c == '-', c == 't', c == 'f', c == 'n':
		s.state, s.n = inWord, 0
		s.add([]byte{c})
	default:
		s.state = bad
	}
}

func (s *scanner) close() {
	s.depth--
	s.last = 0
	if s.around == 1 && s.depth == 1 {
		s.whole()
	}
	s.ended()
}

// ended is the end of a value.
func (s *scanner) ended() {
	s.state = atNext
	if s.depth == 0 {
		s.whole()
		s.reset()
	}
}

func (s *scanner) closeString() {
	if !s.naming {
		s.tell('"')
		s.ended()
		return
	}
	s.last = 0
	if s.n <= maxText {
		s.last = keys[string(s.text[:s.n])]
		if s.last == 0 && s.n == len("model") && foldsToModel(s.text[:s.n]) {
			s.last = kModelAlike
		}
	}
	if l := s.level(); l >= 1 && l <= maxLevel {
		s.path[l] = s.last
	}
	s.naming, s.state = false, atColon
}

// closeWord is the end of a number or of true, false or null.
func (s *scanner) closeWord() {
	kind := s.text[0]
	switch kind {
	case 't', 'f', 'n':
		if w := string(s.text[:min(s.n, maxText)]); w != "true" && w != "false" && w != "null" {
			s.state = bad
			return
		}
	default:
		if kind = '0'; s.n > maxText || !number(s.text[:s.n]) { // none is so long
			s.state = bad
			return
		}
	}
	s.tell(kind)
	s.ended()
}

// number tells whether a text is one (RFC 8259, section 6).
func number(text []byte) bool {
	digits := func() bool {
		n := 0
		for n < len(text) && text[n] >= '0' && text[n] <= '9' {
			n++
		}
		text = text[n:]
		return n > 0
	}
	text = bytes.TrimPrefix(text, []byte("-"))
	if len(text) > 1 && text[0] == '0' && text[1] >= '0' && text[1] <= '9' || !digits() {
		return false
	}
	if rest, found := bytes.CutPrefix(text, []byte(".")); found {
		if text = rest; !digits() {
			return false
		}
	}
	if len(text) > 0 && text[0]|0x20 == 'e' {
		if text = text[1:]; len(text) > 0 && (text[0] == '+' || text[0] == '-') {
			text = text[1:]
		}
		return digits() && len(text) == 0
	}
	return len(text) == 0
}

// tell hands a scalar out. One that is too long is told without its text.
func (s *scanner) tell(kind byte) {
	l := s.level()
	if l < 1 || l > maxLevel || s.path[l] == 0 {
		return
	}
	if s.n > maxText {
		s.scalar(l, kind, nil)
		return
	}
	s.scalar(l, kind, s.text[:s.n])
}

func (s *scanner) escape(c byte) {
	var plain byte
	switch c {
	case '"', '\\', '/':
		plain = c
	case 'b':
		plain = '\b'
	case 'f':
		plain = '\f'
	case 'n':
		plain = '\n'
	case 'r':
		plain = '\r'
	case 't':
		plain = '\t'
	case 'u':
		s.state, s.hex, s.rune = inHex, 0, 0
		return
	default:
		s.state = bad
		return
	}
	s.state = inString
	s.add([]byte{plain})
}

func (s *scanner) unicode(c byte) {
	var digit byte
	switch {
	case c >= '0' && c <= '9':
		digit = c - '0'
	case c|0x20 >= 'a' && c|0x20 <= 'f':
		digit = c | 0x20 - 'a' + 10
	default:
		s.state = bad
		return
	}
	s.rune = s.rune<<4 | rune(digit)
	if s.hex++; s.hex == 4 {
		s.state = inString
		s.add([]byte(string(s.rune))) // half of a pair becomes U+FFFD, which no name has
		s.weigh(3)                    // whatever it was in UTF-8
	}
}

func foldsToModel(text []byte) bool {
	for i, c := range text {
		if c|0x20 != "model"[i] {
			return false
		}
	}
	return true
}
