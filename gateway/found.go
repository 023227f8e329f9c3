package gateway

import (
	"cmp"
	"fmt"

	"sallyport/policy"
	"sallyport/policy/limit"
)

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
