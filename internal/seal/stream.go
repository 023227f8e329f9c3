package seal

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// A stream begins with streamMagic and the length of an age file that holds its
// 32-byte key, in two bytes, and that file. Then come chunks of streamChunk bytes
// of content, the last of which may be shorter, each sealed by AES-256-GCM under
// that key with a nonce of its number (11 bytes) and of whether it is the last (1
// byte): the STREAM construction of Hoang, Reyhanitabar, Rogaway and Vizár
// (CRYPTO 2015), as age has it. So no chunk can be changed, moved, left out or
// added, and no end be cut off. The bytes before the chunks are in the associated data of
// each. AES-GCM is chosen over age's ChaCha20-Poly1305 for its speed with
// AES-NI, which memory needs.
const (
	streamMagic = "sallyport-seal/1\n"
	streamChunk = 64 << 10
	maxWrapped  = 4 << 10 // bytes of the age file
)

// errStreamLong cannot be: it is 2^88 chunks.
var errStreamLong = errors.New("sealing: the stream is too long")

// Writer seals what is written to it as a stream.
type Writer struct {
	to    io.Writer
	seal  cipher.AEAD
	head  []byte // associated data
	chunk []byte // content of the next chunk
	out   []byte
	nonce nonce
	err   error
}

// NewWriter returns a Writer to w of content of any size. It holds two chunks of
// 64 KiB. The stream is not whole before Close, which does not close w.
func (k *Key) NewWriter(w io.Writer) (*Writer, error) {
	secret := make([]byte, 32)
	_, _ = rand.Read(secret) // never fails (crypto/rand)
	wrapped, err := k.Seal(secret)
	if err != nil {
		return nil, err
	}
	head := append([]byte(streamMagic), 0, 0)
	binary.BigEndian.PutUint16(head[len(streamMagic):], uint16(len(wrapped)))
	head = append(head, wrapped...)
	aead, err := newStream(secret)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(head); err != nil {
		return nil, err
	}
	sum := sha256.Sum256(head)
	return &Writer{
		to: w, seal: aead, head: sum[:],
		chunk: make([]byte, 0, streamChunk), out: make([]byte, 0, streamChunk+aead.Overhead()),
	}, nil
}

func newStream(secret []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(secret)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// nonce is a chunk's: its number and whether it is the last.
type nonce [12]byte

// next counts on.
func (n *nonce) next() error {
	for i := len(n) - 2; i >= 0; i-- {
		if n[i]++; n[i] != 0 {
			return nil
		}
	}
	return errStreamLong
}

// Write implements io.Writer. After an error all others are that one.
func (w *Writer) Write(p []byte) (n int, err error) {
	for len(p) > 0 && w.err == nil {
		if len(w.chunk) == streamChunk {
			w.flush(false) // it is not the last
			continue
		}
		m := min(len(p), streamChunk-len(w.chunk))
		w.chunk = append(w.chunk, p[:m]...)
		p, n = p[m:], n+m
	}
	return n, w.err
}

func (w *Writer) flush(last bool) {
	if last {
		w.nonce[len(w.nonce)-1] = 1
	}
	w.out = w.seal.Seal(w.out[:0], w.nonce[:], w.chunk, w.head)
	if _, err := w.to.Write(w.out); err != nil {
		w.err = err
		return
	}
	w.chunk = w.chunk[:0]
	w.err = w.nonce.next()
}

// errStreamClosed is of writes after Close.
var errStreamClosed = errors.New("sealing: the stream is closed")

// Close seals the end.
func (w *Writer) Close() error {
	if w.err != nil {
		if w.err == errStreamClosed {
			return nil
		}
		return w.err
	}
	if w.flush(true); w.err != nil {
		return w.err
	}
	w.err = errStreamClosed
	return nil
}

// Reader opens a stream.
type Reader struct {
	from  io.Reader
	open  cipher.AEAD
	head  []byte
	in    []byte // sealed
	plain []byte // that nobody has read yet
	ahead []byte // the first byte of the next chunk, if there is one
	nonce nonce
	err   error
}

// NewReader returns a Reader of what a Writer with the same key wrote to r. Its
// own errors, and those of reading, wrap ErrWrongKey or ErrDamaged where the
// stream is not whole. All content that it returns has been written as the stream's
// beginning, in this order; that it is all there is known at io.EOF only. It holds
// two chunks of 64 KiB.
func (k *Key) NewReader(r io.Reader) (*Reader, error) {
	head := make([]byte, len(streamMagic)+2)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, cutShort(err)
	}
	if !bytes.HasPrefix(head, []byte(streamMagic)) {
		return nil, fmt.Errorf("%w: it is not a sealed stream", ErrDamaged)
	}
	size := int(binary.BigEndian.Uint16(head[len(streamMagic):]))
	if size > maxWrapped {
		return nil, fmt.Errorf("%w: its key has %d bytes", ErrDamaged, size)
	}
	wrapped := make([]byte, size)
	if _, err := io.ReadFull(r, wrapped); err != nil {
		return nil, cutShort(err)
	}
	secret, err := k.Open(wrapped)
	if err != nil {
		return nil, err
	}
	if len(secret) != 32 {
		return nil, fmt.Errorf("%w: its key is none", ErrDamaged)
	}
	aead, err := newStream(secret)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(append(head, wrapped...))
	return &Reader{from: r, open: aead, head: sum[:], in: make([]byte, 0, streamChunk+aead.Overhead()+1)}, nil
}

func cutShort(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: it is cut short", ErrDamaged)
	}
	return err
}

// Read implements io.Reader.
func (r *Reader) Read(p []byte) (int, error) {
	for len(r.plain) == 0 && r.err == nil {
		r.next()
	}
	if len(r.plain) == 0 {
		return 0, r.err
	}
	n := copy(p, r.plain)
	r.plain = r.plain[n:]
	return n, nil
}

// next opens one chunk. Whether it is the last is known by what follows it, which
// the nonce has to agree with.
func (r *Reader) next() {
	full := streamChunk + r.open.Overhead()
	buf := r.in[:full+1]
	had := copy(buf, r.ahead)
	n, err := io.ReadFull(r.from, buf[had:])
	n += had
	switch {
	case err == nil: // there is more
		r.ahead = append(r.ahead[:0], buf[full])
		n = full
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		r.nonce[len(r.nonce)-1] = 1
	default:
		r.err = err
		return
	}
	last := r.nonce[len(r.nonce)-1] == 1
	plain, err := r.open.Open(buf[:0], r.nonce[:], buf[:n], r.head)
	if err != nil {
		r.err = fmt.Errorf("%w: a part of it was cut, changed or moved", ErrDamaged)
		return
	}
	r.plain = plain
	if last {
		r.err = io.EOF
		return
	}
	if err := r.nonce.next(); err != nil {
		r.err = err
	}
}
