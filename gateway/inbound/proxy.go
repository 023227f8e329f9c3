package inbound

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"net/textproto"
	"sync"
	"sync/atomic"
	"time"

	"sallyport/gateway/form"
	"sallyport/gateway/http1"
	"sallyport/gateway/websocket"
)

// This file is what httputil.ReverseProxy is given to carry an allowed request: each has a
// connection to the sandbox of its own.

type requestKey struct{}

// Value implements context.Context.
func (q *request) Value(key any) any {
	switch key {
	case requestKey{}:
		return q
	case http.ServerContextKey: // or ReverseProxy would have answers that break off look whole
		return q.server.web
	}
	return q.Context.Value(key)
}

func requestOf(r *http.Request) *request { return r.Context().Value(requestKey{}).(*request) }

// forward sends the request and passes the answer on.
func (q *request) forward(w http.ResponseWriter, r *http.Request) {
	trailers := !q.upgrade && form.HasToken(r.Header["Te"], "trailers")
	form.DropHops(r.Header, q.upgrade)
	if trailers {
		r.Header["Te"] = []string{"trailers"}
	}
	defer func() { q.body.stop() }()
	q.writer = &writer{ResponseWriter: w, request: q}
	q.server.proxy.ServeHTTP(q.writer, r.WithContext(q))
}

// rewrite makes the request that the sandbox gets.
func rewrite(p *httputil.ProxyRequest) {
	q := requestOf(p.In)
	out := p.Out
	out.URL.Scheme, out.URL.Host, out.URL.RawQuery = "http", q.authority, p.In.URL.RawQuery
	out.Close = !q.upgrade
	if q.routed != nil {
		out.Host = q.authority // a client's is the router's
	}
	if len(out.Header["Te"]) > 0 {
		out.Header["Connection"] = []string{"TE"} // RFC 9110, section 10.1.4
	}
	keepForwarded(p)
	q.pace(p)
}

// pace has the body that goes on be paced, and followed by its trailers.
func (q *request) pace(p *httputil.ProxyRequest) {
	out := p.Out
	out.Trailer = nil
	if out.Body != nil && out.Body != http.NoBody {
		q.body = &pacedBody{ReadCloser: out.Body, request: q, from: p.In, trailer: sentTrailers(p.In)}
		out.Body, out.Trailer = q.body, q.body.trailer
	}
}

// keepForwarded has what a proxy before this one has said go on, and nothing new.
func keepForwarded(p *httputil.ProxyRequest) {
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if values, said := p.In.Header[name]; said {
			p.Out.Header[name] = values
		}
	}
	if _, said := p.In.Header["User-Agent"]; !said {
		p.Out.Header["User-Agent"] = nil // or net/http would name itself
	}
}

// transport sends a request on its own connection to the sandbox.
type transport struct{}

// RoundTrip implements http.RoundTripper.
func (transport) RoundTrip(r *http.Request) (*http.Response, error) {
	q := requestOf(r)
	within := headWithin
	if q.routed != nil {
		within = routedHead
	}
	conn := http1.NewClientConn(q.far, http1.ClientOptions{HeadTimeout: within})
	resp, err := conn.RoundTrip(r, func(code int, h http.Header) {
		cleanResponse(h, false)
		_ = httptrace.ContextClientTrace(r.Context()).Got1xxResponse(code, textproto.MIMEHeader(h)) // ReverseProxy's, which passes it on
	})
	switch {
	case err != nil:
		return nil, errUnanswered
	case resp.StatusCode == http.StatusSwitchingProtocols && (!q.upgrade || !websocket.Accepts(resp, q.key)):
		_ = resp.Body.Close()
		return nil, errUnswitched
	}
	return resp, nil
}

// modifyResponse takes from an answer what is not the sandbox's to say.
func modifyResponse(resp *http.Response) error {
	q := requestOf(resp.Request)
	q.status, q.switched = resp.StatusCode, resp.StatusCode == http.StatusSwitchingProtocols
	cleanResponse(resp.Header, q.switched)
	if q.switched {
		conn := resp.Body.(io.ReadWriteCloser)
		resp.Body = &sandboxEnd{conn, &direction{websocket.NewReader(conn, false), &q.out, q}}
		return nil
	}
	cleanTrailers(resp.Trailer)
	resp.Body = &answerBody{resp.Body, q, resp}
	return nil
}

func proxyFailed(w http.ResponseWriter, r *http.Request, err error) { requestOf(r).fail(w, r, err) }

// answerBody is the body of an answer on its way to the client.
type answerBody struct {
	io.ReadCloser
	request *request
	resp    *http.Response
}

func (b *answerBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.request.out.Add(int64(n))
	switch {
	case err == io.EOF:
		if cleanTrailers(b.resp.Trailer); len(b.resp.Trailer) > 0 {
			b.request.writer.endHead()
		}
	case err != nil && b.request.client.Err() != nil:
		b.request.err = errClient
	case err != nil:
		b.request.err = errUnanswered
	}
	return n, err
}

// writer is what ReverseProxy writes an answer to. ReverseProxy flushes the head from a
// goroutine of its own, while the body is read.
type writer struct {
	http.ResponseWriter
	request *request

	mu sync.Mutex // of the ResponseWriter, once the head is written
}

// FlushError is for http.ResponseController.
func (w *writer) FlushError() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// endHead sends the head, so that nothing of it is taken for a trailer.
func (w *writer) endHead() {
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = http.NewResponseController(w.ResponseWriter).Flush()
	clear(w.Header())
}

func (w *writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n, err := w.ResponseWriter.Write(p)
	if err != nil {
		w.request.err = errClient
	}
	return n, err
}

// Hijack implements http.Hijacker, for a WebSocket.
func (w *writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	q := w.request
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil {
		q.err = errClient
		return nil, nil, err
	}
	context.AfterFunc(q, func() { _ = conn.Close() })
	return &clientEnd{conn, &direction{websocket.NewReader(rw.Reader, true), &q.in, q}}, rw, nil
}

// direction is one direction of a WebSocket.
type direction struct {
	frames  *websocket.Reader
	count   *atomic.Int64
	request *request
}

func (d *direction) Read(p []byte) (int, error) {
	n, err := d.frames.Read(p)
	d.count.Add(int64(n))
	if d.frames.Frames.Bad {
		d.request.bad.Store(true)
	}
	if err != nil { // the other direction has a moment for its goodbye
		d.request.ending.Do(func() { time.AfterFunc(goodbyeWithin, d.request.cancel) })
	}
	return n, err
}

// clientEnd and sandboxEnd are the two ends of a WebSocket.
type clientEnd struct {
	net.Conn
	in *direction
}

func (e *clientEnd) Read(p []byte) (int, error) { return e.in.Read(p) }
func (e *clientEnd) CloseWrite() error          { return closeWrite(e.Conn) }

type sandboxEnd struct {
	io.ReadWriteCloser
	in *direction
}

func (e *sandboxEnd) Read(p []byte) (int, error) { return e.in.Read(p) }
func (e *sandboxEnd) CloseWrite() error          { return closeWrite(e.ReadWriteCloser) }

func closeWrite(c io.Closer) error {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Close()
}

// pacedBody is a request's body of which something has to come from time to time.
type pacedBody struct {
	io.ReadCloser
	request *request
	from    *http.Request // whose trailers the connection fills in at the end
	trailer http.Header   // what of them goes to the sandbox

	mu    sync.Mutex
	timer *time.Timer
}

func (b *pacedBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	if b.timer == nil {
		b.timer = time.AfterFunc(b.request.server.StallTimeout, b.request.cancel)
	} else {
		b.timer.Reset(b.request.server.StallTimeout)
	}
	b.mu.Unlock()
	n, err := b.ReadCloser.Read(p)
	b.stop()
	b.request.in.Add(int64(n))
	if err == io.EOF {
		for name := range b.trailer {
			b.trailer[name] = b.from.Trailer[name]
		}
	}
	return n, err
}

// stop ends the wait for more.
func (b *pacedBody) stop() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.timer != nil {
		b.timer.Stop()
	}
}

// Trailers of what a sandbox and its client say to each other come after a body
// in chunks (RFC 9112, section 7.1.2). The readers of heads bound how many there are.

// sentTrailers are the names of the trailers that go to a sandbox: those that were announced,
// which the policy has seen, and are none of ours. Nil: none.
func sentTrailers(r *http.Request) (t http.Header) {
	for _, name := range form.Announced(r) {
		if name == "Cookie" {
			continue
		}
		if t == nil {
			t = http.Header{}
		}
		t[name] = nil
	}
	return t
}

// cleanTrailers removes the fields that an answer of a sandbox may not have after its body:
// one that cleanResponse would take from the head, or look into, does not get by it there.
func cleanTrailers(t http.Header) {
	for name := range t {
		switch http.CanonicalHeaderKey(name) {
		case "Alt-Svc", "Set-Cookie":
			delete(t, name)
		default:
			if form.Reserved(name) || !form.AllowedTrailer(name) {
				delete(t, name)
			}
		}
	}
}
