package testnet

import (
	"io"
	"net"
	"time"
)

// Again is a connection on which the same bytes come N times, each time after something
// has been written.
type Again struct {
	net.Conn
	Text string
	N    int
	due  int // bytes of Text that may be read
}

func (a *Again) Read(p []byte) (int, error) {
	if a.due == 0 {
		if a.N == 0 {
			return 0, io.EOF
		}
		a.N--
		a.due = len(a.Text)
	}
	n := copy(p, a.Text[len(a.Text)-a.due:])
	a.due -= n
	return n, nil
}

func (a *Again) Write(p []byte) (int, error)     { return len(p), nil }
func (a *Again) Close() error                    { return nil }
func (a *Again) RemoteAddr() net.Addr            { return &net.TCPAddr{} }
func (a *Again) SetDeadline(time.Time) error     { return nil }
func (a *Again) SetReadDeadline(time.Time) error { return nil }
