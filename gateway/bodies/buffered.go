package bodies

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
)

// Buffered is a request's body in memory: the very bytes that the policy has judged
// leave.
type Buffered struct {
	of   *Budget
	id   string        // of the sandbox
	sent *atomic.Int64 // bytes that an upstream has been given

	mu   sync.Mutex // a transport can go on reading when the request has ended
	text []byte
	room int64 // that has been made
	at   int
	rest io.ReadCloser // the unread part of a body that is too long
	gone bool
}

func (b *Buffered) Read(p []byte) (int, error) {
	b.mu.Lock()
	switch {
	case b.gone:
		b.mu.Unlock()
		return 0, http.ErrBodyReadAfterClose
	case b.at == len(b.text) && b.rest != nil:
		b.mu.Unlock() // it may take long
		return b.rest.Read(p)
	}
	defer b.mu.Unlock()
	if b.at == len(b.text) {
		return 0, io.EOF
	}
	n := copy(p, b.text[b.at:])
	b.at += n
	b.sent.Add(int64(n))
	return n, nil
}

// Close closes the part that has not been read: the bytes are the request's.
func (b *Buffered) Close() error {
	if b.rest != nil {
		return b.rest.Close()
	}
	return nil
}

// Buffered is how much can be read without waiting.
func (b *Buffered) Buffered() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.text) - b.at
}

// NewBuffered returns a body that is empty until Fill. sent counts the bytes that are
// read of it.
func NewBuffered(of *Budget, id string, sent *atomic.Int64) *Buffered {
	return &Buffered{of: of, id: id, sent: sent}
}

// Continue has the body go on with rest, which is not in memory.
func (b *Buffered) Continue(rest io.ReadCloser) { b.rest = rest }

// Bytes returns the body, nil where there is none any more.
func (b *Buffered) Bytes() []byte {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text
}

// Again returns another reader of the whole body, for a request that is sent once more, and
// nil of a body that is not in memory as a whole. Reads of it fail after Drop.
func (b *Buffered) Again() io.ReadCloser {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.gone || b.rest != nil {
		return nil
	}
	return &again{of: b}
}

// again reads a Buffered from its beginning.
type again struct {
	of *Buffered
	at int
}

func (a *again) Read(p []byte) (int, error) {
	a.of.mu.Lock()
	defer a.of.mu.Unlock()
	switch {
	case a.of.gone:
		return 0, http.ErrBodyReadAfterClose
	case a.at == len(a.of.text):
		return 0, io.EOF
	}
	n := copy(p, a.of.text[a.at:])
	a.at += n
	a.of.sent.Add(int64(n))
	return n, nil
}

func (a *again) Close() error { return nil }

// Digest returns the SHA-256 of the whole body in hex, and its length; "" and -1 of one
// that is too long.
func (b *Buffered) Digest() (string, int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rest != nil {
		return "", -1
	}
	return Digest(b.text), int64(len(b.text))
}

// Drop lets go of the body. Reads fail from now on.
func (b *Buffered) Drop() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.of.Give(b.id, b.room)
	b.text, b.room, b.gone = nil, 0, true
}

// Fill reads at most limit bytes and one more, which tells that there are more. Room is
// made for bytes that have come, not for announced ones.
func (b *Buffered) Fill(body io.Reader, limit int64) error {
	for {
		if len(b.text) == cap(b.text) {
			size := min(max(2*int64(cap(b.text)), firstPiece), limit+1)
			if err := b.of.Take(b.id, size-b.room); err != nil {
				return err
			}
			b.room = size
			b.text = append(make([]byte, 0, size), b.text...)
		}
		n, err := body.Read(b.text[len(b.text):cap(b.text)])
		b.text = b.text[:len(b.text)+n]
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		case int64(len(b.text)) > limit:
			return nil
		}
	}
}

// Digest returns the SHA-256 of b in hex.
func Digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
