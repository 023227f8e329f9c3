package gateway

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"

	lru "github.com/hashicorp/golang-lru/v2"

	"sallyport/gateway/credential"
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
	scrubber *credential.Scrubber // nil when nothing was injected
	hits     atomic.Int64         // a WebSocket's come while it ends
	err      error                // but for io.EOF
}

// waiting tells whether nothing of the body has come yet.
func (b *body) waiting() bool {
	ahead, ok := b.raw.(interface{ Buffered() int })
	return !ok || ahead.Buffered() == 0
}

func (b *body) hit() { b.hits.Add(1) }

// scrub takes the secrets out of the response's head, and of its body and
// trailers as they are read. goproxy goes on seeing the body that it knows.
func (b *body) scrub() error {
	resp := b.response
	if resp.Body == b {
		resp.Body = b.ReadCloser
		defer func() { b.ReadCloser, resp.Body = resp.Body, b }()
	}
	return b.scrubber.Response(resp, b.hit)
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
	}{b.scrubber.Frames(conn, b.hit), conn}
	return b.scrubber.Response(resp, b.hit)
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		b.err = err
	}
	return n, err
}

// Close also goes over the trailers, which are there once the body has been
// read: goproxy sends them after it has closed it.
func (b *body) Close() error {
	delete(b.response.Trailer, decisionHeader)
	return b.ReadCloser.Close()
}

// scrubbers keeps the scrubbers for several credentials at once, which are
// costly to make; a credential keeps its own. Secrets of more parts than a key
// has room for get one for each request.
type scrubbers struct {
	cache *lru.Cache[secretSet, *credential.Scrubber]
}

type secretSet [6]credential.Secret

func (s scrubbers) get(leases []*credential.Lease) *credential.Scrubber {
	if len(leases) == 1 {
		return leases[0].Scrubber()
	}
	var secrets []credential.Secret
	for _, l := range leases {
		secrets = append(secrets, l.Values()...)
	}
	var key secretSet
	if len(secrets) > len(key) {
		return credential.NewScrubber(secrets)
	}
	copy(key[:], secrets)
	if got, ok := s.cache.Get(key); ok {
		return got
	}
	made := credential.NewScrubber(secrets)
	s.cache.Add(key, made)
	return made
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
	tunnel *tunnelled              // a WebSocket of HTTP/2, nil for other requests
	taken  atomic.Pointer[counted] // by a WebSocket
	in     *atomic.Int64           // what a WebSocket's client sends
}

func (w *writer) WriteHeader(code int) {
	if code >= 200 || code == http.StatusSwitchingProtocols {
		w.status = code
	}
	if code == http.StatusSwitchingProtocols && w.tunnel != nil {
		w.tunnel.accept(w.Header())
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
	w.in.Add(int64(rw.Reader.Buffered())) // goproxy sends these on first
	return w.take(conn), rw, nil
}

func (w *writer) take(conn net.Conn) *counted {
	c := &counted{Conn: conn, in: w.in, out: &w.written}
	w.taken.Store(c)
	return c
}

// close ends a connection that was taken: goproxy returns when one of its
// directions ends and leaves the other. One that is revoked is said goodbye to.
func (w *writer) close(revoked bool) {
	if c := w.taken.Load(); c != nil {
		if revoked {
			if c.goodbye(); w.tunnel == nil { // a stream's last frames arrive by themselves
				c.linger()
			}
		}
		_ = c.Close()
	}
}

// nothing is what has been read ahead of a stream.
type nothing struct{}

func (nothing) Read([]byte) (int, error) { return 0, io.EOF }

// counted counts the bytes of a connection that a WebSocket has taken, and knows
// where its frames end.
type counted struct {
	net.Conn
	in, out *atomic.Int64

	mu     sync.Mutex // held while writing
	frames frontier
	over   bool // nothing but goodbye is written
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.in.Add(int64(n))
	return n, err
}

func (c *counted) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return 0, net.ErrClosed
	}
	n, err := c.Conn.Write(p)
	c.out.Add(int64(n))
	c.frames.pass(p[:n])
	return n, err
}
