package agent

import (
	"encoding/binary"
	"io"
	"sync"
)

// paced is a connection of an SFTP session, which reads a request once the one before it
// has its answer. Package sftp has several workers: without this they would write the parts
// of a file out of order, and the package would keep all answers that follow the answer to
// a request that takes long.
type paced struct {
	io.ReadWriteCloser
	requests, answers packets

	turn chan struct{} // has an element while no request is without an answer
	over chan struct{} // closed when no further request comes
	end  func()        // closes over
}

func newPaced(c io.ReadWriteCloser) *paced {
	p := &paced{ReadWriteCloser: c, turn: make(chan struct{}, 1), over: make(chan struct{})}
	p.end = sync.OnceFunc(func() { close(p.over) })
	p.turn <- struct{}{}
	return p
}

func (p *paced) Read(b []byte) (int, error) {
	if p.requests.between() {
		select {
		case <-p.turn:
		case <-p.over:
			return 0, io.ErrClosedPipe
		}
	}
	n, err := p.ReadWriteCloser.Read(b[:min(len(b), p.requests.rest())])
	p.requests.pass(b[:n])
	return n, err
}

func (p *paced) Write(b []byte) (int, error) {
	n, err := p.ReadWriteCloser.Write(b)
	if p.answers.pass(b[:n]) {
		select {
		case p.turn <- struct{}{}:
		default: // an answer to nothing
		}
	}
	if err != nil {
		p.end() // nothing else answers what has not gone
	}
	return n, err
}

func (p *paced) Close() error {
	p.end()
	return p.ReadWriteCloser.Close()
}

// packets follows a stream of packets, each after its length as 32 bits big-endian.
type packets struct {
	head [4]byte
	have int   // bytes of head
	body int64 // bytes to come
}

// between tells whether a packet would begin now.
func (p *packets) between() bool { return p.have == 0 }

// rest is how many bytes can come without the end of the head or of the packet.
func (p *packets) rest() int {
	if p.have < len(p.head) {
		return len(p.head) - p.have
	}
	return int(p.body)
}

// pass takes what comes, and reports whether a packet has ended with it.
func (p *packets) pass(b []byte) (ended bool) {
	for len(b) > 0 {
		n := min(len(b), p.rest())
		if p.have < len(p.head) {
			if p.have += copy(p.head[p.have:], b[:n]); p.have == len(p.head) {
				p.body = int64(binary.BigEndian.Uint32(p.head[:]))
			}
		} else {
			p.body -= int64(n)
		}
		if p.have == len(p.head) && p.body == 0 {
			p.have = 0
			ended = true
		}
		b = b[n:]
	}
	return ended
}
