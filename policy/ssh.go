package policy

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// sshProtocols are what can be asked for over SSH.
var sshProtocols = []Protocol{ProtocolShell, ProtocolSFTP, ProtocolForward}

// SSHPort is the port of a destination in PhaseSSH where what is asked for is no
// forwarded connection.
const SSHPort = 22

// overSSH are the expose rules that are about SSH access: those that say so, and
// denials of all that comes in.
func overSSH(rules []ExposeRule) (list []ExposeRule) {
	for _, r := range rules {
		if r.SSH != nil || r.Action == Deny && r.Ports == nil && r.Methods == nil && r.Paths == nil {
			list = append(list, r)
		}
	}
	return list
}

// ssh decides about what is asked of a sandbox over SSH: denied by an expose rule or
// the team's Rego, else allowed by an expose rule, else denied. Limits, approvals
// and observe mode are of what leaves.
func (p *Policy) ssh(ctx context.Context, s subject, at time.Time) Decision {
	if s.host != s.Sandbox.Name {
		return p.refuse("the destination is not the sandbox that is asked", nil)
	}
	forward := s.Protocol == ProtocolForward
	if forward && s.Destination.Port == AgentPort {
		return p.refuse("the port of the sandbox's agent cannot be forwarded", nil)
	}
	if !forward && s.Destination.Port != SSHPort {
		return p.refuse(fmt.Sprintf("%s has the port %d, not %d", s.Protocol, s.Destination.Port, SSHPort), nil)
	}
	d := Decision{Action: Deny, Reason: clean(fmt.Sprintf("no expose rule allows %s over SSH for %s", s.Protocol, s.host)), Revision: p.revision}
	if forward {
		d.Reason = clean(fmt.Sprintf("no expose rule allows forwarding over SSH to port %d of %s", s.Destination.Port, s.host))
	}
	for _, e := range p.overSSH {
		if e.SSH != nil && !slices.Contains(e.SSH, s.Protocol) || forward && e.Ports != nil && !slices.Contains(e.Ports, s.Destination.Port) ||
			!e.Sandboxes.picks(s.Sandbox.Name, s.Sandbox.Tags) {
			continue
		}
		if e.Action == Deny {
			return Decision{Action: Deny, Rule: e.Name, RuleType: typeExpose, Reason: clean("denied by rule " + e.Name), Revision: p.revision}
		}
		if d.Action != Allow {
			d = Decision{Action: Allow, Rule: e.Name, RuleType: typeExpose, Reason: clean("allowed by rule " + e.Name), Revision: p.revision}
		}
	}
	if d.Action != Allow || p.query.denies == nil {
		return d
	}
	return p.teamDenies(ctx, s, at, d)
}

// overSSH checks what an expose rule for SSH access says of it.
func (v *validator) overSSH(path string, e ExposeRule) {
	if len(e.SSH) == 0 {
		v.say(NeverMatches, path+".ssh", "is empty, so the rule can never match", "write some of shell, sftp, forward, or remove it for a rule about requests")
	}
	for i, use := range e.SSH {
		if slices.Contains(sshProtocols, use) {
			continue
		}
		fix := "write shell, sftp or forward"
		if near := Nearest(string(use), []string{string(ProtocolShell), string(ProtocolSFTP), string(ProtocolForward)}); near != "" {
			fix = "did you mean " + near + "?"
		}
		v.say(NeverMatches, fmt.Sprintf("%s.ssh[%d]", path, i), fmt.Sprintf("%q cannot be done over SSH", use), fix)
	}
	if e.Methods != nil || e.Paths != nil {
		v.say(NeverMatches, path, "has methods or paths, which nothing over SSH has", "remove them, or ssh: where the rule is about requests")
	}
	forward := slices.Contains(e.SSH, ProtocolForward)
	if !forward && e.Ports != nil {
		v.say(NeverMatches, path+".ports", "is of forwarded connections, which the rule is not about", "remove it, or add forward to ssh")
	}
	if forward && e.Ports == nil && e.Action != Deny {
		v.say(BadPort, path, "has no ports", "write ports: and those that may be forwarded to")
	}
}
