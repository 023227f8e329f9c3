package http1

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// unknown is the length of a body that has not been declared.
const unknown = -1

// maxHeld is what is kept of a body without declared length, in bytes: one that
// ends within it gets its length, a longer one goes out in chunks.
const maxHeld = 2 << 10

var errShort = errors.New("the handler wrote less than it declared")

// response is an http.ResponseWriter, http.Flusher and http.Hijacker. Its bytes of one
// request are gone with the next.
type response struct {
	conn    *conn
	request *http.Request
	header  http.Header

	mu       sync.Mutex // between greet, which a body's reader calls, and the head
	status   int
	declared int64 // Content-Length, or unknown
	written  int64 // bytes of the body
	sent     bool  // the head is out, or in the buffer
	awaited  bool  // the client waits for 100 (Continue) before it sends its body
	chunked  bool
	last     bool   // the connection ends after this
	body     []byte // held back until its length or its end is known
	trailers []string
	failed   error
}

func (w *response) Header() http.Header { return w.header }

// WriteHeader sends an informational response at once (RFC 9110, section 15.2)
// and remembers a final one.
func (w *response) WriteHeader(code int) {
	switch {
	case code < 100 || code > 999:
		panic(fmt.Sprintf("invalid status code %d", code))
	case w.status != 0 || w.conn.hijacked:
	case code < 200 && code != http.StatusSwitchingProtocols:
		w.inform(code)
	default:
		w.settle(code)
	}
}

func (w *response) settle(code int) {
	w.status = code
	if n, ok := length(w.header); ok {
		w.declared = n
	} else {
		delete(w.header, "Content-Length")
	}
	if code == http.StatusSwitchingProtocols {
		w.head()
		w.flush()
	}
}

// tunnel tells whether what follows the response is no HTTP (RFC 9110, sections
// 9.3.6 and 15.2.2): it is the handler's that hijacks the connection, or nobody's.
func (w *response) tunnel() bool {
	return w.status == http.StatusSwitchingProtocols || w.request.Method == http.MethodConnect && w.status/100 == 2
}

// length reads a Content-Length that stands alone.
func length(h http.Header) (int64, bool) {
	v := h["Content-Length"]
	if len(v) != 1 {
		return 0, false
	}
	n, err := strconv.ParseInt(textproto.TrimString(v[0]), 10, 64)
	return n, err == nil && n >= 0
}

// inform sends what is in the header now with a status from 100 to 199.
func (w *response) inform(code int) {
	if !w.request.ProtoAtLeast(1, 1) {
		return // HTTP/1.0 has none (RFC 9110, section 15.2)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.conn.writer()
	statusLine(out, code)
	_ = w.header.WriteSubset(out, framing)
	_, _ = out.WriteString("\r\n")
	w.keep(out.Flush())
}

// greet asks the client for the body that it waits to send, unless the answer
// is on its way already.
func (w *response) greet() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sent {
		return nil
	}
	w.awaited = false
	out := w.conn.writer()
	_, _ = out.WriteString("HTTP/1.1 100 Continue\r\n\r\n")
	return out.Flush()
}

// framing are the headers that say how a message ends: they are written from
// what is known, never copied.
var framing = map[string]bool{"Content-Length": true, "Transfer-Encoding": true, "Trailer": true}

func statusLine(out *bufio.Writer, code int) {
	b := append(out.AvailableBuffer(), "HTTP/1.1 "...)
	b = strconv.AppendInt(b, int64(code), 10)
	b = append(b, ' ')
	b = append(b, http.StatusText(code)...)
	_, _ = out.Write(append(b, "\r\n"...))
}

// bodyless tells which responses end with their head (RFC 9112, section 6.3).
func (w *response) bodyless() bool {
	return w.request.Method == http.MethodHead || w.status == http.StatusNoContent || w.status == http.StatusNotModified || w.tunnel()
}

// head puts the head into the buffer.
func (w *response) head() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sent {
		return
	}
	w.sent = true
	out, r := w.conn.writer(), w.request
	modern := r.ProtoAtLeast(1, 1)
	tunnel := w.tunnel()
	for _, line := range w.header["Trailer"] {
		for name := range strings.SplitSeq(line, ",") {
			if name = http.CanonicalHeaderKey(textproto.TrimString(name)); name != "" && !framing[name] {
				w.trailers = append(w.trailers, name)
			}
		}
	}
	w.chunked = modern && !w.bodyless() && (w.declared == unknown || len(w.trailers) > 0)
	w.last = w.last || r.Close || w.awaited || tunnel || names(w.header["Connection"], "close") || w.conn.server.closing.Load() ||
		w.declared == unknown && !w.chunked && !w.bodyless()

	statusLine(out, w.status)
	exclude := own
	if tunnel {
		exclude = framing // Connection and Upgrade are the handler's
	}
	_ = w.header.WriteSubset(out, exclude)
	switch {
	case tunnel:
	case w.chunked:
		_, _ = out.WriteString("Transfer-Encoding: chunked\r\n")
		if len(w.trailers) > 0 {
			_, _ = fmt.Fprintf(out, "Trailer: %s\r\n", strings.Join(w.trailers, ", "))
		}
	case w.declared != unknown && w.status != http.StatusNoContent:
		b := append(out.AvailableBuffer(), "Content-Length: "...)
		b = strconv.AppendInt(b, w.declared, 10)
		_, _ = out.Write(append(b, "\r\n"...))
	}
	if len(w.header["Date"]) == 0 && !tunnel {
		b := time.Now().UTC().AppendFormat(append(out.AvailableBuffer(), "Date: "...), http.TimeFormat)
		_, _ = out.Write(append(b, "\r\n"...))
	}
	switch {
	case tunnel:
	case w.last:
		_, _ = out.WriteString("Connection: close\r\n")
	case !modern:
		_, _ = out.WriteString("Connection: keep-alive\r\n")
	}
	_, err := out.WriteString("\r\n")
	w.keep(err)
}

// own are the headers that head writes itself.
var own = map[string]bool{
	"Content-Length": true, "Transfer-Encoding": true, "Trailer": true,
	"Connection": true, "Keep-Alive": true, "Proxy-Connection": true,
}

func names(lines []string, token string) bool {
	return slices.ContainsFunc(lines, func(line string) bool {
		for t := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(textproto.TrimString(t), token) {
				return true
			}
		}
		return false
	})
}

func (w *response) Write(p []byte) (int, error) {
	if w.conn.hijacked {
		return 0, http.ErrHijacked
	}
	if w.status == 0 {
		w.settle(http.StatusOK)
	}
	switch {
	case w.failed != nil:
		return 0, w.failed
	case len(p) == 0:
		return 0, nil
	case w.bodyless():
		return 0, http.ErrBodyNotAllowed
	case w.declared != unknown && w.written+int64(len(p)) > w.declared:
		return 0, http.ErrContentLength
	}
	w.written += int64(len(p))
	if !w.sent && w.declared == unknown && len(w.body)+len(p) <= maxHeld {
		w.body = append(w.body, p...)
		return len(p), nil
	}
	w.head()
	w.piece(w.body, p)
	w.body = w.body[:0]
	return len(p), w.failed
}

// piece writes some of the body, which may be in two parts.
func (w *response) piece(parts ...[]byte) {
	out := w.conn.writer()
	size := 0
	for _, p := range parts {
		size += len(p)
	}
	if size == 0 {
		return
	}
	if w.chunked {
		_, _ = out.Write(append(strconv.AppendInt(out.AvailableBuffer(), int64(size), 16), "\r\n"...))
	}
	var err error
	for _, p := range parts {
		_, err = out.Write(p)
	}
	if w.chunked {
		_, err = out.WriteString("\r\n")
	}
	w.keep(err) // bufio's errors stay
}

func (w *response) keep(err error) {
	if err != nil && w.failed == nil {
		w.failed = err
	}
}

// Flush implements http.Flusher.
func (w *response) Flush() { _ = w.FlushError() }

// FlushError sends what there is. http.ResponseController calls it.
func (w *response) FlushError() error {
	if w.conn.hijacked {
		return http.ErrHijacked
	}
	if w.status == 0 {
		w.settle(http.StatusOK)
	}
	w.head()
	w.piece(w.body)
	w.body = w.body[:0]
	w.flush()
	return w.failed
}

func (w *response) flush() { w.keep(w.conn.writer().Flush()) }

// end completes the response when the handler has returned. After an error
// the connection can only be broken off.
func (w *response) end() error {
	if w.status == 0 {
		w.settle(http.StatusOK)
	}
	if !w.sent {
		if w.declared == unknown && !w.bodyless() && len(w.header["Trailer"]) == 0 && !w.late() {
			w.declared = int64(len(w.body))
		}
		w.head()
	}
	w.piece(w.body)
	w.body = w.body[:0]
	if w.declared != unknown && !w.bodyless() && w.written != w.declared {
		w.keep(errShort)
	}
	if w.chunked && w.failed == nil {
		out := w.conn.writer()
		_, _ = out.WriteString("0\r\n")
		_ = w.trailer().Write(out)
		_, err := out.WriteString("\r\n")
		w.keep(err)
	}
	w.flush()
	return w.failed
}

// late tells whether the handler has set trailers that it had not announced.
func (w *response) late() bool {
	for name := range w.header {
		if strings.HasPrefix(name, http.TrailerPrefix) {
			return true
		}
	}
	return false
}

// trailer holds the fields that were announced, and those under
// http.TrailerPrefix.
func (w *response) trailer() http.Header {
	var t http.Header
	set := func(name string, values []string) {
		if t == nil {
			t = make(http.Header)
		}
		t[name] = values
	}
	for _, name := range w.trailers {
		if v := w.header[name]; len(v) > 0 {
			set(name, v)
		}
	}
	for name, values := range w.header {
		if rest, ok := strings.CutPrefix(name, http.TrailerPrefix); ok && !framing[http.CanonicalHeaderKey(rest)] {
			set(rest, values)
		}
	}
	return t
}

// Hijack implements http.Hijacker. Bytes that were written before have been sent.
func (w *response) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c := w.conn
	if c.hijacked {
		return nil, nil, http.ErrHijacked
	}
	if c.body != nil {
		c.body.end()
	}
	c.unwatch()
	_ = c.SetReadDeadline(time.Time{})
	if c.out != nil && w.sent {
		w.flush()
	}
	c.hijacked = true
	out := bufio.NewWriterSize(c.Conn, minRead)
	c.release()
	c.server.leave(c)
	return c.Conn, bufio.NewReadWriter(c.in.Reader, out), w.failed
}
