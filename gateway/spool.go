package gateway

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

// spoolIdle is how long the next bytes of a body are waited for, before it is
// asked about unread: a stream may want an answer first.
const spoolIdle = 5 * time.Second

var errSpool = errors.New("the body ended before it was whole")

// spool is a request's body that is read ahead, up to a bound, while it is not
// known whether it may leave. Read then gives it from the beginning.
type spool struct {
	src  io.ReadCloser
	max  int
	of   *room
	id   string        // of the sandbox
	done chan struct{} // closed when nothing more is read ahead

	mu     sync.Mutex
	buf    []byte
	taken  int64 // of room
	sum    hash.Hash
	total  int64
	last   time.Time // when bytes came
	err    error     // of src, io.EOF at its end
	free   bool      // it is being carried
	closed bool
}

// readAhead begins. Close ends it.
func readAhead(src io.ReadCloser, most int, of *room, id string) *spool {
	s := &spool{src: src, max: most, of: of, id: id, sum: sha256.New(), last: time.Now(), done: make(chan struct{})}
	go s.fill()
	return s
}

func (s *spool) fill() {
	defer close(s.done)
	for {
		chunk := buffers.Get().(*[copySize]byte)
		n, err := s.src.Read(chunk[:])
		more := s.add(chunk[:n], err)
		buffers.Put(chunk)
		if !more {
			return
		}
	}
}

// add takes what was read and tells whether to go on.
func (s *spool) add(p []byte, err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.buf, s.total, s.last, s.err = append(s.buf, p...), s.total+int64(len(p)), time.Now(), err
	s.sum.Write(p)
	fits := s.of.take(s.id, int64(len(p))) == nil
	if fits {
		s.taken += int64(len(p))
	}
	return err == nil && fits && !s.free && s.total <= int64(s.max)
}

// whole waits for the end of the body and returns its digest. Where the end does
// not come, or the body is too large, it is nothing; the error is then only of
// what went wrong.
func (s *spool) whole(ctx context.Context) (digest string, length int64, err error) {
	idle := time.NewTimer(spoolIdle)
	defer idle.Stop()
	for {
		select {
		case <-ctx.Done():
			return "", -1, ctx.Err()
		case <-s.done:
			s.mu.Lock()
			defer s.mu.Unlock()
			switch {
			case s.err == io.EOF && s.total <= int64(s.max):
				return hex.EncodeToString(s.sum.Sum(nil)), s.total, nil
			case s.err != nil && s.err != io.EOF:
				return "", -1, errSpool
			}
			return "", -1, nil
		case <-idle.C:
			s.mu.Lock()
			left := spoolIdle - time.Since(s.last)
			s.mu.Unlock()
			if left <= 0 {
				return "", -1, nil
			}
			idle.Reset(left)
		}
	}
}

// broken tells, once done, whether whoever sends the body has gone.
func (s *spool) broken() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err != nil && s.err != io.EOF
}

// Read gives what was read ahead, then what follows.
func (s *spool) Read(p []byte) (int, error) {
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
		case <-s.done:
			s.mu.Lock()
			ready := len(s.buf) > 0 || s.err != nil
			s.mu.Unlock()
			if !ready {
				return s.src.Read(p)
			}
		default:
			<-s.done // one more read, since it is free
		}
	}
}

// empty gives the memory back. s.mu is held.
func (s *spool) empty() {
	s.buf = nil
	s.of.give(s.id, s.taken)
	s.taken = 0
}

// Close ends reading ahead too.
func (s *spool) Close() error {
	s.mu.Lock()
	s.closed = true
	s.empty()
	s.mu.Unlock()
	return s.src.Close()
}
