package gateway

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"sallyport/audit"
	"sallyport/gateway/credential"
	"sallyport/gateway/form"
	"sallyport/gateway/limits"
	"sallyport/gateway/live"
	"sallyport/gateway/placeholder"
	"sallyport/gateway/websocket"
)

// send sends the request and returns the head of its response.
func (q *request) send(r *http.Request) (*http.Response, error) {
	resp, err := q.transport.RoundTrip(r)
	if err == nil && resp.StatusCode == http.StatusUnauthorized {
		if again := q.renew(r, resp); again != nil {
			_ = resp.Body.Close()
			resp, err = q.transport.RoundTrip(again)
		}
	}
	q.informing.end()
	if err != nil {
		if over := q.grant.meter.Err(); over != nil {
			return nil, over
		}
		if found := q.placeholders.Stolen(); found != nil {
			return nil, found
		}
		switch { // whatever error the upstream made of that
		case q.sent.silent.Load():
			err = errSilent
		case q.sent.short.Load():
			err = errClient
		}
		return nil, err
	}
	q.sent.heard.Store(true)
	switching := resp.StatusCode == http.StatusSwitchingProtocols
	switch {
	case switching && !q.form.upgrade:
		_ = resp.Body.Close()
		return nil, errUpgrade
	// To a client of HTTP/2 any status of success would begin a WebSocket.
	case (switching || q.out.tunnel != nil && resp.StatusCode < 300) && !websocket.Accepts(resp, q.form.key):
		_ = resp.Body.Close()
		return nil, errWebSocket
	}
	if switching {
		if err := q.got.frames(resp); err != nil {
			_ = resp.Body.Close()
			return nil, err
		}
		conn, ok := resp.Body.(io.ReadWriteCloser)
		if !ok {
			_ = resp.Body.Close()
			return nil, errUpgrade
		}
		resp.Body = websocket.Upstream{ReadWriteCloser: q.searchMessages(conn), End: &q.out.ended} // goproxy needs a body that can be written to
		return resp, nil
	}
	q.got.response = resp
	if q.grant.tokens != nil {
		q.grant.tokens.Answered(resp)
	}
	if resp.Body != http.NoBody {
		q.got.ReadCloser, q.got.raw = resp.Body, resp.Body
		resp.Body = &q.got
	}
	return resp, nil
}

// informing says whether a 1xx response may still go to the sandbox.
type informing struct {
	mu   sync.Mutex
	over bool
}

func (i *informing) end() {
	i.mu.Lock()
	i.over = true
	i.mu.Unlock()
}

// inform passes a 1xx response on. It can come from another goroutine than the
// request's, while that waits for the response.
func (q *request) inform(code int, h http.Header) {
	q.informing.mu.Lock()
	defer q.informing.mu.Unlock()
	if q.informing.over {
		return
	}
	form.DropHops(h, false)
	q.tidy(h)
	q.got.scrubber.Header(h, q.got.hit)
	if q.got.own != nil {
		q.got.own.Header(h, q.got.hit)
	}
	header := q.out.Header()
	maps.Copy(header, h)
	q.out.WriteHeader(code)
	clear(header)
}

// requestBody counts what a sandbox sends, and holds the trailers back that it
// had not announced. A transport can go on reading it after the request has
// ended.
type requestBody struct {
	io.ReadCloser
	read   atomic.Int64
	short  atomic.Bool // the sandbox did not send all of it
	closed atomic.Bool // by the gateway
	silent atomic.Bool // nothing of it came for as long as stall

	late  *time.Timer
	stall time.Duration // how long the sandbox may take for each piece, 0 for ever
	heard atomic.Bool   // the upstream has answered: both may now take their time

	meter   *limits.Meter
	from    *http.Request // whose trailers the connection fills in at the end
	trailer http.Header   // what leaves of them
}

// take makes the body of a request that leaves out of that of the sandbox's.
func (b *requestBody) take(from, out *http.Request) {
	out.Trailer = nil
	if from.Body == nil || from.Body == http.NoBody {
		return
	}
	b.ReadCloser, b.from = from.Body, from
	out.Body = b
	for name := range from.Trailer {
		if b.trailer == nil {
			b.trailer = make(http.Header, len(from.Trailer))
		}
		b.trailer[name] = nil
	}
	if b.trailer != nil {
		out.Trailer = b.trailer
		out.ContentLength = -1 // HTTP/1.1 has room for them in chunks only
	}
}

// wait sets the longest time without a byte of the body. It does not apply to calls of
// gRPC and Connect, in which the client may wait for the upstream first.
func (b *requestBody) wait(r *http.Request, stall time.Duration) {
	kind := r.Header.Get("Content-Type")
	if !strings.HasPrefix(kind, "application/grpc") && !strings.HasPrefix(kind, "application/connect+") {
		b.stall = stall
	}
}

// next is Read, broken off when the sandbox sends nothing for too long.
func (b *requestBody) next(p []byte) (int, error) {
	if b.stall == 0 || b.heard.Load() {
		return b.ReadCloser.Read(p)
	}
	if b.late == nil {
		b.late = time.AfterFunc(b.stall, func() {
			if !b.heard.Load() {
				b.silent.Store(true)
				_ = b.ReadCloser.Close()
			}
		})
	} else {
		b.late.Reset(b.stall)
	}
	defer b.late.Stop()
	return b.ReadCloser.Read(p)
}

func (b *requestBody) Read(p []byte) (int, error) {
	n, err := b.next(p)
	if over := b.meter.Upload(n, b.read.Add(int64(n))); over != nil {
		return 0, over
	}
	switch {
	case err == io.EOF:
		for name := range b.trailer {
			b.trailer[name] = b.from.Trailer[name]
		}
	case err != nil && !b.closed.Load():
		b.short.Store(true)
	}
	return n, err
}

// Close implements io.Closer. A read that it breaks off says nothing of the
// sandbox.
func (b *requestBody) Close() error {
	b.closed.Store(true)
	return b.ReadCloser.Close()
}

// waits tells whether a client of HTTP/2 waits for 100 (Continue) before it
// sends the body. The library takes the header away and keeps no more of it than
// this field; without asking it the upstream would have no say in whether the
// body comes.
func waits(body io.ReadCloser) bool {
	v := reflect.Indirect(reflect.ValueOf(body))
	if v.Kind() != reflect.Struct {
		return false
	}
	field := v.FieldByName("needsContinue")
	return field.Kind() == reflect.Bool && field.Bool()
}

// skew is how far this host's clock may be from an upstream's before an operator is told.
const skew = 30 * time.Second

// renewal is what it takes to send a request once more with other credentials, where an
// upstream does not take one that was kept, and that its source may give anew.
type renewal struct {
	leased []audit.CredentialUse // those that can be had anew
	header http.Header           // of the request before the first of them
	url    *url.URL
	kept   placeholder.Kept // of it
}

// note keeps what a request was before a lease that can be had anew is put in.
func (n *renewal) note(lease *credential.Lease, r *http.Request, kept placeholder.Kept) {
	if !lease.Cached() {
		return
	}
	if n.leased == nil {
		u := *r.URL
		n.header, n.url, n.kept = r.Header.Clone(), &u, kept.Clone()
	}
	n.leased = append(n.leased, audit.CredentialUse{Name: lease.Name, Version: lease.Version})
}

// renew has the sources of a request's credentials asked for others after an upstream has
// answered 401. It returns the request to send once more, or nil where the answer stands:
// there are no others, or the request may not be repeated. The broker bounds how often a
// source is asked.
func (q *request) renew(r *http.Request, resp *http.Response) *http.Request {
	if len(q.renewal.leased) == 0 {
		return nil
	}
	n := q.renewal // what comes of another answer is not asked about again
	q.renewal = renewal{}
	refused := make([]string, len(n.leased))
	for i, l := range n.leased {
		refused[i] = fmt.Sprintf("%s (version %s)", l.Name, l.Version)
	}
	q.said = "the upstream did not take the credential " + strings.Join(refused, ", ") + clocks(resp)
	again := q.repeated(r, n)
	if again == nil {
		q.said += "; another is asked for, and the request is not one to repeat"
		to, broker := q.binding(), q.gateway.Broker
		q.gateway.work.Go(func() {
			for _, l := range n.leased {
				_, _ = broker.Refresh(q.gateway.life, l.Name, to, l.Version) // the next lease says what is wrong
			}
		})
		return nil
	}
	changed := false
	for _, l := range n.leased {
		other, err := q.gateway.Broker.Refresh(r.Context(), l.Name, q.binding(), l.Version)
		if err != nil {
			q.said += "; there is no other"
			q.gateway.Logger.Warn("a credential that an upstream did not take could not be had anew", "credential", l.Name, "error", err)
			return nil
		}
		changed = changed || other
	}
	if !changed {
		q.said += "; there is no other yet"
		return nil
	}
	used := slices.Clone(q.used)
	err := q.leaseCredentials(again, n.kept)
	if err == nil {
		err = q.findWay()
	}
	if err != nil {
		q.used = used
		q.said += "; another could not be leased"
		q.gateway.Logger.Warn("a credential that an upstream did not take could not be leased anew", "sandbox", q.identity.Name, "error", err)
		return nil
	}
	q.renewal.leased = nil
	q.said += "; the request was sent again with another version"
	return again
}

// repeated returns the request as it was before its credentials, or nil where it may not
// be sent twice: its method is not idempotent (RFC 9110, section 9.2.2), or its body is
// not in memory.
func (q *request) repeated(r *http.Request, n renewal) *http.Request {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodPut, http.MethodDelete:
	default:
		return nil
	}
	if len(r.Trailer) > 0 || q.revoked() != nil {
		return nil
	}
	again := r.WithContext(r.Context())
	again.Header, again.URL = n.header, n.url
	switch {
	case r.Body == nil || r.Body == http.NoBody:
		return again
	case q.placeholders != nil: // placeholders in it are replaced as it leaves
		return nil
	case q.form.body != nil:
		again.Body = q.form.body.Again()
	case q.signed != nil:
		again.Body = q.signed.Again()
	default:
		return nil
	}
	if again.Body == nil {
		return nil
	}
	return again
}

// clocks says how far this host's clock is from an upstream's that does not take what may
// name a time.
func clocks(resp *http.Response) string {
	at, err := http.ParseTime(resp.Header.Get("Date"))
	if err != nil {
		return ""
	}
	switch behind := time.Until(at).Round(time.Second); {
	case behind > skew:
		return fmt.Sprintf(" (this host's clock is %v behind the upstream's)", behind)
	case behind < -skew:
		return fmt.Sprintf(" (this host's clock is %v ahead of the upstream's)", -behind)
	}
	return ""
}

// searchMessages has placeholders in the messages to the upstream of a WebSocket replaced,
// or the WebSocket closed.
func (q *request) searchMessages(upstream io.ReadWriteCloser) io.ReadWriteCloser {
	return q.placeholders.WebSocket(upstream, func() {
		if c := q.out.taken.Load(); c != nil {
			q.gateway.work.Go(func() { c.Goodbye("a placeholder stands where it is not replaced", live.Grace/2) })
		}
	})
}
