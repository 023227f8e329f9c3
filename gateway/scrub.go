package gateway

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"sallyport/gateway/answer"
	"sallyport/gateway/bodies"
	"sallyport/gateway/credential"
	"sallyport/gateway/credential/decode"
	"sallyport/gateway/credential/scrub"
	"sallyport/gateway/credential/sent"
	"sallyport/gateway/form"
	"sallyport/gateway/grpc"
	"sallyport/gateway/limits"
	"sallyport/gateway/live"
	"sallyport/gateway/websocket"
)

// errClient says that the sandbox's end of a connection is gone.
var errClient = errors.New("the sandbox went away")

// scrub readies a response for the sandbox: it takes out what is not for the sandbox,
// and all secrets that were injected for it, from the head now and from the body as it
// is read. err is that of send.
func (q *request) scrub(resp *http.Response, err error, r *http.Request) (*http.Response, error) {
	if err != nil {
		q.err = err
		if a := q.revoked(); a != nil {
			return q.reply(a, r)
		}
		q.gateway.Logger.Info("upstream failed", "sandbox", q.identity.Name, "decision", q.allowed.ID(), "error", explain(q.err))
		return q.reply(failed(q.err, q.allowed.ID()), r)
	}
	if q.signer != "" {
		q.checkClock(resp)
	}
	form.DropHops(resp.Header, q.form.upgrade)
	q.tidy(resp.Header)
	if resp.StatusCode != http.StatusSwitchingProtocols {
		if err := q.got.scrub(); err != nil {
			q.err = errCoding
			if q.grant.tokens != nil && !q.got.searched() {
				q.err = errUnread
			}
			if errors.Is(err, decode.ErrMemory) {
				q.err = decode.ErrMemory
			}
			_ = resp.Body.Close()
			return q.reply(failed(q.err, q.allowed.ID()), r)
		}
		q.got.expect(q.gateway.StallTimeout, q.grant.handle.Cut)
	}
	if resp.StatusCode == http.StatusNoContent || resp.StatusCode == http.StatusNotModified {
		// It is the length that another answer would have (RFC 9110, section 8.6). Clients of
		// HTTP/2 wait for so many bytes.
		delete(resp.Header, "Content-Length")
		resp.ContentLength = 0
	}
	q.out.length = resp.ContentLength
	q.out.prompt = resp.ContentLength < 0 && resp.Body != http.NoBody && !q.form.upgrade && q.got.waiting()
	return resp, nil
}

// reply answers the request in place of an upstream.
func (q *request) reply(a *answer.Answer, r *http.Request) (*http.Response, error) {
	resp := a.Response(r)
	q.out.length = resp.ContentLength
	return resp, nil
}

// tidy removes from the head or the trailers of an upstream's answer what is not for the sandbox.
func (q *request) tidy(h http.Header) {
	form.DropReserved(h)
	delete(h, "Alt-Svc") // names other ways to the upstream, all closed
	if len(q.grant.decision.Inject) > 0 && !q.passesCookies() {
		credential.StripResponse(h)
	}
}

// responseBody is the body of an upstream's response on its way to goproxy. It remembers
// how it ended, which goproxy does not tell, and is scrubbed in place, so that goproxy
// leaves the Content-Length alone: scrubbing keeps it true.
type responseBody struct {
	io.ReadCloser
	raw      io.Reader // below the scrubber
	response *http.Response
	of       *request        // that it answers
	secrets  *sent.Secrets   // of the sandbox
	scrubber *scrub.Scrubber // for all that the sandbox's requests were sent with
	own      *scrub.Scrubber // for this request's signatures, nil where it has none
	strict   bool            // the host had been sent a credential before, or is by this request
	err      error           // but for io.EOF
	meter    *limits.Meter
	tokens   *limits.TokenMeter // nil where no tokens are counted
	stall    time.Duration      // the longest time between two reads of the sandbox
	patience *time.Timer        // for that, nil where nothing is held
	finds                       // in it
}

// waiting tells whether nothing of the body has come yet.
func (b *responseBody) waiting() bool {
	ahead, ok := b.raw.(interface{ Buffered() int })
	return !ok || ahead.Buffered() == 0
}

// finds are the secrets that were found in what an upstream has sent.
type finds struct {
	from *session // of the connection to whose request it is the answer
	on   *Gateway

	mu     sync.Mutex // messages of a WebSocket may come while it ends
	strays int
	hits   map[string]int  // by credential
	strewn map[string]bool // credentials that are counted already in this answer
}

// hit records an occurrence. An answer tells no more by having a secret twice, so it is
// counted once.
func (f *finds) hit(found scrub.Found) {
	f.mu.Lock()
	if f.hits == nil {
		f.hits, f.strewn = make(map[string]int), make(map[string]bool)
	}
	f.hits[found.Name]++
	stray := !found.Public && !f.strewn[found.Name] && !f.from.secrets.Sent(f.from.host, found.Name)
	if stray {
		f.strewn[found.Name] = true
		f.strays++
	}
	f.mu.Unlock()
	if stray {
		f.on.stray(f.from.peer)
	}
}

// anew begins another answer: each message of a WebSocket is one.
func (f *finds) anew() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.strewn)
}

// scrub takes the secrets out of the response's head, and of its body and
// trailers as they are read. goproxy goes on seeing the body that it knows.
func (b *responseBody) scrub() error {
	resp := b.response
	if resp.Body == b {
		resp.Body = b.ReadCloser
		defer func() { b.ReadCloser, resp.Body = resp.Body, b }()
	}
	var err error
	if b.tokens == nil {
		err = b.scrubber.Pass(resp, b.hit, b.searched)
	} else {
		err = b.scrubber.Open(resp, b.hit, func() bool { return !b.meter.Lenient() || b.searched() })
	}
	if err != nil || b.own == nil {
		return err
	}
	return b.own.Response(resp, b.hit) // which is plain now
}

// searched says that nothing unsearched may pass, from now on: the host may have
// been sent a credential after this request was, and have waited for it.
func (b *responseBody) searched() bool {
	return b.strict && !b.scrubber.None() || b.secrets.Reached(b.of.host)
}

// frames is a WebSocket from an upstream, scrubbed frame by frame.
func (b *responseBody) frames(resp *http.Response) error {
	conn, ok := resp.Body.(io.ReadWriteCloser)
	if !ok || len(resp.Header["Sec-Websocket-Extensions"]) > 0 { // which were not asked for
		return errUpgrade
	}
	resp.Body = struct {
		io.Reader
		io.WriteCloser
	}{b.scrubber.Frames(conn, b.hit, b.anew), conn}
	if err := b.scrubber.Response(resp, b.hit); err != nil || b.own == nil {
		return err
	}
	resp.Body = struct {
		io.Reader
		io.WriteCloser
	}{b.own.Frames(resp.Body, b.hit, b.anew), conn}
	return b.own.Response(resp, b.hit)
}

// expect has gone called when nothing has been read for as long: what is decoded
// takes memory that others wait for, and a stream of HTTP/2 can be left unread while
// its connection is not.
func (b *responseBody) expect(patience time.Duration, gone func()) {
	if b.response.Uncompressed && b.response.Body == b {
		b.stall = patience
		b.patience = time.AfterFunc(patience, gone)
	}
}

func (b *responseBody) Read(p []byte) (int, error) {
	if b.patience != nil {
		b.patience.Stop()
		defer b.patience.Reset(b.stall)
	}
	n, err := b.ReadCloser.Read(p)
	if b.tokens != nil {
		b.tokens.Feed(p[:n], err)
	}
	if over := b.meter.Spend(n); over != nil {
		n, err = 0, over
	}
	if err != nil && err != io.EOF {
		b.err = err
	}
	return n, err
}

// Close also goes over the trailers, which are there once the body has been
// read: goproxy sends them after it has closed it.
func (b *responseBody) Close() error {
	if b.patience != nil {
		b.patience.Stop()
	}
	b.of.tidy(b.response.Trailer)
	return b.ReadCloser.Close()
}

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
