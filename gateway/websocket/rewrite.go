package websocket

import (
	"encoding/binary"
	"io"
)

// Messages takes the messages of a WebSocket's client in pieces, and gives them back as
// they may leave.
type Messages interface {
	// Begin begins a message, of text or of bytes.
	Begin(text bool)
	// Feed adds a piece of it, whose end has come with last.
	Feed(p []byte, last bool)
	// Next returns what may leave by now, nil for no more. Its error ends the WebSocket.
	Next() ([]byte, error)
}

// Rewriter passes the frames of a client on to an upstream, with its messages as Messages
// has them. It may cut frames in another way than the client did (RFC 6455, section 5.4).
// It takes frames that are well formed: see [Conn].
type Rewriter struct {
	io.Writer
	Messages Messages

	head  [14]byte
	have  int
	left  uint64 // of the frame's payload
	at    int    // in its mask
	begun bool   // a frame of the message has left
	first byte   // opcode of the message's first frame
	out   []byte
	plain []byte
}

// Write implements io.Writer.
func (w *Rewriter) Write(p []byte) (int, error) {
	w.out = w.out[:0]
	var failed error
	for rest := p; len(rest) > 0 && failed == nil; {
		rest, failed = w.step(rest)
	}
	if len(w.out) > 0 {
		if _, err := w.Writer.Write(w.out); err != nil {
			return 0, err
		}
	}
	if failed != nil {
		return 0, failed
	}
	return len(p), nil
}

// step takes a byte of a head, or what there is of a payload.
func (w *Rewriter) step(p []byte) (rest []byte, err error) {
	size := (&Frames{head: w.head}).headSize()
	if w.have < 2 || w.have < size {
		w.head[w.have] = p[0]
		w.have++
		if size = (&Frames{head: w.head}).headSize(); w.have < 2 || w.have < size {
			return p[1:], nil
		}
		w.begin(size)
		if w.left > 0 {
			return p[1:], nil
		}
		return p[1:], w.pass(nil)
	}
	n := int(min(uint64(len(p)), w.left))
	w.left -= uint64(n)
	return p[n:], w.pass(p[:n])
}

// begin begins a frame.
func (w *Rewriter) begin(size int) {
	switch n := w.head[1] & 0x7f; n {
	case 126:
		w.left = uint64(binary.BigEndian.Uint16(w.head[2:]))
	case 127:
		w.left = binary.BigEndian.Uint64(w.head[2:])
	default:
		w.left = uint64(n)
	}
	w.at = 0
	switch op := w.head[0] & 0x0f; {
	case op >= opClose:
		w.out = append(w.out, w.head[:size]...)
	case op > 0:
		w.begun, w.first = false, op
		w.Messages.Begin(op == opText)
	}
}

const opText = 1 // of a frame that begins a message of text

// pass passes a piece of a frame's payload, which ends with it if nothing is left.
func (w *Rewriter) pass(p []byte) error {
	size := w.have
	if w.left == 0 {
		w.have = 0
	}
	if w.head[0]&0x0f >= opClose {
		w.out = append(w.out, p...)
		return nil
	}
	mask := w.head[size-4 : size]
	w.plain = w.plain[:0]
	for i, c := range p {
		w.plain = append(w.plain, c^mask[(w.at+i)&3])
	}
	w.at += len(p)
	last := w.left == 0 && w.head[0]&0x80 != 0
	w.Messages.Feed(w.plain, last)
	w.plain = w.plain[:0]
	for {
		piece, err := w.Messages.Next()
		if err != nil {
			return err
		}
		if piece == nil {
			break
		}
		w.plain = append(w.plain, piece...)
	}
	if len(w.plain) > 0 || last {
		w.emit(mask, last)
	}
	return nil
}

// emit adds a frame with what is in plain to what leaves.
func (w *Rewriter) emit(mask []byte, last bool) {
	first := byte(0)
	if !w.begun {
		first, w.begun = w.first, true
	}
	if last {
		first |= 0x80
	}
	w.out = append(w.out, first)
	switch n := len(w.plain); {
	case n <= 125:
		w.out = append(w.out, 0x80|byte(n))
	case n <= 0xffff:
		w.out = binary.BigEndian.AppendUint16(append(w.out, 0x80|126), uint16(n))
	default:
		w.out = binary.BigEndian.AppendUint64(append(w.out, 0x80|127), uint64(n))
	}
	w.out = append(w.out, mask...)
	for i, c := range w.plain {
		w.out = append(w.out, c^mask[i&3])
	}
}
