package placeholder

import (
	"errors"
	"io"
	"sync"
)

// FoundError says that a placeholder was found where it may not leave.
type FoundError struct{ Credential string }

func (e *FoundError) Error() string {
	return "the placeholder of credential " + e.Credential + " stands where it is not replaced"
}

// Stream finds placeholders in a text that comes in pieces, and gives it back without
// them. Its memory is bounded. The zero Stream is of no use: call [Set.Stream].
type Stream struct {
	set  *Set
	kind Kind
	// instead returns what takes the place of a placeholder, as kind spells it. Its error
	// ends the stream, and nothing of the placeholder's end has left.
	instead  func(credential string) ([]byte, error)
	replaces bool // instead may return something

	data  []byte
	sent  int    // bytes of data that have left
	until int    // bytes of data that may leave
	from  int    // where the search goes on
	put   []byte // leaves before what is after until
	skip  int    // bytes of data that put stands for
	last  bool
	err   error
}

// window is how much of a text a Stream holds, in bytes, besides what it keeps of before.
const window = 32 << 10

// Stream returns a Stream of a kind of text. instead returns what takes the place of a
// placeholder, spelled as the text is; without it none may leave, which is a FoundError.
// Text that may be a placeholder's beginning is held back: where they are replaced, from its
// first character on, else from where its public text is there, or nearly.
func (s *Set) Stream(k Kind, instead func(credential string) ([]byte, error)) *Stream {
	t := &Stream{set: s}
	t.Reset(k, instead)
	return t
}

// Reset begins another text.
func (t *Stream) Reset(k Kind, instead func(credential string) ([]byte, error)) {
	*t = Stream{set: t.set, kind: k, instead: instead, replaces: instead != nil, data: t.data[:0]}
	if instead == nil {
		t.instead = func(name string) ([]byte, error) { return nil, &FoundError{name} }
	}
}

// Feed adds a piece of the text, whose end has come with last.
func (t *Stream) Feed(p []byte, last bool) {
	t.compact()
	t.data, t.last = append(t.data, p...), t.last || last
	t.search()
}

// Next returns what may leave, nil for nothing more of what was fed. It is good until the
// next call. The error is instead's.
func (t *Stream) Next() ([]byte, error) {
	for {
		switch {
		case t.sent < t.until:
			p := t.data[t.sent:t.until]
			t.sent = t.until
			return p, nil
		case len(t.put) > 0 || t.skip > 0:
			p := t.put
			t.until += t.skip
			t.sent, t.from, t.put, t.skip = t.until, t.until, nil, 0
			t.search()
			if len(p) > 0 {
				return p, nil
			}
		default:
			return nil, t.err
		}
	}
}

// search finds how much may leave.
func (t *Stream) search() {
	if t.err != nil || t.skip > 0 {
		return
	}
	m, found, held, sure := t.set.find(t.data, t.from, t.kind, t.last)
	t.from = held
	if !found {
		if t.until = held; !t.replaces {
			t.until = max(sure, t.sent)
		}
		return
	}
	t.until = max(m.at, t.sent)
	put, err := t.instead(m.held.Credential)
	if err != nil {
		t.err = err
		return
	}
	t.put, t.skip = put, m.end-t.until
}

// compact drops what is needed no more.
func (t *Stream) compact() {
	gone := min(t.sent, t.from)
	t.data = t.data[:copy(t.data, t.data[gone:])]
	t.sent, t.until, t.from = t.sent-gone, t.until-gone, t.from-gone
}

// buffers are the data of Streams of bodies.
var buffers = sync.Pool{New: func() any { return new([window + 4096]byte) }}

// Reader is a body that passes through a Stream.
type Reader struct {
	*Stream
	src    io.ReadCloser
	mu     sync.Mutex // a body may be closed while it is read
	buffer *[window + 4096]byte
	ready  []byte
	end    error // of src
	closed bool
}

// NewReader returns a body that passes through a Stream. The reader's error is that of the
// Stream's instead, or the body's.
func NewReader(t *Stream, body io.ReadCloser) *Reader { return &Reader{Stream: t, src: body} }

// Read implements io.Reader.
func (r *Reader) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		if len(r.ready) > 0 {
			n := copy(p, r.ready)
			r.ready = r.ready[n:]
			return n, nil
		}
		if r.buffer == nil {
			if r.closed || r.end != nil {
				return 0, r.ended()
			}
			r.buffer = buffers.Get().(*[window + 4096]byte)
			r.data = r.buffer[:0]
		}
		ready, err := r.Next()
		switch {
		case err != nil:
			r.end = err
			r.release()
			return 0, err
		case len(ready) > 0:
			r.ready = ready
			continue
		case r.end != nil:
			r.release()
			return 0, r.end
		}
		r.compact()
		n, err := r.src.Read(r.data[len(r.data):min(len(r.data)+window, cap(r.data))])
		r.data = r.data[:len(r.data)+n]
		if err != nil {
			r.end = err
			r.last = err == io.EOF
		}
		r.search()
	}
}

func (r *Reader) ended() error {
	if r.end != nil {
		return r.end
	}
	return errClosed
}

var errClosed = errors.New("the body is closed")

// release gives the buffer back.
func (r *Reader) release() {
	if r.buffer != nil {
		buffers.Put(r.buffer)
		r.buffer, r.data, r.ready = nil, nil, nil
	}
}

// Close implements io.Closer.
func (r *Reader) Close() error {
	err := r.src.Close() // ends a Read
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	if r.end == nil {
		r.end = errClosed
	}
	r.release()
	return err
}
