package scrub

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"sallyport/gateway/credential/decode"
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

// mediaType returns what a Content-Type says, without parameters and without the
// format of messages. Of several the first is taken that means something here.
func mediaType(values []string) string {
	for _, v := range values {
		media, _, _ := strings.Cut(v, ";")
		base, _, _ := strings.Cut(media, "+")
		base = strings.ToLower(strings.TrimSpace(base))
		if _, ok := framings[base]; ok || base == "text/event-stream" {
			return base
		}
	}
	return ""
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
	hold    *decode.Hold
	before  int         // bytes held before the message, -1 for one that is not decompressed
	strict  func() bool // what cannot be decompressed is refused
	blind   func() bool // ends the message that is read, nil for one that is searched

	head  [prefix]byte
	begun []byte // of head, to hand out
	ready []byte // to hand out after begun
	left  int64  // bytes of a message to come
	err   error  // after these
}

func (a *answer) messages(src io.Reader, flags byte, codings []string, hold *decode.Hold) io.Reader {
	return &messages{text: a.text(a.hit), src: bufio.NewReader(src), flags: flags, codings: codings, strict: a.strict, hold: hold, before: -1}
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
			m.drop()
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

// drop lets go of what a message was decompressed in.
func (m *messages) drop() {
	if m.before < 0 {
		return
	}
	m.hold.Give(m.hold.Used() - m.before)
	m.before, m.ready = -1, nil
}

// begin reads the head of a message, and all of one that is compressed.
func (m *messages) begin() error {
	if _, err := io.ReadFull(m.src, m.head[:]); err != nil {
		return err
	}
	size := binary.BigEndian.Uint32(m.head[1:])
	unknown, packed := m.head[0]&^m.flags != 0, m.head[0]&compressed != 0
	pass := !m.strict()
	m.blind = nil
	switch {
	case unknown && !pass:
		return fmt.Errorf("%w: %w", ErrHidden, errFlags)
	case !unknown && !packed:
		m.left = int64(size)
	case pass && (unknown || len(m.codings) == 0 || size > maxMessage):
		m.left, m.blind = int64(size), m.strict
	case pass && m.scrubber.None():
		m.left, m.blind = int64(size), func() bool { return !m.scrubber.None() }
	case len(m.codings) == 0:
		return fmt.Errorf("%w: %w", ErrHidden, errCompressed)
	default:
		if err := m.unpack(int64(size), pass); err != nil {
			return err
		}
	}
	m.begun = m.head[:]
	return nil
}

// unpack makes a message ready that is compressed. One that is to be passed as it
// is, should it turn out damaged, is kept for that.
func (m *messages) unpack(size int64, pass bool) error {
	m.before = m.hold.Used()
	src := io.Reader(m.src)
	var packed []byte // as long as another may be
	if pass {
		if err := m.hold.Take(int(size)); err != nil {
			return err
		}
		packed = make([]byte, size)
		if _, err := io.ReadFull(src, packed); err != nil {
			return unexpected(err)
		}
		src = bytes.NewReader(packed)
	}
	whole, err := m.decompress(src, size)
	switch {
	case err == nil:
		m.head[0] &^= compressed
		binary.BigEndian.PutUint32(m.head[1:], uint32(len(whole)))
	case pass && !m.strict() && !errors.Is(err, decode.ErrMemory):
		whole = packed
	default:
		return err
	}
	m.advance(whole, true)
	m.ready = whole
	return nil
}

func (m *messages) decompress(src io.Reader, size int64) ([]byte, error) {
	coded := &io.LimitedReader{R: src, N: size}
	r, err := decode.NewReader(coded, m.codings, m.hold)
	if err != nil {
		return nil, err
	}
	var whole []byte
	for {
		if len(whole) == cap(whole) {
			n := max(len(whole), chunk)
			if err := m.hold.Take(n); err != nil {
				return nil, err
			}
			whole = slices.Grow(whole, n)
		}
		var n int
		n, err = r.Read(whole[len(whole):cap(whole)])
		whole = whole[:len(whole)+n]
		switch {
		case len(whole) > maxMessage:
			return nil, fmt.Errorf("%w: %w", ErrHidden, errLong)
		case err == io.EOF && coded.N > 0:
			return nil, io.ErrUnexpectedEOF
		case err == io.EOF:
			return whole, nil
		case err != nil:
			return nil, err
		}
	}
}

// more reads on in a message that is not compressed.
func (m *messages) more() error {
	n, err := m.src.Read(m.room(int(min(m.left, chunk))))
	m.left -= int64(n)
	if n > 0 && m.blind != nil && m.blind() {
		return errUnsearchable
	}
	if err == io.EOF && m.left > 0 {
		err = io.ErrUnexpectedEOF
	}
	m.ready = m.add(n, m.left == 0)
	return err
}
