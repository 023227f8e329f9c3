package gateway

import (
	"bufio"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sallyport/gateway/credential"
	"sallyport/gateway/websocket"
)

// errClient says that the sandbox's end of a connection is gone.
var errClient = errors.New("the sandbox went away")

// body is an upstream's response on its way to goproxy. It remembers how it
// ended, which goproxy does not tell, and is scrubbed in place, so that goproxy
// leaves the Content-Length alone: scrubbing keeps it true.
type body struct {
	io.ReadCloser
	raw      io.Reader // below the scrubber
	response *http.Response
	host     string               // that it comes from
	exchange *exchange            // that it answers
	exposure *credential.Exposure // of the sandbox
	scrubber *credential.Scrubber // for all that the sandbox's requests were sent with
	strict   bool                 // the host had been sent a credential before, or is by this request
	err      error                // but for io.EOF
	meter    *limitMeter
	bill     *bill         // nil where no tokens are counted
	stall    time.Duration // how long who reads may take between two reads
	patience *time.Timer   // for that, nil where nothing is held

	stray func() // counts a secret that the host had never been sent

	mu     sync.Mutex // a WebSocket's come while it ends
	strays int
	hits   map[string]int      // by credential
	strewn map[string]struct{} // credentials that are counted already in this answer
}

// waiting tells whether nothing of the body has come yet.
func (b *body) waiting() bool {
	ahead, ok := b.raw.(interface{ Buffered() int })
	return !ok || ahead.Buffered() == 0
}

// hit records an occurrence. An answer tells no more by having a secret twice, so it is
// counted once.
func (b *body) hit(f credential.Found) {
	b.mu.Lock()
	if b.hits == nil {
		b.hits = make(map[string]int)
	}
	b.hits[f.Name]++
	_, counted := b.strewn[f.Name]
	stray := !f.Public && !counted && !b.exposure.Sent(b.host, f.Name)
	if stray {
		if b.strewn == nil {
			b.strewn = make(map[string]struct{})
		}
		b.strewn[f.Name] = struct{}{}
		b.strays++
	}
	b.mu.Unlock()
	if stray {
		b.stray()
	}
}

// anew begins another answer: each message of a WebSocket is one.
func (b *body) anew() {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.strewn)
}

// found says how often which credential was in the response.
// strays is how many times the host had never been sent what was injected.
func (b *body) found() (names []string, total, strays int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.hits == nil {
		return nil, 0, 0
	}
	for _, n := range b.hits {
		total += n
	}
	return slices.Sorted(maps.Keys(b.hits)), total, b.strays
}

// scrub takes the secrets out of the response's head, and of its body and
// trailers as they are read. goproxy goes on seeing the body that it knows.
func (b *body) scrub() error {
	resp := b.response
	if resp.Body == b {
		resp.Body = b.ReadCloser
		defer func() { b.ReadCloser, resp.Body = resp.Body, b }()
	}
	if b.bill == nil {
		return b.scrubber.Pass(resp, b.hit, b.searched)
	}
	return b.bill.open(b)
}

// searched says that nothing unsearched may pass, from now on: the host may have
// been sent a credential after this request was, and have waited for it.
func (b *body) searched() bool {
	return b.strict && !b.scrubber.None() || b.exposure.Reached(b.host)
}

// frames is a WebSocket from an upstream, scrubbed frame by frame.
func (b *body) frames(resp *http.Response) error {
	conn, ok := resp.Body.(io.ReadWriteCloser)
	if !ok || len(resp.Header["Sec-Websocket-Extensions"]) > 0 { // which were not asked for
		return errUpgrade
	}
	resp.Body = struct {
		io.Reader
		io.WriteCloser
	}{b.scrubber.Frames(conn, b.hit, b.anew), conn}
	return b.scrubber.Response(resp, b.hit)
}

// expect has gone called when nothing has been read for as long: what is decoded
// takes memory that others wait for, and a stream of HTTP/2 can be left unread while
// its connection is not.
func (b *body) expect(patience time.Duration, gone func()) {
	if b.response.Uncompressed && b.response.Body == b {
		b.stall = patience
		b.patience = time.AfterFunc(patience, gone)
	}
}

func (b *body) Read(p []byte) (int, error) {
	if b.patience != nil {
		b.patience.Stop()
		defer b.patience.Reset(b.stall)
	}
	n, err := b.ReadCloser.Read(p)
	if b.bill != nil {
		b.bill.read(p[:n], err)
	}
	if over := b.meter.spend(n); over != nil {
		n, err = 0, over
	}
	if err != nil && err != io.EOF {
		b.err = err
	}
	return n, err
}

// Close also goes over the trailers, which are there once the body has been
// read: goproxy sends them after it has closed it.
func (b *body) Close() error {
	if b.patience != nil {
		b.patience.Stop()
	}
	b.exchange.tidy(b.response.Trailer)
	return b.ReadCloser.Close()
}

const copySize = 32 << 10

var buffers = sync.Pool{New: func() any { return new([copySize]byte) }}

// writer counts what goes to a sandbox and remembers its status.
type writer struct {
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
	messages *envelope
	meter    *limitMeter
}

func (w *writer) WriteHeader(code int) {
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

func (w *writer) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	n, err := w.ResponseWriter.Write(p)
	w.written.Add(int64(n))
	if w.messages != nil {
		w.messages.pass(p[:n])
	}
	if err != nil && !errors.Is(err, http.ErrBodyNotAllowed) {
		w.failed = true
	}
	return n, err
}

// ReadFrom is what io.Copy uses: it saves a buffer for each response. It sends
// each piece as it comes, since the next may take long.
func (w *writer) ReadFrom(src io.Reader) (int64, error) {
	buf := buffers.Get().(*[copySize]byte)
	defer buffers.Put(buf)
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

// more tells whether the next piece is there already. What is left of a coding
// in chunks may be no more than its framing.
func (w *writer) more(src io.Reader) bool {
	b, ok := src.(*body)
	return ok && w.length >= 0 && !b.waiting()
}

func (w *writer) Flush() {
	if err := http.NewResponseController(w.ResponseWriter).Flush(); err != nil {
		w.failed = true
	}
}

// Hijack hands the connection to a WebSocket; close ends it.
func (w *writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
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
	_ = w.meter.spend(early) // the next read or write says so
	ahead, _ := rw.Reader.Peek(early)
	if !c.Ahead(ahead) { // the next read says so
		rw.Reader.Reset(nothing{})
	}
	return c, rw, nil
}

func (w *writer) take(conn net.Conn) *websocket.Conn {
	c := websocket.NewConn(conn)
	c.In, c.Out, c.End, c.Spend, c.Gone = w.in, &w.written, &w.ended, w.meter.spend, errClient
	w.taken.Store(c)
	return c
}

// close ends a connection that was taken: goproxy returns when one of its
// directions ends and leaves the other. One that was ended here is told why.
func (w *writer) close(why error) {
	if c := w.taken.Load(); c != nil {
		if why != nil {
			if c.Goodbye(explain(why), stopGrace/2); w.tunnel == nil { // a stream's last frames arrive by themselves
				c.Linger(stopGrace / 2)
			}
		}
		_ = c.Close()
	}
}

// nothing is what has been read ahead of a stream.
type nothing struct{}

func (nothing) Read([]byte) (int, error) { return 0, io.EOF }
