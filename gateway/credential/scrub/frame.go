package scrub

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
)

// Frames reads what the server of a WebSocket (RFC 6455) sends, scrubbed. Each
// message is one text, whatever frames it comes in. hit, unless nil, is called
// for each occurrence, in the goroutine that reads, and next, unless nil, before
// each message and each control frame.
//
// A message in one frame keeps its frame, and is passed on while it comes in, but
// for a tail of always the same length until the frame ends. Of a frame that is not
// a message's last, the tail leads the next frame instead: frames then begin
// elsewhere, which the RFC allows (section 5.4), so that a control frame between
// them need not wait. A message thus waits for no other message.
//
// A stream that cannot be searched, or that no server sends, ends in a Close frame
// of status 1002 that says why, and an error that wraps ErrHidden: reserved bits,
// which compression needs, so the caller removes Sec-WebSocket-Extensions from
// the handshake; reserved opcodes; masks; frames out of order; bad lengths.
func (s *Scrubber) Frames(server io.Reader, hit func(Found), next func()) io.Reader {
	if next == nil {
		next = func() {}
	}
	return &frames{text: s.text(hit), src: bufio.NewReader(server), control: s.text(hit), begins: next}
}

// Opcodes, and bits of the first two bytes of a frame.
const (
	opContinuation = 0x0 // and 1 for text
	opBinary       = 0x2
	opClose        = 0x8 // and 9 for ping
	opPong         = 0xA

	bitFinal    = 0x80
	bitsReserve = 0x70
	bitControl  = 0x08
	bitMask     = 0x80

	maxControl = 125
	// protocolError is the status of a Close frame (section 7.4.1).
	protocolError = 1002
	// maxHeader is the length of a server's longest header.
	maxHeader = 10
	// payloadChunk is how much of a frame is read at a time.
	payloadChunk = 32 << 10
)

type frames struct {
	text         // of the message
	control text // of a control frame
	src     *bufio.Reader
	closed  bool   // after a Close frame
	begins  func() // is told of each message and control frame

	// The frame that is read.
	head  [8]byte // parts of its header
	left  int64   // bytes of its payload to come
	final bool

	// The message. opcode is that of the next frame to be written of it.
	message bool
	opcode  byte

	// The output is the header of a frame, then ready. Of the frame whose header
	// was written last so many bytes of payload are owed; what is decided beyond
	// these is held until there is another.
	space [maxHeader]byte
	begun []byte
	ready []byte
	owed  int64
	held  []byte
	err   error // after these
}

func (f *frames) Read(p []byte) (n int, err error) {
	if len(p) == 0 {
		return 0, nil
	}
	for len(f.begun)+len(f.ready) == 0 {
		switch {
		case f.err != nil:
			return 0, f.err
		case f.left > 0:
			f.err = f.payload()
		case len(f.held) > 0:
			f.release()
		default:
			f.err = f.next()
			// A header goes out by itself only if no payload has come.
			if f.left > 0 && f.src.Buffered() > 0 {
				f.err = f.payload()
			}
		}
	}
	n = copy(p, f.begun)
	f.begun = f.begun[n:]
	rest := copy(p[n:], f.ready)
	f.ready = f.ready[rest:]
	return n + rest, nil
}

// write puts the header of a frame before its payload.
func (f *frames) write(first byte, payload int64) {
	f.begun = append(f.space[:0], first)
	switch {
	case payload <= maxControl:
		f.begun = append(f.begun, byte(payload))
	case payload <= 0xFFFF:
		f.begun = binary.BigEndian.AppendUint16(append(f.begun, 126), uint16(payload))
	default:
		f.begun = binary.BigEndian.AppendUint64(append(f.begun, 127), uint64(payload))
	}
}

// next reads the header of a frame, and all of a control frame.
func (f *frames) next() error {
	head := f.head[:2]
	if _, err := io.ReadFull(f.src, head); err != nil {
		if err == io.EOF && f.message {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	first := head[0]
	size, err := f.size(head[1])
	if err != nil {
		return err
	}
	op := first &^ bitFinal
	switch {
	case f.closed:
		return f.refuse("a frame after the Close frame")
	case first&bitsReserve != 0:
		return f.refuse("reserved bits in a frame: no extension was agreed on")
	case op&bitControl != 0:
		return f.controlFrame(first, size)
	case op > opBinary:
		return f.refuse("a reserved opcode")
	case (op == opContinuation) != f.message:
		return f.refuse("a frame out of order")
	}
	if !f.message {
		f.message, f.opcode = true, op
		f.begins()
	}
	f.left, f.final = size, first&bitFinal != 0
	f.begin()
	return nil
}

// size reads the rest of a length (section 5.2).
func (f *frames) size(second byte) (int64, error) {
	switch {
	case second&bitMask != 0:
		return 0, f.refuse("a masked frame from a server")
	case second <= maxControl:
		return int64(second), nil
	}
	n, least := 2, uint64(maxControl+1)
	if second == 127 {
		n, least = 8, 1<<16
	}
	f.head = [8]byte{}
	if _, err := io.ReadFull(f.src, f.head[8-n:]); err != nil {
		return 0, unexpected(err)
	}
	size := binary.BigEndian.Uint64(f.head[:])
	if size < least || size > 1<<62 {
		return 0, f.refuse("a length that is not in its shortest form")
	}
	return int64(size), nil
}

func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// begin writes the header for a frame of the message, with what the last one
// left undecided. Before the last frame it is for what is sure to be decided at
// the end of this one, and what else is decided then gets a frame of its own.
func (f *frames) begin() {
	payload := int64(f.kept()) + f.left
	if f.final {
		f.write(bitFinal|f.opcode, payload)
		f.owed, f.message = payload, false
		if f.left == 0 {
			f.give(f.add(0, true))
		}
		return
	}
	f.reset()
	if f.index != nil {
		payload -= int64(f.tail)
	}
	if payload > 0 {
		f.write(f.opcode, payload)
		f.owed, f.opcode = payload, opContinuation
	}
}

// payload reads on in a frame.
func (f *frames) payload() error {
	n, err := f.src.Read(f.room(int(min(f.left, payloadChunk))))
	f.left -= int64(n)
	if err == io.EOF && f.left > 0 {
		err = io.ErrUnexpectedEOF
	}
	f.give(f.add(n, f.final && f.left == 0))
	if f.left == 0 && f.owed > 0 && err == nil {
		// More is to be kept back for them than when the frame's length was promised.
		err = fmt.Errorf("%w: longer values are looked for since the frame began", ErrHidden)
	}
	return err
}

// give hands out what is owed of what has been decided, and holds the rest.
func (f *frames) give(decided []byte) {
	n := int(min(f.owed, int64(len(decided))))
	f.ready = decided[:n]
	f.owed -= int64(n)
	f.held = append(f.held, decided[n:]...)
}

// release makes a frame of what was held.
func (f *frames) release() {
	f.write(f.opcode, int64(len(f.held)))
	f.opcode = opContinuation
	f.ready, f.held = f.held, f.held[:0]
}

func (f *frames) controlFrame(first byte, size int64) error {
	op := first &^ bitFinal
	switch {
	case op > opPong:
		return f.refuse("a reserved opcode")
	case first&bitFinal == 0 || size > maxControl || op == opClose && size == 1:
		return f.refuse("a bad control frame")
	}
	payload := f.control.room(int(size))
	if _, err := io.ReadFull(f.src, payload); err != nil {
		return unexpected(err)
	}
	f.begins()
	f.control.add(int(size), true)
	f.closed = op == opClose
	f.write(first, size)
	f.ready = payload
	return nil
}

// refuse ends the stream.
func (f *frames) refuse(why string) error {
	if !f.closed {
		f.write(bitFinal|opClose, int64(2+len(why)))
		f.ready = append(binary.BigEndian.AppendUint16(nil, protocolError), why...)
	}
	return fmt.Errorf("%w: %s", ErrHidden, why)
}
