package gateway

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"sallyport/audit"
	"sallyport/gateway/answer"
	"sallyport/gateway/bodies"
	"sallyport/gateway/credential"
	"sallyport/gateway/limits"
	"sallyport/gateway/live"
	"sallyport/gateway/placeholder"
	"sallyport/gateway/turn"
	"sallyport/policy"
	reqbody "sallyport/policy/body"
)

// grant is what the policy has allowed a request.
type grant struct {
	decision policy.Decision
	handle   live.Handle        // once it is allowed
	meter    *limits.Meter      // nil where no limit bounds it
	tokens   *limits.TokenMeter // nil where no limit bounds tokens
	ahead    *bodies.ReadAhead  // the body, nil unless it was read to be approved
}

// decide decides on a request, asks an operator where the policy wants that, and counts
// the request against its limits. The answer that it returns is for a request that may
// not leave.
func (q *request) decide(r *http.Request, turn *turn.Turn) (policy.Decision, *answer.Answer) {
	g := q.gateway
	d := q.askPolicy(r.Context())
	q.findPlaceholders(r)
	if refused := q.misplaced(r, d); refused != nil {
		return d, refused
	}
	for d.Action == policy.Approve {
		d = g.checkLimits(q.identity.Sandbox, d, q.form.seen.Size) // no operator is asked about what could not go
		if d.Action != policy.Approve || g.Approvals == nil {
			break
		}
		turn.End() // it may take long
		var refused *answer.Answer
		if d, refused = q.approve(r, d); refused != nil {
			return d, refused
		}
	}
	if refused := q.misplaced(r, d); refused != nil { // by what it was approved with
		return d, refused
	}
	switch {
	case d.Action != policy.Allow:
		if d.Action == policy.Tunnel {
			d = floor(d, "tunnel", "a rule that carries bytes unread cannot carry a request that has been read")
		}
		return d, q.deny(r, d)
	case len(d.Inject) > 0 && !q.tls():
		d = floor(d, "plain-credential", "a credential goes over TLS only: use https")
		return d, q.deny(r, d)
	}
	if d = q.unfitting(d, r); d.Action != policy.Allow {
		return d, q.deny(r, d)
	}
	if d = q.priced(d); d.Action != policy.Allow {
		return d, q.deny(r, d)
	}
	if q.grant.meter, d = g.takeLimits(q.identity.Sandbox, d, q.form.seen.Size); d.Action != policy.Allow {
		return d, q.deny(r, d)
	}
	q.sent.meter, q.got.meter, q.out.meter = q.grant.meter, q.grant.meter, q.grant.meter
	q.grant.tokens = q.grant.meter.CountTokens(r, q.form.seen.Path, q.form.upgrade)
	q.got.tokens = q.grant.tokens
	return d, nil
}

// unfitting denies a request that cannot be given a credential as its rule says: it has
// something of the sandbox's own in the place of one with own: deny, or is not signed for
// what may be signed.
func (q *request) unfitting(d policy.Decision, r *http.Request) policy.Decision {
	for _, i := range d.Inject {
		reason := ""
		if i.DenyOwn && !q.placeholders.Fills(i, r) && credential.Own(i.Inject, r) {
			reason = fmt.Sprintf("the request has its own %s, where credential %s goes: send it without", policy.Clean(i.Inject.Place()), policy.Clean(i.Credential))
		} else if err := credential.Refuses(i.Inject, r); err != nil {
			reason = err.Error()
		}
		if reason != "" {
			return policy.Decision{Action: policy.Deny, Rule: d.Rule, RuleType: d.RuleType, Reason: reason, Revision: d.Revision}
		}
	}
	return d
}

// askPolicy decides on the request by the policy of now, and enters it where it is
// allowed. Where the policy has changed since the connection was decided on, that is
// decided on again too.
func (q *request) askPolicy(ctx context.Context) (d policy.Decision) {
	set := &q.gateway.live
	epoch := q.epoch
	if epoch == 0 {
		epoch = set.Epoch()
	}
	changed := false
	set.Decide(epoch, func() (*live.Handle, live.Revocable) {
		if changed {
			if d = q.gateway.connect(ctx, q.peer, q.target); !q.readable(d) {
				return nil, nil
			}
		}
		changed = true
		if d = q.ask(ctx); d.Action != policy.Allow {
			return nil, nil
		}
		q.grant.decision = d
		return &q.grant.handle, q
	})
	return d
}

// ask asks the policy about the request, and about its connection where that needs
// approval.
func (q *request) ask(ctx context.Context) policy.Decision {
	d := q.askAboutBody(ctx)
	if d.RawPath && strings.Contains(q.form.rawPath, "//") {
		d = floor(d, "raw-path", "the path has doubled slashes, which some servers make one, and a rule has it sent as it is")
	}
	if q.asks && d.Action == policy.Allow {
		d = approvalOf(q.gateway.connect(ctx, q.peer, q.target), d)
	}
	return d
}

// input is what policy decides the request on.
func (q *request) input() policy.Input {
	return policy.Input{
		Phase:       policy.PhaseRequest,
		Sandbox:     q.identity.Sandbox,
		Destination: policy.Destination{Host: q.host, Port: q.port},
		Protocol:    q.protocol,
		Request:     q.form.seen,
	}
}

// askAboutBody decides on the request, with what the policy has to see of its body. That is
// forgotten at once: it is much larger in Rego's form.
func (q *request) askAboutBody(ctx context.Context) policy.Decision {
	g, in := q.gateway, q.input()
	if g.bodyPolicy == nil {
		return g.decide(ctx, in)
	}
	need := g.bodyPolicy.Need(in) // which may be another than it was
	if need.Max == 0 {
		return g.decide(ctx, in)
	}
	select {
	case g.judging <- struct{}{}:
		defer func() { <-g.judging }()
	case <-ctx.Done():
		return policy.Decision{Action: policy.Deny, Reason: errClient.Error()}
	}
	seen := *q.form.seen
	if q.form.unsuited != nil {
		seen.Body = policy.NoBody(q.form.unsuited)
	} else if text := q.form.body.Bytes(); text != nil {
		seen.Body = reqbody.Read(need, text)
	}
	in.Request = &seen
	return g.decide(ctx, in)
}

// decide asks the policy; an empty answer denies.
func (g *Gateway) decide(ctx context.Context, in policy.Input) policy.Decision {
	d := g.Decider.Decide(ctx, in)
	switch {
	case d.Err != nil && ctx.Err() != nil:
		// Nothing waits for it any more, which is no fault of the policy's: a sandbox
		// that resets its requests must not fill the log with errors.
		d.Action, d.Reason, d.Err = policy.Deny, errClient.Error(), nil
	case d.Err != nil:
		g.metrics.Unevaluated.Inc()
		g.Logger.Error("denying what could not be evaluated", "sandbox", in.Sandbox.Name, "phase", in.Phase, "error", d.Err)
		d.Action = policy.Deny
	case d.Action == "":
		d.Action = policy.Deny
	}
	d = g.unlessStopped(in, d)
	if d.Action == policy.Approve && g.Approvals != nil {
		return d // may become either
	}
	if d.Action != policy.Allow && d.Action != policy.Tunnel {
		d.Inject, d.Upstream = nil, nil
		if d.Reason == "" {
			d.Reason = "no rule allows this"
		}
	}
	return d
}

// connect decides on a connection.
func (g *Gateway) connect(ctx context.Context, p *peer, t target) policy.Decision {
	if t.refused {
		return g.unlisted(ctx, p, t)
	}
	d := g.decide(ctx, t.input(p))
	switch {
	case d.Action != policy.Allow:
		return d
	case t.protocol.IsOther() && !d.Authorised:
		return floor(d, "protocol", "neither TLS nor HTTP: only a rule with action tunnel can carry it")
	case t.bare() && t.sni != "":
		return floor(d, "name", "the connection is to the address "+t.host+" but the TLS handshake names "+t.sni+": connect to the name")
	}
	return d
}

// unlisted denies a connection to the refusal address, with policy's reason where it has
// one. A rule may have come since the look-up: the name needs to be looked up again,
// since this address stands for none.
func (g *Gateway) unlisted(ctx context.Context, p *peer, t target) policy.Decision {
	if t.host == "" {
		return floor(policy.Decision{}, "name", "no rule allows the name that led to this address")
	}
	d := g.decide(ctx, t.input(p))
	if d.Action == policy.Allow || d.Action == policy.Tunnel || d.Action == policy.Approve && g.Approvals != nil {
		d = floor(d, "stale-name", "the name "+t.host+" was refused when it was looked up and is allowed by now: look it up again")
	}
	return d
}

// floor is a denial that no policy can lift.
func floor(d policy.Decision, rule, reason string) policy.Decision {
	return policy.Decision{Action: policy.Deny, Rule: rule, RuleType: "floor", Reason: reason, Revision: d.Revision}
}

// Redecide checks all that goes on by the policy as it is now, and ends what that no
// longer allows, or allows with other credentials or by another way than it goes by. It
// returns at once; the Decider must decide by the new policy before it is called. A
// policy's changes are told by it (see [engine.Engine.Follow]).
func (g *Gateway) Redecide() {
	g.mu.Lock()
	defer g.mu.Unlock()
	sweep := g.live.Advance(!g.closing)
	g.holds.reconsider()
	if sweep {
		g.work.Go(func() { g.live.Sweep(g.life, g.metrics.Revoked.Inc) })
	}
}

// findPlaceholders finds the placeholders in the head of a request, before anything is
// decided.
func (q *request) findPlaceholders(r *http.Request) {
	if q.gateway.Placeholders != nil {
		q.placeholders = placeholder.Find(q.gateway.Placeholders(q.identity.ID), r, q.host, maxHeader)
	}
}

// misplaced denies a request that has a placeholder in its head where the decision does
// not put the credential.
func (q *request) misplaced(r *http.Request, d policy.Decision) *answer.Answer {
	why := q.placeholders.Misplaced(d)
	if why == nil {
		return nil
	}
	d = floor(d, placeholder.Rule, why.Error())
	e := q.event(r, d)
	e.SeverityID = audit.SeverityHigh
	e.Unmapped.Sallyport.Found = []audit.CredentialUse{{Name: why.Credential}}
	id := q.gateway.denial(q.peer, q.target, e)
	q.gateway.metrics.Decided(policy.PhaseRequest, d)
	a := denied(d, id, r.Method+" "+q.scheme()+"://"+q.authority)
	a.Remedy = why.Remedy()
	return a
}

// refusedWith answers a request that is denied whatever its head says, and that has a
// placeholder in it.
func (q *request) refusedWith(r *http.Request, d policy.Decision) *answer.Answer {
	if q.findPlaceholders(r); !q.placeholders.InHead() {
		return nil
	}
	if q.form.seen == nil {
		q.describe(r)
	}
	return q.misplaced(r, d)
}
