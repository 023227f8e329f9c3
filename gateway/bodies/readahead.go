package bodies

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"sync"
	"time"
)

// idleTime is how long ReadAhead waits for the next bytes of a body, before an operator
// is asked about it unread: a stream may want an answer first.
const idleTime = 5 * time.Second

// ErrBroken is the error of Whole where the sandbox broke the body off.
var ErrBroken = errors.New("the body ended before it was whole")

// ReadAhead is a request's body that is read ahead, up to a bound, while it is not
// known whether it may leave. Read then gives it from the beginning.
type ReadAhead struct {
	src  io.ReadCloser
	max  int
	of   *Budget
	id   string        // of the sandbox
	Done chan struct{} // closed when nothing more is read ahead

	mu     sync.Mutex
	buf    []byte
	taken  int64 // of the budget
	sum    hash.Hash
	total  int64
	last   time.Time // when bytes came
	err    error     // of src, io.EOF at its end
	free   bool      // it is being carried
	closed bool
}

// NewReadAhead begins to read ahead. Close ends it.
func NewReadAhead(src io.ReadCloser, most int, of *Budget, id string) *ReadAhead {
	s := &ReadAhead{src: src, max: most, of: of, id: id, sum: sha256.New(), last: time.Now(), Done: make(chan struct{})}
	go s.fill()
	return s
}

func (s *ReadAhead) fill() {
	defer close(s.Done)
	for {
		chunk := Chunks.Get().(*[ChunkSize]byte)
		n, err := s.src.Read(chunk[:])
		more := s.add(chunk[:n], err)
		Chunks.Put(chunk)
		if !more {
			return
		}
	}
}

// add takes what was read and tells whether to go on.
func (s *ReadAhead) add(p []byte, err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.buf, s.total, s.last, s.err = append(s.buf, p...), s.total+int64(len(p)), time.Now(), err
	s.sum.Write(p)
	fits := s.of.Take(s.id, int64(len(p))) == nil
	if fits {
		s.taken += int64(len(p))
	}
	return err == nil && fits && !s.free && s.total <= int64(s.max)
}

// Whole waits for the end of the body and returns its SHA-256 in hex and its length. They
// are "" and -1 where the end does not come in time or the body is too large.
func (s *ReadAhead) Whole(ctx context.Context) (digest string, length int64, err error) {
	idle := time.NewTimer(idleTime)
	defer idle.Stop()
	for {
		select {
		case <-ctx.Done():
			return "", -1, ctx.Err()
		case <-s.Done:
			s.mu.Lock()
			defer s.mu.Unlock()
			switch {
			case s.err == io.EOF && s.total <= int64(s.max):
				return hex.EncodeToString(s.sum.Sum(nil)), s.total, nil
			case s.err != nil && s.err != io.EOF:
				return "", -1, ErrBroken
			}
			return "", -1, nil
		case <-idle.C:
			s.mu.Lock()
			left := idleTime - time.Since(s.last)
			s.mu.Unlock()
			if left <= 0 {
				return "", -1, nil
			}
			idle.Reset(left)
		}
	}
}

// Broken tells, once Done is closed, whether the sandbox broke the body off.
func (s *ReadAhead) Broken() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err != nil && s.err != io.EOF
}

// Read returns the bytes that were read ahead, then those that follow.
func (s *ReadAhead) Read(p []byte) (int, error) {
	for {
		s.mu.Lock()
		s.free = true
		if len(s.buf) > 0 {
			n := copy(p, s.buf)
			if s.buf = s.buf[n:]; len(s.buf) == 0 {
				s.empty()
			}
			s.mu.Unlock()
			return n, nil
		}
		err := s.err
		s.mu.Unlock()
		if err != nil {
			return 0, err
		}
		select {
		case <-s.Done:
			s.mu.Lock()
			ready := len(s.buf) > 0 || s.err != nil
			s.mu.Unlock()
			if !ready {
				return s.src.Read(p)
			}
		default:
			<-s.Done // one more read, since it is free
		}
	}
}

// empty gives the memory back. s.mu is held.
func (s *ReadAhead) empty() {
	s.buf = nil
	s.of.Give(s.id, s.taken)
	s.taken = 0
}

// Close ends reading ahead too.
func (s *ReadAhead) Close() error {
	s.mu.Lock()
	s.closed = true
	s.empty()
	s.mu.Unlock()
	return s.src.Close()
}

// ChunkSize is the size of a chunk, in bytes.
const ChunkSize = 32 << 10

// Chunks are buffers for copying: *[ChunkSize]byte.
var Chunks = sync.Pool{New: func() any { return new([ChunkSize]byte) }}
