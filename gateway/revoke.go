package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"sallyport/audit"
	"sallyport/policy"
)

var errInvalid = errors.New("the client's token is no longer good, or the sandbox has other tags by now: connect again")

// revokedError is the policy's word on what it had allowed.
type revokedError struct {
	decision policy.Decision // the new one
	again    bool            // it is allowed, otherwise
}

// judge writes into a completion what ended it: the rule and the revision are
// those of the policy as it is now, the decision's are of before.
func (e *revokedError) judge(c *audit.Event) {
	d := e.decision
	c.Message = "ended by a change of the policy"
	c.Action, c.Disposition, c.SeverityID = audit.ActionDenied, audit.DispositionBlocked, audit.SeverityMedium
	c.Rule, c.Policy = nil, nil
	if d.Rule != "" {
		c.Rule = &audit.Rule{Name: d.Rule, Type: d.RuleType}
	}
	if d.Revision != "" {
		c.Policy = &audit.Policy{Version: d.Revision}
	}
	c.Unmapped.Sallyport.Decision, c.Unmapped.Sallyport.Reason = string(policy.Deny), d.Reason
}

const noLonger = "the policy no longer allows it"

func (e *revokedError) Error() string { return noLonger + ": " + e.decision.Reason }

// compare says how what goes on by a decision stands in the light of a new one.
func compare(now, then policy.Decision) *revokedError {
	if then.Approval != nil && now.Action == policy.Approve && now.Rule == then.Rule && now.RuleType == then.RuleType {
		now.Action = then.Action // which an operator has answered
	}
	switch {
	case now.Action != then.Action:
		if now.Action == policy.Allow || now.Action == policy.Tunnel {
			now.Reason = "it is carried otherwise by now, with action " + string(now.Action)
			return &revokedError{now, true}
		}
		return &revokedError{now, false}
	case !slices.EqualFunc(now.Inject, then.Inject, func(a, b policy.Injection) bool { return reflect.DeepEqual(a, b) }):
		now.Reason = "it goes with another credential by now"
		return &revokedError{now, true}
	case !reflect.DeepEqual(now.Upstream, then.Upstream):
		now.Reason = "it goes another way by now"
		return &revokedError{now, true}
	case tighter(now, then):
		now.Reason = "it has a limit of bytes by now that it did not begin with"
		return &revokedError{now, true}
	}
	return nil
}

// judge is a carrier's: a connection that is read.
func (o *connection) judge(ctx context.Context) *revokedError {
	if d := o.gateway.connect(ctx, o.flow); !o.flow.readable(d) {
		return compare(d, policy.Decision{Action: policy.Allow})
	}
	return nil
}

// stop leaves it to the exchanges on the connection to say why: they are judged
// by the connection too. A client of HTTP/2 is told first to begin no others.
func (o *connection) stop(*revokedError) {
	if part := o.line.part.Load(); part != nil {
		(*part)()
	}
	time.AfterFunc(stopGrace/2, func() {
		o.line.cancel()
		if top := o.line.top.Load(); top != nil {
			_ = (*top).Close()
			return
		}
		_ = o.Conn.Close()
	})
}

func (o *connection) cut() { _ = o.Conn.Close() }

// line is a connection as far as it is ended.
type line struct {
	ctx    context.Context // of all on it
	cancel context.CancelFunc
	conn   net.Conn
	top    atomic.Pointer[tls.Conn] // nil without TLS
	part   atomic.Pointer[func()]   // sends GOAWAY (RFC 9113, section 6.8); nil without HTTP/2
}

func (l *line) begin(ctx context.Context, c net.Conn) {
	l.ctx, l.cancel = context.WithCancel(ctx)
	l.conn = c
}

// judge is a carrier's: an exchange.
func (x *exchange) judge(ctx context.Context) *revokedError {
	g, f := x.gateway, x.flow
	if f.valid != nil && !f.valid() {
		return &revokedError{decision: floor(policy.Decision{Revision: g.revision()}, "client", errInvalid.Error())}
	}
	if d := g.connect(ctx, f); !f.readable(d) {
		return compare(d, policy.Decision{Action: policy.Allow})
	}
	return compare(x.judged(ctx), x.decision)
}

// stop breaks the exchange off. A WebSocket is said goodbye to first.
func (x *exchange) stop(*revokedError) {
	c := x.out.taken.Load()
	if c == nil {
		x.cancel()
		return
	}
	x.gateway.work.Go(func() { // which waits for the client to read
		c.Goodbye(noLonger, stopGrace/2)
		x.cancel()
	})
}

// cut closes what a client takes nothing off.
func (x *exchange) cut() {
	if x.streamed {
		control := http.NewResponseController(x.out.ResponseWriter)
		_, _ = control.SetReadDeadline(time.Unix(1, 0)), control.SetWriteDeadline(time.Unix(1, 0))
		return
	}
	_ = x.flow.line.conn.Close()
}

// conclude gives a call of gRPC whose answer is broken off a status, where a message
// has ended and it is known why; any other is left to be reset.
func (x *exchange) conclude(r *http.Request) bool {
	if x.out.messages == nil || !x.out.messages.between() || x.out.failed {
		return false
	}
	a := x.revoked()
	if over := x.meter.err(); a == nil && over != nil {
		a = failed(over, x.allowed.ID())
	}
	if a == nil {
		return false
	}
	header := a.status(r).Header
	delete(header, "Content-Type") // which has been said
	for name, values := range header {
		x.out.Header()[http.TrailerPrefix+name] = values
	}
	return true
}

// revoked answers an exchange that the policy no longer allows.
func (x *exchange) revoked() *answer {
	why := x.place.revoked.Load()
	if why == nil {
		return nil
	}
	x.err = why
	a := denied(why.decision, x.allowed.ID(), x.request.Method+" "+x.flow.scheme()+"://"+x.flow.authority)
	a.Reason, a.last = why.Error(), true
	if why.again {
		a.Status, a.Remedy = http.StatusServiceUnavailable, "Send the request again."
	}
	return a
}
