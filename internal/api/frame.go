package api

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
)

// protocol is the Upgrade token of a command's stream (RFC 9110, section 7.8).
// After 101 both sides send frames: a kind byte, the payload's length in bytes
// as 32 bits big-endian, and the payload.
const protocol = "sallyport-exec/1"

type kind byte

const (
	kindStdin  kind = iota // client to server; empty: end of input
	kindStdout             // server to client
	kindStderr             // server to client
	kindExit               // server to client, the last: JSON of exit
	kindAlive              // server to client, empty: asks whether it is still there
)

// maxFrame bounds a payload, in bytes.
const maxFrame = 64 << 10

// exit is how a command ended: with a code, or with an error of ours.
type exit struct {
	Code  int      `json:"code"`
	Error *Problem `json:"error,omitempty"`
}

// frameWriter writes frames of several kinds to one connection.
type frameWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (f *frameWriter) write(k kind, p []byte) error {
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

// stream is an io.Writer of one kind.
func (f *frameWriter) stream(k kind) io.Writer { return streamWriter{f, k} }

type streamWriter struct {
	f *frameWriter
	k kind
}

func (s streamWriter) Write(p []byte) (int, error) {
	done := 0
	for done < len(p) {
		n := min(len(p)-done, maxFrame)
		if err := s.f.write(s.k, p[done:done+n]); err != nil {
			return done, err
		}
		done += n
	}
	return done, nil
}

// readFrame reads one frame into buf, which must hold maxFrame bytes.
func readFrame(r io.Reader, buf []byte) (kind, []byte, error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > maxFrame {
		return 0, nil, fmt.Errorf("a frame of %d bytes, more than %d", n, maxFrame)
	}
	if _, err := io.ReadFull(r, buf[:n]); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	return kind(head[0]), buf[:n], nil
}
