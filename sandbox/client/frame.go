package client

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
)

// Protocol is the Upgrade token of a command's stream (RFC 9110, section 7.8).
// After 101 both sides send frames: a kind byte, the payload's length in bytes
// as 32 bits big-endian, and the payload.
const Protocol = "sallyport-exec/1"

// Kind says what a frame is.
type Kind byte

const (
	KindStdin  Kind = iota // client to server; empty: end of input
	KindStdout             // server to client
	KindStderr             // server to client
	KindExit               // server to client, the last: JSON of Exit
	KindAlive              // server to client, empty: asks whether it is still there
)

// MaxFrame bounds a payload, in bytes.
const MaxFrame = 64 << 10

// Exit is how a command ended: with a code, or with an error of ours.
type Exit struct {
	Code  int      `json:"code"`
	Error *Problem `json:"error,omitempty"`
}

// FrameWriter writes frames of several kinds to one connection.
type FrameWriter struct {
	mu sync.Mutex
	w  io.Writer
}

// NewFrameWriter returns a writer of frames to w.
func NewFrameWriter(w io.Writer) *FrameWriter { return &FrameWriter{w: w} }

// WriteFrame writes one frame; p is at most MaxFrame long.
func (f *FrameWriter) WriteFrame(k Kind, p []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var head [5]byte
	head[0] = byte(k)
	binary.BigEndian.PutUint32(head[1:], uint32(len(p)))
	if _, err := f.w.Write(head[:]); err != nil {
		return err
	}
	_, err := f.w.Write(p)
	return err
}

// Stream is an io.Writer of one kind.
func (f *FrameWriter) Stream(k Kind) io.Writer { return streamWriter{f, k} }

type streamWriter struct {
	f *FrameWriter
	k Kind
}

func (s streamWriter) Write(p []byte) (int, error) {
	done := 0
	for done < len(p) {
		n := min(len(p)-done, MaxFrame)
		if err := s.f.WriteFrame(s.k, p[done:done+n]); err != nil {
			return done, err
		}
		done += n
	}
	return done, nil
}

// ReadFrame reads one frame into buf, which must hold MaxFrame bytes.
func ReadFrame(r io.Reader, buf []byte) (Kind, []byte, error) {
	var head [5]byte
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
