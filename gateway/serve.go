package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"sallyport/gateway/form"
	"sallyport/gateway/http1"
	"sallyport/gateway/websocket"
	"sallyport/policy"
)

// serveExchange handles one request that came in on f, and ends its turn, if it has one, before
// it waits for anything.
func (g *Gateway) serveExchange(ctx context.Context, cancel context.CancelFunc, w http.ResponseWriter, r *http.Request, f *flow, mine *turn) {
	x := g.exchange(ctx, cancel, f)
	x.out.ResponseWriter, x.out.in = w, &x.sent.read
	if x.streamed = r.ProtoMajor == 2; x.streamed && grpc(r) {
		x.out.messages = new(envelope)
	}
	defer x.finish(r)
	if f.answer != nil {
		mine.end()
		w.Header().Set("Connection", "close")
		f.answer.write(w, r)
		return
	}
	if m := x.countHead(r); m != nil {
		mine.end()
		x.request = &policy.Request{Method: r.Method, Scheme: f.scheme(), Path: "/", Size: r.ContentLength}
		x.refuse(r, m).write(w, r)
		return
	}
	x.out.tunnel = websocket.FromHTTP2(w, r)
	form.DropReserved(r.Header)
	form.DropReserved(r.Trailer)
	x.describe(r)
	m := x.admit(r)
	mine.end()
	if f.valid != nil && !f.valid() {
		// The connection may be older than the client's removal.
		m = &form.Error{Status: http.StatusForbidden, Rule: "client", Reason: errInvalid.Error()}
	}
	if m != nil {
		if r.ProtoMajor == 1 { // other streams of HTTP/2 have no part in it
			w.Header().Set("Connection", "close")
		}
		x.refuse(r, m).write(w, r)
		return
	}
	if f.refused {
		w.Header().Set("Connection", "close")
		d := g.unlisted(ctx, x.flow)
		x.deny(r, d).write(w, r)
		return
	}
	r.URL.Scheme, r.URL.Host = f.scheme(), f.authority
	out := r.WithContext(x)
	x.sent.take(r, out)
	x.sent.wait(r, g.stall)
	if m := x.await(w, out); m != nil {
		if r.ProtoMajor == 1 {
			w.Header().Set("Connection", "close")
		}
		x.refuse(r, m).write(w, r)
		return
	}
	g.proxy.ServeHTTP(&x.out, out)
}

// countHead counts the head of a request by HTTP/2, as the reader of HTTP/1.1 has counted
// that of any other.
func (x *exchange) countHead(r *http.Request) *form.Error {
	if r.ProtoMajor != 2 {
		return nil
	}
	fields, size := http1.Measure(r.Header)
	if fields > http1.MaxFields || len(r.Trailer) > http1.MaxTrailers {
		return &form.Error{Status: http.StatusRequestHeaderFieldsTooLarge, Rule: "request-form", Reason: http1.ErrFields.Error()}
	}
	if cost := http1.Cost(size+len(r.RequestURI), fields, http1.Keys(r.RequestURI)); cost > 0 && x.heads.Take(cost) != nil {
		return &form.Error{Status: http.StatusTooManyRequests, Rule: "request-form", Reason: http1.ErrBudget.Error()}
	}
	return nil
}

// finish ends an exchange whatever happened in it: a panic becomes a 500 while
// that can still be said, and a response that broke off is broken off towards
// the sandbox too, which would otherwise take it for complete.
func (x *exchange) finish(r *http.Request) {
	p := recover()
	if p != nil && p != http.ErrAbortHandler {
		x.err = errPanic
		x.gateway.logger.Error("panic in a request", "sandbox", x.flow.identity.Name, "panic", fmt.Sprint(p))
		if x.out.status == 0 {
			var id string
			if x.allowed != nil {
				id = x.allowed.ID()
			}
			x.out.Header().Set("Connection", "close")
			failed(errPanic, id).write(&x.out, r)
			p = nil
		}
	}
	why := x.meter.err()
	if x.place.revoked.Load() != nil {
		why = errors.New(noLonger)
	}
	x.out.close(why)
	broken := x.got.err != nil
	x.end()
	if broken && x.conclude(r) {
		broken = false
	}
	x.kept.drop() // which nobody judges any more
	x.heads.Release()
	x.meter.end()
	if p != nil || broken {
		panic(http.ErrAbortHandler)
	}
}
