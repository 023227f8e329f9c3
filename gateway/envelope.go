package gateway

import "encoding/binary"

// envelope follows the length-prefixed messages of a gRPC call ("Length-Prefixed-
// Message" in the gRPC protocol over HTTP/2) to know where one has ended. The zero
// envelope is before the first.
type envelope struct {
	head [5]byte // compressed or not, and the length
	have int     // bytes of the head that have passed
	left uint32  // bytes of the message that have not
}

func (e *envelope) pass(p []byte) {
	for len(p) > 0 {
		if e.left > 0 {
			n := min(int64(e.left), int64(len(p)))
			e.left -= uint32(n)
			p = p[n:]
			continue
		}
		n := copy(e.head[e.have:], p)
		e.have += n
		p = p[n:]
		if e.have == len(e.head) {
			e.left, e.have = binary.BigEndian.Uint32(e.head[1:]), 0
		}
	}
}

// between tells whether a call may end here.
func (e *envelope) between() bool { return e.left == 0 && e.have == 0 }
