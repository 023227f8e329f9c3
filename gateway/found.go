package gateway

import (
	"fmt"

	"sallyport/policy"
	"sallyport/policy/budget"
)

// FoundLimit is the limit that counts, for each sandbox, how many times an injected
// secret was found in the answer of a host that it was never sent to. Such an
// answer tells a sandbox that guesses whether it has guessed right. A sandbox that
// used it up sends nothing any more until an operator resets it.
const FoundLimit = "found-credentials"

func foundBy(id string) budget.Key { return budget.Key{Limit: FoundLimit, Subject: id} }

// stopped tells whether a sandbox has used FoundLimit up.
func (g *Gateway) stopped(id string) bool { return g.budget.Used(foundBy(id)).Requests >= g.found }

// stray counts a secret that was found where it should not be, and ends all that
// the sandbox has under way when that is one too many.
func (g *Gateway) stray(f *flow) {
	id := f.identity.ID
	if g.stopped(id) {
		return
	}
	g.budget.Overdraw(budget.Claim{
		Key: foundBy(id), Per: policy.PerSandbox, Every: budget.Forever, Most: budget.Amount{Requests: g.found},
	}).End()
	g.metrics.strays.Inc()
	if g.stopped(id) {
		g.logger.Error("a sandbox's requests are refused until an operator has looked: answers of hosts that were never sent its secrets held them",
			"sandbox", f.identity.Name, "times", g.found)
		g.Redecide()
	}
}

// unlessStopped is a decision about a sandbox that may have used FoundLimit up.
func (g *Gateway) unlessStopped(in policy.Input, d policy.Decision) policy.Decision {
	switch {
	case in.Phase != policy.PhaseConnect && in.Phase != policy.PhaseRequest, d.Action == policy.Deny, !g.stopped(in.Sandbox.ID):
		return d
	}
	return floor(d, FoundLimit, fmt.Sprintf("answers of hosts that were never sent this sandbox's secrets held them %d times", g.found))
}
