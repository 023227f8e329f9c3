package gateway

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"sallyport/policy/approval"
)

// grpcMessages follows the length-prefixed messages of a gRPC call ("Length-Prefixed-
// Message" in the gRPC protocol over HTTP/2) to know where one has ended. The zero
// envelope is before the first.
type grpcMessages struct {
	head [5]byte // compressed or not, and the length
	have int     // bytes of the head that have passed
	left uint32  // bytes of the message that have not
}

func (e *grpcMessages) pass(p []byte) {
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
func (e *grpcMessages) between() bool { return e.left == 0 && e.have == 0 }

// grpc tells whether a request is a call of gRPC over HTTP/2.
func grpc(r *http.Request) bool {
	kind := r.Header.Get("Content-Type")
	return r.ProtoMajor == 2 && (kind == "application/grpc" || strings.HasPrefix(kind, "application/grpc+") || strings.HasPrefix(kind, "application/grpc;"))
}

// status renders an answer as a call that ended with its head ("Trailers-Only"
// in the gRPC protocol over HTTP/2).
func (a *answer) status(r *http.Request) *http.Response {
	code := 7 // PERMISSION_DENIED
	switch {
	case a.late:
		code = 4 // DEADLINE_EXCEEDED
	case a.Status == http.StatusBadRequest, a.denied && a.Status > http.StatusInternalServerError:
		code = 3 // INVALID_ARGUMENT
	case a.Status == http.StatusPreconditionRequired:
		code = 9 // FAILED_PRECONDITION
	case a.Status == http.StatusTooManyRequests, a.Status == http.StatusRequestEntityTooLarge:
		code = 8 // RESOURCE_EXHAUSTED
	case a.Status == http.StatusInternalServerError:
		code = 13 // INTERNAL
	case a.Status > http.StatusInternalServerError:
		code = 14 // UNAVAILABLE
	}
	var text bytes.Buffer
	a.print(&text)
	h := http.Header{
		"Content-Type": {"application/grpc"},
		"Grpc-Status":  {strconv.Itoa(code)},
		"Grpc-Message": {grpcEncode(text.Bytes())},
	}
	a.identify(h)
	if a.Retry > 0 {
		h.Set("Grpc-Retry-Pushback-Ms", pushback(a.Retry))
	}
	return &http.Response{
		StatusCode: http.StatusOK, Proto: "HTTP/2.0", ProtoMajor: 2,
		Header: h, Body: http.NoBody, Request: r,
	}
}

// pushback tells gRPC's own clients, which retry by themselves, when to, in
// milliseconds (gRFC A6); not at all where their callers would hang for long.
func pushback(seconds int64) string {
	if seconds > 60 {
		return "-1"
	}
	return strconv.FormatInt(seconds*1000, 10)
}

// grpcEncode encodes what is not printable ASCII in percents.
func grpcEncode(text []byte) string {
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

// grpcTimeout is how long a call's client waits for it ("Timeout" in the gRPC
// protocol over HTTP/2).
func grpcTimeout(r *http.Request) (time.Duration, bool) {
	v := r.Header.Get("Grpc-Timeout")
	if !grpc(r) || len(v) < 2 || len(v) > 9 {
		return 0, false
	}
	unit, ok := map[byte]time.Duration{
		'H': time.Hour, 'M': time.Minute, 'S': time.Second, 'm': time.Millisecond, 'u': time.Microsecond, 'n': time.Nanosecond,
	}[v[len(v)-1]]
	n, err := strconv.ParseUint(v[:len(v)-1], 10, 32)
	if !ok || err != nil {
		return 0, false
	}
	return time.Duration(min(n, uint64(approval.MaxTimeout/unit))) * unit, true
}

// leaveTime tells the upstream how much of a call's time is left.
func leaveTime(ctx context.Context, r *http.Request) {
	if _, ok := grpcTimeout(r); !ok {
		return
	}
	if end, ok := ctx.Deadline(); ok {
		r.Header.Set("Grpc-Timeout", strconv.FormatInt(max(time.Until(end).Milliseconds(), 1), 10)+"m")
	}
}
