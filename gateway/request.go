package gateway

import (
	"context"
	"net/http"
	"net/netip"
	"time"

	"sallyport/audit"
	"sallyport/gateway/answer"
	"sallyport/gateway/bodies"
	"sallyport/gateway/http1"
	"sallyport/gateway/live"
	"sallyport/gateway/placeholder"
	"sallyport/gateway/proxy"
	"sallyport/gateway/turn"
	"sallyport/gateway/upstream"
	"sallyport/policy"
)

// request is one request of a sandbox, from its head to its completion. It is the
// request's context, so that goproxy's handlers find it. Each step is a method in the
// file of its name, and what a step has found out is in a struct beside it.
type request struct {
	context.Context
	gateway  *Gateway
	*session // of its connection
	started  time.Time
	reached  netip.Addr         // that the request has gone to, as it is known
	cancel   context.CancelFunc // of all that the request waits for, and on HTTP/1.1 of its connection
	streamed bool               // by HTTP/2
	events   audit.Exchange

	form         admitted             // admit
	grant        grant                // decide
	placeholders *placeholder.Request // decide; nil where the sandbox has none
	allowed      *audit.Event         // record; nil until the request is allowed
	injection                         // inject
	sent         requestBody          // send: from the sandbox
	got          responseBody         // scrub: from the upstream
	out          responseWriter
	*arrival
	alone arrival         // of a request that nothing was known about before
	carry proxy.Transport // the steps between admit and complete
	err   error           // what ended it, nil for success

	informing informing
}

// arrival is what a request by HTTP/2 has before it is admitted. The reader of HTTP/1.1
// has counted a head already, and its requests need no turn.
type arrival struct {
	turn  turn.Turn
	heads bodies.Heads // the room for its large heads
	wrong bool         // it is wrong about the length of its body
}

// serve carries one request of a connection: this is all that happens to it. Its turn, if
// it has one, ends before it waits for anything. a is nil for HTTP/1.1.
func (g *Gateway) serve(ctx context.Context, cancel context.CancelFunc, w http.ResponseWriter, r *http.Request, s *session, a *arrival) {
	q := g.request(ctx, cancel, s, a)
	defer q.complete(r)

	admitted := q.admit(w, r)
	if admitted == nil {
		return // it has been answered
	}
	q.carry = func(r *http.Request) (*http.Response, error) {
		turn := g.turns.Take(s.identity.ID)
		defer turn.End()
		d, refused := q.decide(r, &turn)
		if refused == nil {
			refused = q.record(r, d)
		}
		turn.End()
		if refused == nil {
			if resp := q.answerToken(r); resp != nil {
				return resp, nil
			}
			refused = q.inject(r)
		}
		if refused != nil {
			return q.reply(refused, r)
		}
		resp, err := q.send(r)
		return q.scrub(resp, err, r)
	}
	g.proxy.ServeHTTP(&q.out, admitted) // which calls carry
}

func (g *Gateway) request(ctx context.Context, cancel context.CancelFunc, s *session, a *arrival) *request {
	q := &request{Context: ctx, cancel: cancel, gateway: g, session: s, started: time.Now()}
	if q.arrival = a; a == nil {
		q.arrival = &q.alone
	}
	q.heads.Of, q.heads.ID = g.bodies, s.identity.ID
	q.got.of, q.got.on, q.got.from = q, g, s
	q.got.secrets, q.got.scrubber = s.secrets, s.secrets.Scrubber()
	return q
}

// Value implements context.Context.
func (q *request) Value(key any) any {
	switch key {
	case proxy.TransportKey{}:
		return q.carry
	case upstream.InformationalKey:
		return upstream.Informational(q.inform)
	case upstream.ReachedKey:
		return upstream.Reached(q.reach)
	case http1.BudgetKey:
		return http1.Budget(&q.heads)
	}
	return q.Context.Value(key)
}

// reach notes the address that the request goes to.
func (q *request) reach(addr netip.Addr) { q.reached = addr }

// Recheck implements live.Revocable.
func (q *request) Recheck(ctx context.Context) *live.Revoked {
	if q.valid != nil && !q.valid() {
		return &live.Revoked{Decision: floor(policy.Decision{Revision: q.gateway.Revision()}, "client", errInvalid.Error())}
	}
	if d := q.gateway.connect(ctx, q.peer, q.target); !q.readable(d) {
		return live.Compare(d, policy.Decision{Action: policy.Allow})
	}
	return live.Compare(q.ask(ctx), q.grant.decision)
}

// Stop breaks the request off. A WebSocket is said goodbye to first.
func (q *request) Stop(*live.Revoked) {
	c := q.out.taken.Load()
	if c == nil {
		q.cancel()
		return
	}
	q.gateway.work.Go(func() { // which waits for the client to read
		c.Goodbye(live.NoLonger, live.Grace/2)
		q.cancel()
	})
}

// Cut closes the connection of a client that takes nothing off it.
func (q *request) Cut() {
	if q.streamed {
		control := http.NewResponseController(q.out.ResponseWriter)
		_, _ = control.SetReadDeadline(time.Unix(1, 0)), control.SetWriteDeadline(time.Unix(1, 0))
		return
	}
	_ = q.life.conn.Close()
}

// revoked answers a request that the policy no longer allows.
func (q *request) revoked() *answer.Answer {
	why := q.grant.handle.Revoked()
	if why == nil {
		return nil
	}
	q.err = why
	a := denied(why.Decision, q.allowed.ID(), q.form.seen.Method+" "+q.scheme()+"://"+q.authority)
	a.Reason, a.Last = why.Error(), true
	if why.Again {
		a.Status, a.Remedy = http.StatusServiceUnavailable, "Send the request again."
	}
	return a
}
