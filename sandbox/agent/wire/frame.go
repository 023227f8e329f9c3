package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
)

// Kind says what a frame carries. A frame is a kind byte, the payload's length
// in bytes as 32 bits big-endian, and the payload.
type Kind byte

// Kinds of frame.
const (
	Stdin  Kind = iota // to the command; empty: end of input
	Stdout             // from the command
	Stderr             // from the command
	Exit               // from the command, the last: JSON of [End]
	Alive              // from the command, empty: asks whether the reader is still there
	Resize             // to the command: JSON of [Size]
	Signal             // to the command: a signal's name
)

// MaxFrame bounds a payload, in bytes.
const MaxFrame = 64 << 10

// headSize is a frame's besides its payload, in bytes.
const headSize = 5

// Writer writes frames of several kinds to one connection.
type Writer struct {
	mu  sync.Mutex
	w   io.Writer
	buf []byte
}

// NewWriter returns a Writer to w.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// Write writes one frame with one call of the underlying Write: a small one
// then is one packet.
func (f *Writer) Write(k Kind, p []byte) error {
	if len(p) > MaxFrame {
		return fmt.Errorf("a frame of %d bytes, more than %d", len(p), MaxFrame)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.buf = append(f.buf[:0], byte(k))
	f.buf = binary.BigEndian.AppendUint32(f.buf, uint32(len(p)))
	f.buf = append(f.buf, p...)
	_, err := f.w.Write(f.buf)
	return err
}

// Stream is an io.Writer of one kind.
func (f *Writer) Stream(k Kind) io.Writer { return stream{f, k} }

type stream struct {
	f *Writer
	k Kind
}

func (s stream) Write(p []byte) (int, error) {
	done := 0
	for done < len(p) {
		n := min(len(p)-done, MaxFrame)
		if err := s.f.Write(s.k, p[done:done+n]); err != nil {
			return done, err
		}
		done += n
	}
	return done, nil
}

// Read reads one frame into buf, which must hold MaxFrame bytes. The error is
// io.EOF between frames only.
func Read(r io.Reader, buf []byte) (Kind, []byte, error) {
	var head [headSize]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > MaxFrame {
		return 0, nil, fmt.Errorf("a frame of %d bytes, more than %d", n, MaxFrame)
	}
	if _, err := io.ReadFull(r, buf[:n]); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	return Kind(head[0]), buf[:n], nil
}
