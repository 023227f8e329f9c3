package main

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"sallyport/sandbox/datapath"
)

// sink is the gateway's end: it reads what comes to its bulk port, and sends
// back what comes to the other.
type sink struct {
	listener *net.TCPListener
	running  sync.WaitGroup

	mu    sync.Mutex
	bytes int64 // read on the bulk port
	open  int   // connections to it
}

const (
	bulkPort = "443"
	echoPort = "7"
)

func newSink() (*sink, error) {
	l, err := datapath.Listen()
	if err != nil {
		return nil, err
	}
	s := &sink{listener: l}
	s.running.Go(func() {
		for {
			c, err := l.AcceptTCP()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				s.running.Go(func() { s.serve(c) })
			}
		}
	})
	return s, nil
}

func (s *sink) serve(c *net.TCPConn) {
	defer c.Close()
	if _, port, _ := net.SplitHostPort(c.LocalAddr().String()); port == echoPort {
		io.Copy(c, c)
		return
	}
	s.note(0, 1)
	defer s.note(0, -1)
	b := make([]byte, 1<<20)
	for {
		n, err := c.Read(b)
		s.note(int64(n), 0)
		if err != nil {
			return
		}
	}
}

func (s *sink) note(bytes int64, connections int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bytes += bytes
	s.open += connections
}

// total is what has been read until now.
func (s *sink) total() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bytes
}

// drain waits until the senders' connections have ended.
func (s *sink) drain() error {
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		s.mu.Lock()
		open := s.open
		s.mu.Unlock()
		if open == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return errors.New("connections do not end")
		}
	}
}

func (s *sink) port() int { return s.listener.Addr().(*net.TCPAddr).Port }

func (s *sink) close() {
	s.listener.Close()
	s.running.Wait()
}
