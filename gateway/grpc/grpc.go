// Package grpc reads what the gateway has to know of calls of gRPC, which are requests by
// HTTP/2: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
package grpc

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Messages follows the length-prefixed messages of a call to know where one has ended. The
// zero Messages is before the first.
type Messages struct {
	head [5]byte // compressed or not, and the length
	have int     // bytes of the head that have passed
	left uint32  // bytes of the message that have not
}

// Pass follows bytes that go by.
func (e *Messages) Pass(p []byte) {
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

// Between reports whether a call may end here.
func (e *Messages) Between() bool { return e.left == 0 && e.have == 0 }

// IsCall reports whether a request is a call of gRPC.
func IsCall(r *http.Request) bool {
	kind := r.Header.Get("Content-Type")
	return r.ProtoMajor == 2 && (kind == "application/grpc" || strings.HasPrefix(kind, "application/grpc+") || strings.HasPrefix(kind, "application/grpc;"))
}

// EncodeMessage writes a Grpc-Message: what is not printable ASCII is encoded in percents.
func EncodeMessage(text []byte) string {
	var b strings.Builder
	for _, c := range bytes.TrimSpace(text) {
		if c >= ' ' && c <= '~' && c != '%' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// maxTimeout bounds what Timeout returns.
const maxTimeout = time.Hour

// Timeout returns for how long a call's client waits for it, an hour at most.
func Timeout(r *http.Request) (time.Duration, bool) {
	v := r.Header.Get("Grpc-Timeout")
	if !IsCall(r) || len(v) < 2 || len(v) > 9 {
		return 0, false
	}
	unit, ok := map[byte]time.Duration{
		'H': time.Hour, 'M': time.Minute, 'S': time.Second, 'm': time.Millisecond, 'u': time.Microsecond, 'n': time.Nanosecond,
	}[v[len(v)-1]]
	n, err := strconv.ParseUint(v[:len(v)-1], 10, 32)
	if !ok || err != nil {
		return 0, false
	}
	return time.Duration(min(n, uint64(maxTimeout/unit))) * unit, true
}

// SetTimeout tells the upstream how much is left of a call's time.
func SetTimeout(ctx context.Context, r *http.Request) {
	if _, ok := Timeout(r); !ok {
		return
	}
	if end, ok := ctx.Deadline(); ok {
		r.Header.Set("Grpc-Timeout", strconv.FormatInt(max(time.Until(end).Milliseconds(), 1), 10)+"m")
	}
}
