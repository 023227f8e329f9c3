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

// exceededError says which limit has no room, and for how long.
type exceededError struct {
	rule   string
	reason string
	retry  time.Duration // zero: waiting does not help, since it is too large, or unpriced
	// unpriced says that it is of no model that has a price.
	unpriced bool
}

func (e *exceededError) Error() string { return e.reason }

// status is what a request that meets the limit is answered with.
func (e *exceededError) status() int {
	switch {
	case e.unpriced:
		return http.StatusForbidden
	case e.retry == 0:
		return http.StatusRequestEntityTooLarge
	}
	return http.StatusTooManyRequests
}

// exceeded is the one place where a limit turns what is allowed into a denial, but
// for what observe mode lets pass.
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

// meter holds what a request or tunnel has taken of its limits. A nil one has
// taken nothing.
type limitMeter struct {
	use     *limit.Use
	largest int64  // of a request's body in bytes, where rule is not empty
	rule    string // the limit that says so
	lenient bool   // nothing is broken off
	unread  bool   // what flows is charged as tokens
	prices  policy.Prices
	costed  string // the limit that bounds cost, or empty
	over    atomic.Pointer[exceededError]
}

// takeLimits counts what is about to be carried, size bytes of a body or -1, and returns
// the decision, or the denial in its place.
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

// checkLimits says what take would, for what is not carried yet.
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

// claims judges what needs no counter, and lists what does.
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

// judged turns the Book's error into one that is answered.
func judged(u *limit.Use, err error) (*limit.Use, *exceededError) {
	var e *limit.ExceededError
	if !errors.As(err, &e) {
		return u, nil
	}
	return nil, overdrawn(e)
}

// overdrawn says it without what changes from one to the next: denials that are
// alike are counted as one.
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

// brief is a time without what is zero: 24h, 1h30m.
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

// spend counts bytes that flow; its error breaks off what they are of.
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

// met takes note of what a limit has no room for.
func (m *limitMeter) met(err error) {
	if _, over := judged(nil, err); over != nil && !m.lenient {
		m.over.CompareAndSwap(nil, over)
	}
}

// upload is spend for n bytes of a request's body, of which total have come.
func (m *limitMeter) upload(n int, total int64) error {
	if m != nil && !m.lenient && m.rule != "" && total > m.largest {
		m.over.CompareAndSwap(nil, tooLarge(m.rule, m.largest))
	}
	return m.spend(n)
}

// err is what has broken it off.
func (m *limitMeter) err() error {
	if m == nil {
		return nil
	}
	if over := m.over.Load(); over != nil {
		return over
	}
	return nil
}

// end gives the place back.
func (m *limitMeter) end() {
	if m != nil {
		m.use.End()
	}
}

// metered reads what counts.
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

// through is r, counted where some limit bounds bytes, or tokens: else the kernel
// may copy.
func (m *limitMeter) through(r io.Reader) io.Reader {
	if m == nil || !m.use.Metered() && !m.unread {
		return r
	}
	return metered{r, m}
}

// blocked makes a completion that of what a limit has broken off.
func (g *Gateway) blocked(c *audit.Event, err error) {
	var over *exceededError
	if !errors.As(err, &over) {
		return
	}
	g.metrics.limited.Inc()
	c.Action, c.Disposition, c.SeverityID = audit.ActionDenied, audit.DispositionBlocked, audit.SeverityMedium
	c.Rule = &audit.Rule{Name: over.rule, Type: policy.TypeLimit} // not the record's, which is the decision's too
}

// FoundLimit is the limit that counts, for each sandbox and its forks together, the
// answers of hosts in which an injected secret was found that they were never sent.
// Such an answer tells a sandbox that guesses whether it has guessed right. A sandbox
// that used it up sends nothing any more until an operator resets it, and no fork of it
// does, those made before and after included.
const FoundLimit = "found-credentials"

func foundBy(s policy.Sandbox) limit.Key {
	return limit.Key{Limit: FoundLimit, Subject: cmp.Or(s.Tags[policy.TagLineage], s.ID)}
}

// stopped tells whether a sandbox has used FoundLimit up.
func (g *Gateway) stopped(s policy.Sandbox) bool {
	return g.budget.Used(foundBy(s)).Requests >= g.found
}

// stray counts an answer in which a secret was found where it should not be, and ends all that
// the sandbox has under way when that is one too many.
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

// unlessStopped is a decision about a sandbox that may have used FoundLimit up.
func (g *Gateway) unlessStopped(in policy.Input, d policy.Decision) policy.Decision {
	switch {
	case in.Phase != policy.PhaseConnect && in.Phase != policy.PhaseRequest, d.Action == policy.Deny, !g.stopped(in.Sandbox):
		return d
	}
	return floor(d, FoundLimit, fmt.Sprintf("%d answers of hosts that were never sent this sandbox's secrets held them", g.found))
}
