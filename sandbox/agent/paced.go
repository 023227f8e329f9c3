package agent

import (
	"encoding/binary"
	"io"
	"sync"
)

// maxUnanswered bounds the requests of one SFTP session that have no answer yet. The
// package sftp keeps the answers to all that came after one that takes long.
const maxUnanswered = 256

// paced is a connection of an SFTP session, which reads no further request while too many
// have no answer.
type paced struct {
	io.ReadWriteCloser
	requests, answers packets

	mu         sync.Mutex
	changed    sync.Cond
	unanswered int
	over       bool
}

func newPaced(c io.ReadWriteCloser) *paced {
	p := &paced{ReadWriteCloser: c}
	p.changed.L = &p.mu
	return p
}

func (p *paced) Read(b []byte) (int, error) {
	if p.requests.between() && !p.begin() {
		return 0, io.ErrClosedPipe
	}
	n, err := p.ReadWriteCloser.Read(b[:min(len(b), p.requests.rest())])
	if ended := p.requests.pass(b[:n]); ended > 0 {
		p.mu.Lock()
		p.unanswered += ended
		p.mu.Unlock()
	}
	return n, err
}

// begin waits until one more request may come; false: none will.
func (p *paced) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.unanswered >= maxUnanswered && !p.over {
		p.changed.Wait()
	}
	return !p.over
}

func (p *paced) Write(b []byte) (int, error) {
	n, err := p.ReadWriteCloser.Write(b)
	ended := p.answers.pass(b[:n])
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unanswered -= ended
	p.over = p.over || err != nil // what has not gone is answered by nothing else
	p.changed.Broadcast()
	return n, err
}

func (p *paced) Close() error {
	p.mu.Lock()
	p.over = true
	p.changed.Broadcast()
	p.mu.Unlock()
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

// pass takes what comes, and returns how many packets have ended with it.
func (p *packets) pass(b []byte) (ended int) {
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
			ended++
		}
		b = b[n:]
	}
	return ended
}
