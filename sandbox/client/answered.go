package client

import (
	"errors"
	"net"
	"syscall"
	"time"
)

// answerTime is for how long an answer may be on its way from the kernel to net/http.
const answerTime = 500 * time.Millisecond

// answered is a connection whose other side may answer and close while a request is
// still being written, as where an upload is refused. Its answer is there to be read, but
// net/http gives up at the first write that fails unless the answer was
// first: so that waits.
type answered struct{ net.Conn }

func (c answered) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
		time.Sleep(answerTime)
	}
	return n, err
}
