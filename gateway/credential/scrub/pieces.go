package scrub

// Texts scrubs one text after another whose ends the caller knows, as of a protocol's
// messages. The bytes of a text that are undecided wait for more of it, or its end, and
// are as many as in a body: see the package's comment.
type Texts struct{ text }

// Texts returns Texts. hit, unless nil, is called for each occurrence.
func (s *Scrubber) Texts(hit func(Found)) *Texts { return &Texts{s.text(hit)} }

// Room returns space for the next n bytes of a text. It ends the use of what Add returned.
func (t *Texts) Room(n int) []byte { return t.room(n) }

// Add takes n bytes from Room and returns what is decided. After the last ones of a text
// that is all of it.
func (t *Texts) Add(n int, last bool) []byte { return t.add(n, last) }

// String returns a whole text, scrubbed.
func (t *Texts) String(whole string) string {
	return string(t.Add(copy(t.Room(len(whole)), whole), true))
}
