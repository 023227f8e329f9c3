package upstream

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"

	"sallyport/gateway/http1"
)

// h2Request is an HTTP/2 request under way. It is the request's context, by which the
// library's dials are matched to it, and later the body of its response.
type h2Request struct {
	context.Context
	io.ReadCloser
	multiplexer *multiplexer
	kept        *shared // a place that is taken for it
	conn        *shared // whose place it has; guarded by multi.mu
	hints       earlyHints
	over        atomic.Bool

	trailer *http.Header // of the response
	ended   func()
}

type h2RequestKey struct{}

// Value implements context.Context.
func (t *h2Request) Value(key any) any {
	if key == (h2RequestKey{}) {
		return t
	}
	return t.Context.Value(key)
}

// request is r as the library gets it.
func (t *h2Request) request(r *http.Request) *http.Request {
	var ctx context.Context = t
	if f := informational(ctx); f != nil {
		t.hints.to = f
		ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{Got1xxResponse: t.hints.receive})
	}
	out := r.WithContext(ctx)
	if r.Body != nil && r.Body != http.NoBody {
		b := &unread{ReadCloser: r.Body}
		out.Body, out.GetBody = b, b.again
	}
	return out
}

// end gives the place on the connection back.
func (t *h2Request) end() {
	if t.over.Swap(true) {
		return
	}
	if t.ended != nil {
		t.ended()
	}
	t.multiplexer.mu.Lock()
	defer t.multiplexer.mu.Unlock()
	t.multiplexer.leave(t)
}

// Read implements io.Reader for the response's body.
func (t *h2Request) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	if err == io.EOF && len(*t.trailer) > 0 {
		if bad := http1.Charge(t.Context, *t.trailer, http1.MaxTrailers); bad != nil {
			err = bad
		}
	}
	if err != nil {
		t.end()
	}
	return n, err
}

// Close implements io.Closer for the response's body.
func (t *h2Request) Close() error {
	err := t.ReadCloser.Close()
	t.end()
	return err
}

// bodiless is the body of a response that has none by its status (RFC 9110, sections
// 15.3.5 and 15.4.5). Its head may still name the length of the body that another answer
// would have; the library takes such a response for one that was cut short. Trailers may
// follow.
type bodiless struct{ io.ReadCloser }

func (b bodiless) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		return 0, errContent
	}
	if err == io.ErrUnexpectedEOF {
		err = io.EOF
	}
	return 0, err
}

var errContent = errors.New("a response with a body that its status does not have")

// unread is a request's body that stays open until it is first read from: the library
// closes the body of a request that it has not sent, and tries again.
type unread struct {
	io.ReadCloser
	begun atomic.Bool
}

var errBegun = errors.New("the upstream refused a request that cannot be sent again: its body has begun")

func (u *unread) Read(p []byte) (int, error) {
	u.begun.Store(true)
	return u.ReadCloser.Read(p)
}

func (u *unread) Close() error {
	if !u.begun.Load() {
		return nil
	}
	return u.ReadCloser.Close()
}

// again is http.Request.GetBody.
func (u *unread) again() (io.ReadCloser, error) {
	if u.begun.Load() {
		return nil, errBegun
	}
	return u, nil
}
