package echo

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"

	"sallyport/gateway/credential/coding"
)

// framing is how messages follow each other in a body: each has a byte of flags,
// the lowest of which says that it is compressed, and its length in four bytes.
// https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
type framing struct {
	header string // names the compression
	flags  byte   // that are known
	text   bool   // all of it is in base64
}

const compressed = 1

var framings = map[string]framing{
	"application/grpc":          {header: "Grpc-Encoding", flags: compressed},
	"application/grpc-web":      {header: "Grpc-Encoding", flags: compressed | 0x80}, // a trailer
	"application/grpc-web-text": {header: "Grpc-Encoding", text: true},
	"application/connect":       {header: "Connect-Content-Encoding", flags: compressed | 2}, // the end
}

// framingOf returns the framing of a Content-Type, if it is one of these, with
// any format of messages.
func framingOf(values []string) (framing, bool) {
	for _, v := range values {
		media, _, _ := strings.Cut(v, ";")
		base, _, _ := strings.Cut(media, "+")
		if kind, ok := framings[strings.ToLower(strings.TrimSpace(base))]; ok {
			return kind, true
		}
	}
	return framing{}, false
}

const (
	prefix = 5
	// maxMessage is how long a message may become by decompression, in bytes: what
	// gRPC's clients take unless they are told otherwise. It has to be in memory
	// then, with each request that a sandbox has under way.
	maxMessage = 4 << 20
)

var (
	errFlags      = errors.New("a message has flags that are not known")
	errCompressed = errors.New("a message is compressed, and the header does not say how")
	errLong       = errors.New("a message becomes too long when it is decompressed")
)

// messages scrubs each message by itself. One that is compressed is passed on as
// it was before, any other as it comes.
type messages struct {
	text
	src     *bufio.Reader
	flags   byte
	codings []string

	head  [prefix]byte
	begun []byte // of head, to hand out
	ready []byte // to hand out after begun
	left  int64  // bytes of a message to come
	err   error  // after these
}

func (s *Scrubber) messages(src io.Reader, flags byte, codings []string, hit func()) io.Reader {
	return &messages{text: s.text(hit), src: bufio.NewReader(src), flags: flags, codings: codings}
}

func (m *messages) Read(p []byte) (n int, err error) {
	if len(p) == 0 {
		return 0, nil
	}
	for len(m.begun)+len(m.ready) == 0 {
		if m.err != nil {
			return 0, m.err
		}
		if m.left == 0 {
			m.err = m.begin()
		}
		// The head goes out by itself only if the rest has not come.
		if m.left > 0 && (len(m.begun) == 0 || m.src.Buffered() > 0) {
			m.err = m.more()
		}
	}
	n = copy(p, m.begun)
	m.begun = m.begun[n:]
	rest := copy(p[n:], m.ready)
	m.ready = m.ready[rest:]
	return n + rest, nil
}

// begin reads the head of a message, and all of one that is compressed.
func (m *messages) begin() error {
	if _, err := io.ReadFull(m.src, m.head[:]); err != nil {
		return err
	}
	size := binary.BigEndian.Uint32(m.head[1:])
	switch {
	case m.head[0]&^m.flags != 0:
		return fmt.Errorf("%w: %w", ErrHidden, errFlags)
	case m.head[0]&compressed == 0:
		m.left = int64(size)
	case len(m.codings) == 0:
		return fmt.Errorf("%w: %w", ErrHidden, errCompressed)
	default:
		whole, err := m.decompress(int64(size))
		if err != nil {
			return err
		}
		m.count(whole, true)
		m.head[0] &^= compressed
		binary.BigEndian.PutUint32(m.head[1:], uint32(len(whole)))
		m.ready = whole
	}
	m.begun = m.head[:]
	return nil
}

func (m *messages) decompress(size int64) ([]byte, error) {
	coded := &io.LimitedReader{R: m.src, N: size}
	r, err := coding.NewReader(coded, m.codings)
	if err != nil {
		return nil, err
	}
	var whole bytes.Buffer
	_, err = whole.ReadFrom(io.LimitReader(r, maxMessage+1))
	switch {
	case err != nil:
		return nil, err
	case whole.Len() > maxMessage:
		return nil, fmt.Errorf("%w: %w", ErrHidden, errLong)
	case coded.N > 0:
		return nil, io.ErrUnexpectedEOF
	}
	return whole.Bytes(), nil
}

// more reads on in a message that is not compressed.
func (m *messages) more() error {
	n, err := m.src.Read(m.room(int(min(m.left, chunk))))
	m.left -= int64(n)
	if err == io.EOF && m.left > 0 {
		err = io.ErrUnexpectedEOF
	}
	m.ready = m.add(n, m.left == 0)
	return err
}
