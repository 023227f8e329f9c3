package engine

import (
	"context"
	"fmt"
	"slices"
	"time"

	"sallyport/policy"
	"sallyport/policy/rule"
)

// overSSH are the expose rules that are about SSH access: those that say so, and
// denials of all that comes in.
func overSSH(rules []policy.ExposeRule) (list []policy.ExposeRule) {
	for _, r := range rules {
		if r.SSH != nil || r.Action == policy.Deny && r.Ports == nil && r.Methods == nil && r.Paths == nil {
			list = append(list, r)
		}
	}
	return list
}

// ssh decides about what is asked of a sandbox over SSH: denied by an expose rule or
// the team's Rego, else allowed by an expose rule, else denied. Limits, approvals
// and observe mode are of what leaves.
func (p *Policy) ssh(ctx context.Context, s rule.ParsedInput, at time.Time) policy.Decision {
	if s.Host != s.Sandbox.Name {
		return p.refuse("the destination is not the sandbox that is asked", nil)
	}
	forward := s.Protocol == policy.ProtocolForward
	if forward && s.Destination.Port == policy.AgentPort {
		return p.refuse("the port of the sandbox's agent cannot be forwarded", nil)
	}
	if !forward && s.Destination.Port != policy.SSHPort {
		return p.refuse(fmt.Sprintf("%s has the port %d, not %d", s.Protocol, s.Destination.Port, policy.SSHPort), nil)
	}
	d := policy.Decision{Action: policy.Deny, Reason: policy.Clean(fmt.Sprintf("no expose rule allows %s over SSH for %s", s.Protocol, s.Host)), Revision: p.revision}
	if forward {
		d.Reason = policy.Clean(fmt.Sprintf("no expose rule allows forwarding over SSH to port %d of %s", s.Destination.Port, s.Host))
	}
	for _, e := range p.overSSH {
		if e.SSH != nil && !slices.Contains(e.SSH, s.Protocol) || forward && e.Ports != nil && !slices.Contains(e.Ports, s.Destination.Port) ||
			!e.Sandboxes.Picks(s.Sandbox.Name, s.Sandbox.Tags) {
			continue
		}
		if e.Action == policy.Deny {
			return policy.Decision{Action: policy.Deny, Rule: e.Name, RuleType: policy.TypeExpose, Reason: policy.Clean("denied by rule " + e.Name), Revision: p.revision}
		}
		if d.Action != policy.Allow {
			d = policy.Decision{Action: policy.Allow, Rule: e.Name, RuleType: policy.TypeExpose, Reason: policy.Clean("allowed by rule " + e.Name), Revision: p.revision}
		}
	}
	if d.Action != policy.Allow || p.query.denies == nil {
		return d
	}
	return p.teamDenies(ctx, s, at, d)
}
