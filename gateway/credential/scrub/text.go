package scrub

// text scrubs one text after another that come in pieces, and keeps what is
// undecided between the pieces.
type text struct {
	window

	buf      []byte
	from, to int // of what is undecided, in buf
}

func (s *Scrubber) text(hit func(Found)) text {
	return text{window: window{scrubber: s, hit: hit}}
}

// kept is how many bytes are undecided.
func (t *text) kept() int { return t.to - t.from }

// buffers returns space for n bytes, to be read into and then added. It ends the
// use of what add returned.
func (t *text) room(n int) []byte {
	kept := t.buf[t.from:t.to]
	if len(kept)+n > len(t.buf) {
		t.buf = make([]byte, 2*(len(kept)+n))
	}
	t.from, t.to = 0, copy(t.buf, kept)
	return t.buf[t.to : t.to+n]
}

// add takes n bytes from room, if any, and returns what is decided now. After
// the last ones of a text that is all.
func (t *text) add(n int, last bool) []byte {
	data := t.buf[t.from : t.to+n]
	decided := t.advance(data, last)
	t.from, t.to = t.from+decided, t.to+n
	return data[:decided]
}
