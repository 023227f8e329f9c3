package gateway

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"sallyport/audit"
	"sallyport/policy"
	"sallyport/policy/limit"
)

// exceededError names the limit that refuses a request, and says for how long it does.
type exceededError struct {
	rule   string
	reason string
	retry  time.Duration // zero: waiting does not help (too large, or unpriced)
	// unpriced says that no price is configured for the model.
	unpriced bool
}

func (e *exceededError) Error() string { return e.reason }

// status is the HTTP status of the answer to a refused request.
func (e *exceededError) status() int {
	switch {
	case e.unpriced:
		return http.StatusForbidden
	case e.retry == 0:
		return http.StatusRequestEntityTooLarge
	}
	return http.StatusTooManyRequests
}

// exceeded turns an allowed decision into the denial by a limit. In observe mode the
// decision stays, and the denial is noted in Observed. No other function does this.
func (g *Gateway) exceeded(d policy.Decision, e *exceededError) policy.Decision {
	if d.Lenient {
		if d.Observed == nil {
			d.Observed = &policy.Observed{Action: policy.Deny, Rule: e.rule, RuleType: policy.TypeLimit, Reason: e.reason}
		}
		return d
	}
	g.metrics.limited.Inc()
	d = policy.Decision{
		Action: policy.Deny, Rule: e.rule, RuleType: policy.TypeLimit, Reason: e.reason, Retry: e.retry, Revision: d.Revision,
	}
	if e.unpriced {
		d.Unjudged = errUnpriced
	}
	return d
}

// limitMeter counts what a request or tunnel uses of its limits. A nil limitMeter
// counts nothing.
type limitMeter struct {
	use     *limit.Use
	largest int64  // of a request's body in bytes, if rule is not empty
	rule    string // the limit of that size
	lenient bool   // observe mode: nothing is broken off
	unread  bool   // bytes are charged as tokens
	prices  policy.Prices
	costed  string // the limit that bounds cost, or empty
	over    atomic.Pointer[exceededError]
}

// takeLimits counts a request or tunnel that is about to be sent. size is the body's length
// in bytes, -1 if unknown. It returns the decision, or the denial in its place.
func (g *Gateway) takeLimits(s policy.Sandbox, d policy.Decision, size int64) (*limitMeter, policy.Decision) {
	if len(d.Limits) == 0 {
		return nil, d
	}
	m := &limitMeter{lenient: d.Lenient}
	claims, err := g.claims(s, d, m, size)
	if err == nil {
		m.use, err = judged(g.budget.Take(max(size, 0), claims...))
	}
	if err == nil {
		return m, d
	}
	if d = g.exceeded(d, err); d.RuleType == policy.TypeLimit {
		return nil, d
	}
	m.use = g.budget.Overdraw(claims...)
	return m, d
}

// checkLimits returns the decision that takeLimits would, and counts nothing.
func (g *Gateway) checkLimits(s policy.Sandbox, d policy.Decision, size int64) policy.Decision {
	claims, err := g.claims(s, d, &limitMeter{}, size)
	if err == nil && len(claims) > 0 {
		_, err = judged(nil, g.budget.Check(max(size, 0), claims...))
	}
	if err != nil {
		return g.exceeded(d, err)
	}
	return d
}

// claims checks the limits without a counter and returns the claims on the counters.
func (g *Gateway) claims(s policy.Sandbox, d policy.Decision, m *limitMeter, size int64) ([]limit.Claim, *exceededError) {
	var large, shut *exceededError
	now := g.budget.Now()
	claims := make([]limit.Claim, 0, len(d.Limits))
	for _, a := range d.Limits {
		if most := int64(a.Size); most > 0 {
			if size > most && large == nil {
				large = tooLarge(a.Name, most)
			}
			if m.rule == "" || most < m.largest {
				m.largest, m.rule = most, a.Name
			}
		}
		if wait := a.Opens(now); wait > 0 && (shut == nil || wait > shut.retry) {
			shut = &exceededError{rule: a.Name, reason: fmt.Sprintf("limit %s: this is not within its hours", a.Name), retry: wait}
		}
		if a.Cost > 0 {
			m.costed, m.prices = a.Name, a.Prices
		}
		if !a.Periodic() && a.Concurrent == 0 {
			continue
		}
		claims = append(claims, limit.Claim{
			Key: limit.Key{Limit: a.Name, Subject: a.Subject}, By: limit.By{Sandbox: s.ID, Owner: s.Owner}, Per: a.Per, Every: time.Duration(a.Every), Uses: a.Credentials,
			Most: limit.Amount{Requests: a.Requests, Bytes: int64(a.Bytes), Uses: a.Uses, Concurrent: a.Concurrent, Tokens: a.Tokens, Cost: a.Cost},
		})
	}
	if large != nil {
		return claims, large
	}
	return claims, shut
}

func tooLarge(rule string, most int64) *exceededError {
	return &exceededError{rule: rule, reason: fmt.Sprintf("limit %s: a request's body has %v at most", rule, policy.Size(most))}
}

// judged turns an error of the limit store into an exceededError.
func judged(u *limit.Use, err error) (*limit.Use, *exceededError) {
	var e *limit.ExceededError
	if !errors.As(err, &e) {
		return u, nil
	}
	return nil, overdrawn(e)
}

// overdrawn describes a used-up limit without amounts that differ between requests, so
// that equal denials are aggregated.
func overdrawn(e *limit.ExceededError) *exceededError {
	l := &exceededError{rule: e.Limit, reason: e.Error(), retry: e.Retry}
	switch every := brief(e.Every); e.What {
	case "bytes":
		l.reason = fmt.Sprintf("limit %s: %v within %v are used up", e.Limit, policy.Size(e.Most), every)
	case "cost":
		l.reason = fmt.Sprintf("limit %s: a cost of %v within %v is used up", e.Limit, limit.Money(e.Most), every)
	case "requests", "uses", "tokens":
		l.reason = fmt.Sprintf("limit %s: %d %s within %v are used up", e.Limit, e.Most, e.What, every)
	}
	return l
}

// brief formats a duration without zero units: 24h, 1h30m.
func brief(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// spend counts n bytes. On an error the caller breaks the request or tunnel off.
func (m *limitMeter) spend(n int) error {
	if m == nil || !m.use.Metered() && !m.unread {
		return m.err()
	}
	m.met(m.use.Spend(n))
	if m.unread {
		m.met(m.use.Charge(int64(n), m.prices.Highest().Output.For(int64(n))))
	}
	return m.err()
}

// met keeps the first error of a limit.
func (m *limitMeter) met(err error) {
	if _, over := judged(nil, err); over != nil && !m.lenient {
		m.over.CompareAndSwap(nil, over)
	}
}

// upload is spend for n more bytes of a request's body; total is the sum so far.
func (m *limitMeter) upload(n int, total int64) error {
	if m != nil && !m.lenient && m.rule != "" && total > m.largest {
		m.over.CompareAndSwap(nil, tooLarge(m.rule, m.largest))
	}
	return m.spend(n)
}

// err is the limit's error that broke the request off, or nil.
func (m *limitMeter) err() error {
	if m == nil {
		return nil
	}
	if over := m.over.Load(); over != nil {
		return over
	}
	return nil
}

// end releases the concurrent use.
func (m *limitMeter) end() {
	if m != nil {
		m.use.End()
	}
}

// metered counts the bytes that are read through it.
type metered struct {
	io.Reader
	meter *limitMeter
}

func (r metered) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if over := r.meter.spend(n); over != nil {
		return 0, over
	}
	return n, err
}

// through returns a reader that counts. Without a limit of bytes or tokens it returns r
// itself, so that the kernel can copy (splice(2)).
func (m *limitMeter) through(r io.Reader) io.Reader {
	if m == nil || !m.use.Metered() && !m.unread {
		return r
	}
	return metered{r, m}
}

// blocked records in a completion that a limit broke the request off.
func (g *Gateway) blocked(c *audit.Event, err error) {
	var over *exceededError
	if !errors.As(err, &over) {
		return
	}
	g.metrics.limited.Inc()
	c.Action, c.Disposition, c.SeverityID = audit.ActionDenied, audit.DispositionBlocked, audit.SeverityMedium
	c.Rule = &audit.Rule{Name: over.rule, Type: policy.TypeLimit} // a new one: the decision's event shares the old one
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
	return g.budget.Used(foundBy(s)).Requests >= g.found
}

// stray counts an answer that holds a secret its host was never sent. If that uses the
// limit up, stray ends all requests and tunnels of the sandbox.
func (g *Gateway) stray(p *peer) {
	s := p.identity.Sandbox
	if g.stopped(s) {
		return
	}
	g.budget.Overdraw(limit.Claim{
		Key: foundBy(s), Per: policy.PerSandbox, Every: limit.Forever, Most: limit.Amount{Requests: g.found},
	}).End()
	g.metrics.strays.Inc()
	if g.stopped(s) {
		g.logger.Error("a sandbox's requests are refused until an operator has looked: answers of hosts that were never sent its secrets held them",
			"sandbox", p.identity.Name, "times", g.found)
		g.Redecide()
	}
}

// unlessStopped denies if the sandbox has used FoundLimit up.
func (g *Gateway) unlessStopped(in policy.Input, d policy.Decision) policy.Decision {
	switch {
	case in.Phase != policy.PhaseConnect && in.Phase != policy.PhaseRequest, d.Action == policy.Deny, !g.stopped(in.Sandbox):
		return d
	}
	return floor(d, FoundLimit, fmt.Sprintf("%d answers of hosts that were never sent this sandbox's secrets held them", g.found))
}
