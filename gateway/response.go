package gateway

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"sync/atomic"

	"sallyport/gateway/bodies"
	"sallyport/gateway/grpc"
	"sallyport/gateway/limits"
	"sallyport/gateway/live"
	"sallyport/gateway/websocket"
)

// responseWriter counts bytes that go to a sandbox and remembers the status.
type responseWriter struct {
	http.ResponseWriter
	status  int
	written atomic.Int64
	// length is that of the body, -1 when unknown.
	length int64
	// prompt says to send the head before the body, whose first byte may too.
	prompt bool
	failed bool
	tunnel *websocket.Stream              // a WebSocket of HTTP/2, nil for other requests
	taken  atomic.Pointer[websocket.Conn] // by a WebSocket
	ended  websocket.Ending               // of that
	in     *atomic.Int64                  // what a WebSocket's client sends
	// messages are those of a gRPC call; nil for what is none.
	messages *grpc.Messages
	meter    *limits.Meter
}

func (w *responseWriter) WriteHeader(code int) {
	if code >= 200 || code == http.StatusSwitchingProtocols {
		w.status = code
	}
	if code == http.StatusSwitchingProtocols && w.tunnel != nil {
		w.tunnel.Accept(w.Header())
		code = http.StatusOK
	}
	w.ResponseWriter.WriteHeader(code)
	if w.prompt {
		w.Flush()
	}
}

func (w *responseWriter) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	n, err := w.ResponseWriter.Write(p)
	w.written.Add(int64(n))
	if w.messages != nil {
		w.messages.Pass(p[:n])
	}
	if err != nil && !errors.Is(err, http.ErrBodyNotAllowed) {
		w.failed = true
	}
	return n, err
}

// ReadFrom implements io.ReaderFrom for io.Copy: it saves a buffer for each response. It sends
// each piece as it comes, since the next may take long.
func (w *responseWriter) ReadFrom(src io.Reader) (int64, error) {
	buf := bodies.Chunks.Get().(*[bodies.ChunkSize]byte)
	defer bodies.Chunks.Put(buf)
	var total int64
	for {
		n, err := src.Read(buf[:])
		if n > 0 {
			m, werr := w.Write(buf[:n])
			total += int64(m)
			if werr != nil {
				return total, werr
			}
			if err == nil && total != w.length && !w.more(src) {
				w.Flush()
			}
		}
		if err == io.EOF {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
}

// more tells whether the next piece is there already. The rest of a coding in chunks may be
// no more than its framing.
func (w *responseWriter) more(src io.Reader) bool {
	b, ok := src.(*responseBody)
	return ok && w.length >= 0 && !b.waiting()
}

func (w *responseWriter) Flush() {
	if err := http.NewResponseController(w.ResponseWriter).Flush(); err != nil {
		w.failed = true
	}
}

// Hijack hands the connection to a WebSocket; close ends it.
func (w *responseWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	if w.tunnel != nil {
		c := w.take(w.tunnel)
		w.Flush()
		return c, bufio.NewReadWriter(bufio.NewReader(nothing{}), bufio.NewWriter(c)), nil
	}
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	c := w.take(conn)
	early := rw.Reader.Buffered() // goproxy sends these on first
	w.in.Add(int64(early))
	_ = w.meter.Spend(early) // the next read or write says so
	ahead, _ := rw.Reader.Peek(early)
	if !c.Ahead(ahead) { // the next read says so
		rw.Reader.Reset(nothing{})
	}
	return c, rw, nil
}

func (w *responseWriter) take(conn net.Conn) *websocket.Conn {
	c := websocket.NewConn(conn)
	c.In, c.Out, c.End, c.Spend, c.Gone = w.in, &w.written, &w.ended, w.meter.Spend, errClient
	w.taken.Store(c)
	return c
}

// close ends a connection that was taken: goproxy returns when one of its
// directions ends and leaves the other. One that was ended here is told why.
func (w *responseWriter) close(why error) {
	if c := w.taken.Load(); c != nil {
		if why != nil {
			if c.Goodbye(explain(why), live.Grace/2); w.tunnel == nil { // a stream's last frames arrive by themselves
				c.Linger(live.Grace / 2)
			}
		}
		_ = c.Close()
	}
}

// nothing has no bytes read ahead: those of a stream.
type nothing struct{}

func (nothing) Read([]byte) (int, error) { return 0, io.EOF }
