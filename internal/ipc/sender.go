package ipc

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// errSlow ends a link whose other side does not read.
var errSlow = errors.New("the other side does not read what it is sent")

// sender writes frames in the order in which they come. The first caller writes for all
// that come meanwhile.
type sender struct {
	conn     *net.UnixConn
	patience time.Duration
	most     int // bytes that may wait

	mu      sync.Mutex
	writing bool
	chunks  []chunk
	size    int
	spare   []byte // for the next chunk
	err     error
}

// chunk is frames for one write. A file goes with a chunk's first byte.
type chunk struct {
	data []byte
	file int // descriptor, or 0
}

// send returns when the frame is written or another goroutine is writing it. A
// file is duplicated, so that the caller may close it.
func (s *sender) send(h header, body []byte, f *os.File) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.err != nil:
		return s.err
	case s.size+headerSize+len(body) > s.most:
		s.err = errSlow
		return s.err
	}
	if n := len(s.chunks); n == 0 || f != nil {
		c := chunk{data: s.spare[:0]}
		s.spare = nil
		if f != nil {
			var err error
			if c.file, err = duplicate(f); err != nil {
				return fmt.Errorf("duplicating a file: %w", err)
			}
		}
		s.chunks = append(s.chunks, c)
	}
	c := &s.chunks[len(s.chunks)-1]
	c.data = append(h.append(c.data), body...)
	s.size += headerSize + len(body)
	if s.writing {
		return nil
	}
	s.writing = true
	// Other callers that are ready to send do so first. When nobody is, this costs nothing.
	s.mu.Unlock()
	runtime.Gosched()
	s.mu.Lock()
	for len(s.chunks) > 0 && s.err == nil {
		c := s.chunks[0]
		s.chunks = s.chunks[1:]
		s.mu.Unlock()
		err := s.write(c)
		s.mu.Lock()
		s.size -= len(c.data)
		if err != nil && s.err == nil {
			s.err = err
		}
		if cap(c.data) <= 64<<10 {
			s.spare = c.data
		}
	}
	for _, c := range s.chunks {
		c.close()
	}
	s.chunks, s.writing = nil, false
	return s.err
}

func (c chunk) close() {
	if c.file != 0 {
		_ = unix.Close(c.file)
	}
}

func (s *sender) write(c chunk) error {
	defer c.close()
	if err := s.conn.SetWriteDeadline(time.Now().Add(s.patience)); err != nil {
		return err
	}
	rest := c.data
	if c.file != 0 {
		n, _, err := s.conn.WriteMsgUnix(rest, unix.UnixRights(c.file), nil)
		if err != nil {
			return slow(err)
		}
		rest = rest[n:]
	}
	_, err := s.conn.Write(rest)
	return slow(err)
}

func slow(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return errSlow
	}
	return err
}

// duplicate leaves the file's mode as it is, which File.Fd would not.
func duplicate(f *os.File) (fd int, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	cerr := raw.Control(func(old uintptr) {
		fd, err = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 3)
	})
	return fd, errors.Join(err, cerr)
}
