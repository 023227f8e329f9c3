package websocket

import (
	"encoding/binary"
	"errors"
	"io"
	"strings"
)

// ErrFrames is the error of bytes that are not in frames of a WebSocket.
var ErrFrames = errors.New("what came is not in frames of a WebSocket, masked by the client and by nobody else")

// Frames follows the frames of a WebSocket (RFC 6455, section 5.2) to know where one
// may be put in. The zero Frames is before the first.
type Frames struct {
	head   [14]byte
	have   int    // bytes of the head that have passed
	left   uint64 // bytes of the payload that have not
	closed bool   // a Close frame has passed

	strict  bool // malformed frames are noticed
	masked  bool // as those of a client are, and no others
	message bool // there is more of a message to come
	Bad     bool // a frame was malformed; nothing is followed after it
}

const opClose = 8 // of a Close frame

// Pass follows bytes that go by.
func (f *Frames) Pass(p []byte) {
	for len(p) > 0 && !f.Bad {
		if f.left > 0 {
			n := min(f.left, uint64(len(p)))
			f.left -= n
			p = p[n:]
			continue
		}
		f.head[f.have] = p[0]
		f.have++
		p = p[1:]
		if f.have == 2 && f.strict && !f.allowed() {
			f.Bad = true
			return
		}
		if f.have < 2 || f.have < f.headSize() {
			continue
		}
		switch n := uint64(f.head[1] & 0x7f); n {
		case 126:
			f.left = uint64(binary.BigEndian.Uint16(f.head[2:]))
		case 127:
			f.left = binary.BigEndian.Uint64(f.head[2:])
		default:
			f.left = n
		}
		f.closed = f.closed || f.head[0]&0x0f == opClose
		f.have = 0
	}
}

// allowed tells whether a frame may begin with the two bytes that have come, where no
// extension was agreed on (RFC 6455, sections 5.1 to 5.5).
func (f *Frames) allowed() bool {
	final, op, size := f.head[0]&0x80 != 0, f.head[0]&0x0f, f.head[1]&0x7f
	switch {
	case f.head[0]&0x70 != 0, (f.head[1]&0x80 != 0) != f.masked, f.closed:
		return false
	case op >= opClose:
		return final && size <= 125 && op <= opClose+2
	case op > 2 || (op == 0) != f.message:
		return false
	}
	f.message = !final
	return true
}

// Reader reads one direction of a WebSocket. It fails at the first malformed frame.
type Reader struct {
	io.Reader
	Frames Frames
}

// NewReader reads a WebSocket's client, or its server.
func NewReader(src io.Reader, client bool) *Reader {
	return &Reader{src, Frames{strict: true, masked: client}}
}

func (f *Reader) Read(p []byte) (int, error) {
	n, err := f.Reader.Read(p)
	if f.Frames.Pass(p[:n]); f.Frames.Bad {
		return 0, ErrFrames
	}
	return n, err
}

func (f *Frames) headSize() int {
	n := 2
	switch f.head[1] & 0x7f {
	case 126:
		n += 2
	case 127:
		n += 8
	}
	if f.head[1]&0x80 != 0 { // masked
		n += 4
	}
	return n
}

// Boundary tells whether a frame may be put in here.
func (f *Frames) Boundary() bool { return f.left == 0 && f.have == 0 && !f.closed }

// maxReason is how long the reason in a Close frame can be, in bytes: a control
// frame has 125, two of them for the status (RFC 6455, section 5.5).
const maxReason = 123

// closeFrame is a Close frame with status 1008, policy violation (RFC 6455,
// section 7.4.1).
func closeFrame(reason string) []byte {
	if len(reason) > maxReason {
		reason = strings.ToValidUTF8(reason[:maxReason], "")
	}
	return append([]byte{0x80 | opClose, byte(2 + len(reason)), 1008 >> 8, 1008 & 0xff}, reason...)
}
