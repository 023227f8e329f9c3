package gateway

import (
	"cmp"
	"errors"
	"fmt"

	"sallyport/audit"
	"sallyport/gateway/limits"
	"sallyport/gateway/meter"
	"sallyport/policy"
	"sallyport/policy/limit"
)

// exceeded turns an allowed decision into the denial by a limit. In observe mode the
// decision stays, and the denial is noted in Observed. No other function does this.
func (g *Gateway) exceeded(d policy.Decision, e *limits.ExceededError) policy.Decision {
	if d.Lenient {
		if d.Observed == nil {
			d.Observed = &policy.Observed{Action: policy.Deny, Rule: e.Rule, RuleType: policy.TypeLimit, Reason: e.Reason}
		}
		return d
	}
	g.metrics.Limited.Inc()
	d = policy.Decision{
		Action: policy.Deny, Rule: e.Rule, RuleType: policy.TypeLimit, Reason: e.Reason, Retry: e.Retry, Revision: d.Revision,
	}
	if e.Unpriced {
		d.Unjudged = limits.ErrUnpriced
	}
	return d
}

// takeLimits counts a request or tunnel that is about to be sent. size is the body's length
// in bytes, -1 if unknown. It returns the decision, or the denial in its place.
func (g *Gateway) takeLimits(s policy.Sandbox, d policy.Decision, size int64) (*limits.Meter, policy.Decision) {
	m, err := limits.Take(g.Budget, s, d, size)
	if err != nil {
		d = g.exceeded(d, err)
	}
	return m, d
}

// checkLimits returns the decision that takeLimits would, and counts nothing.
func (g *Gateway) checkLimits(s policy.Sandbox, d policy.Decision, size int64) policy.Decision {
	if err := limits.Check(g.Budget, s, d, size); err != nil {
		return g.exceeded(d, err)
	}
	return d
}

// priced denies a request whose path names a model without a price. A body is looked at
// later: see [limits.Meter.CountTokens].
func (q *request) priced(d policy.Decision) policy.Decision {
	_, cost := limits.Charging(d)
	if cost == nil {
		return d
	}
	if q.form.upgrade {
		return q.gateway.exceeded(d, limits.Unpriced(cost.Name, "nobody can see what a WebSocket costs"))
	}
	if model := meter.InPath(q.form.seen.Path); model != "" {
		if _, ok := cost.Prices.Of(model); !ok {
			return q.gateway.exceeded(d, limits.Unpriced(cost.Name, "the model has no price"))
		}
	}
	return d
}

// unpricedTunnel denies what is carried unread and whose cost a limit bounds.
func (g *Gateway) unpricedTunnel(d policy.Decision) policy.Decision {
	if _, cost := limits.Charging(d); cost != nil && (d.Action == policy.Tunnel || d.Action == policy.Allow) {
		return g.exceeded(d, limits.Unpriced(cost.Name, "nobody can see what a tunnel costs"))
	}
	return d
}

const unpricedRemedy = "Do not retry it as it is: ask for a model that has a price, in a JSON body that names it, or ask an operator to add one to prices."

// charge takes the use of an ended request off its limits, and returns what its event says
// of that; nil where no limit counts it.
func (q *request) charge() *audit.Tokens {
	if q.grant.tokens == nil {
		return nil
	}
	return q.gateway.charged(q.grant.tokens.Charge(q.sent.read.Load(), q.out.written.Load()))
}

// charged counts what a limit has been charged with, if it was.
func (g *Gateway) charged(e *audit.Tokens, cost limit.Money) *audit.Tokens {
	if e != nil {
		g.metrics.Charged(e, cost)
	}
	return e
}

// blocked records in a completion that a limit broke the request off.
func (g *Gateway) blocked(c *audit.Event, err error) {
	var over *limits.ExceededError
	if !errors.As(err, &over) {
		return
	}
	g.metrics.Limited.Inc()
	c.Action, c.Disposition, c.SeverityID = audit.ActionDenied, audit.DispositionBlocked, audit.SeverityMedium
	c.Rule = &audit.Rule{Name: over.Rule, Type: policy.TypeLimit} // a new one: the decision's event shares the old one
}

// FoundLimit names the limit of answers that hold an injected secret although their host
// was never sent it. Such an answer tells a sandbox whether a guess was right. The limit
// counts for a sandbox and all its forks together. When it is used up, none of them can
// send anything until an operator resets it.
const FoundLimit = "found-credentials"

func foundBy(s policy.Sandbox) limit.Key {
	return limit.Key{Limit: FoundLimit, Subject: cmp.Or(s.Tags[policy.TagLineage], s.ID)}
}

// stopped reports whether a sandbox has used FoundLimit up.
func (g *Gateway) stopped(s policy.Sandbox) bool {
	return g.Budget.Used(foundBy(s)).Requests >= g.Found
}

// stray counts an answer that holds a secret its host was never sent. If that uses the
// limit up, stray ends all requests and tunnels of the sandbox.
func (g *Gateway) stray(p *peer) {
	s := p.identity.Sandbox
	if g.stopped(s) {
		return
	}
	g.Budget.Overdraw(limit.Claim{
		Key: foundBy(s), Per: policy.PerSandbox, Every: limit.Forever, Most: limit.Amount{Requests: g.Found},
	}).End()
	g.metrics.Strays.Inc()
	if g.stopped(s) {
		g.Logger.Error("a sandbox's requests are refused until an operator has looked: answers of hosts that were never sent its secrets held them",
			"sandbox", p.identity.Name, "times", g.Found)
		g.Redecide()
	}
}

// unlessStopped denies if the sandbox has used FoundLimit up.
func (g *Gateway) unlessStopped(in policy.Input, d policy.Decision) policy.Decision {
	switch {
	case in.Phase != policy.PhaseConnect && in.Phase != policy.PhaseRequest, d.Action == policy.Deny, !g.stopped(in.Sandbox):
		return d
	}
	return floor(d, FoundLimit, fmt.Sprintf("%d answers of hosts that were never sent this sandbox's secrets held them", g.Found))
}
