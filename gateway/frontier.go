package gateway

import (
	"encoding/binary"
	"io"
	"strings"
	"time"
)

// frontier follows the frames of a WebSocket (RFC 6455, section 5.2) to know
// where one may be put in. The zero frontier is before the first.
type frontier struct {
	head   [14]byte
	have   int    // bytes of the head that have passed
	left   uint64 // bytes of the payload that have not
	closed bool   // a Close frame has passed

	strict  bool // frames that are none are noticed
	masked  bool // as those of a client are, and no others
	message bool // there is more of a message to come
	bad     bool // a frame was none; nothing is followed after it
}

const opClose = 8 // of a Close frame

func (f *frontier) pass(p []byte) {
	for len(p) > 0 && !f.bad {
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
			f.bad = true
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
func (f *frontier) allowed() bool {
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

// framed is one direction of a WebSocket. Nothing is read of what is not in frames.
type framed struct {
	io.Reader
	frames frontier
}

// framesOf reads a WebSocket's client, or its server.
func framesOf(src io.Reader, client bool) *framed {
	return &framed{src, frontier{strict: true, masked: client}}
}

func (f *framed) Read(p []byte) (int, error) {
	n, err := f.Reader.Read(p)
	if f.frames.pass(p[:n]); f.frames.bad {
		return 0, errFrames
	}
	return n, err
}

func (f *frontier) headSize() int {
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

// between tells whether a frame may come.
func (f *frontier) between() bool { return f.left == 0 && f.have == 0 && !f.closed }

// maxFarewell is how long the reason in a Close frame can be, in bytes: a control
// frame has 125, two of them for the status (RFC 6455, section 5.5).
const maxFarewell = 123

// farewell is a Close frame with status 1008, policy violation (RFC 6455,
// section 7.4.1).
func farewell(reason string) []byte {
	if len(reason) > maxFarewell {
		reason = strings.ToValidUTF8(reason[:maxFarewell], "")
	}
	return append([]byte{0x80 | opClose, byte(2 + len(reason)), 1008 >> 8, 1008 & 0xff}, reason...)
}

// goodbye says farewell where one of the upstream's frames has ended, once, and
// lets nothing follow it. A client that reads nothing is not waited for long.
func (c *counted) goodbye(reason string) {
	late := time.AfterFunc(stopGrace/2, func() { _ = c.SetWriteDeadline(time.Unix(1, 0)) })
	defer late.Stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return
	}
	c.over = true
	if !c.frames.between() {
		return
	}
	n, _ := c.Conn.Write(farewell(reason)) // who is gone needs none
	c.out.Add(int64(n))
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
}

// linger reads what a client has sent meanwhile, its own Close frame at best:
// closing with unread bytes would reset the connection (RFC 9112, section 9.6),
// and goodbye would be lost.
func (c *counted) linger() {
	if c.SetReadDeadline(time.Now().Add(stopGrace/2)) == nil {
		_, _ = io.CopyN(io.Discard, c.Conn, maxSettle)
	}
}
