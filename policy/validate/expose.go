package validate

import (
	"fmt"
	"slices"
	"strings"

	"sallyport/policy"
	"sallyport/policy/finding"
)

// maxExpose bounds the expose rules, since those of a port are tried one by one.
const maxExpose = 1000

// exposes checks the expose rules.
func (v *validator) exposes() {
	if n := len(v.doc.Expose); n > maxExpose {
		v.fail("expose", fmt.Sprintf("are %d, more than %d", n, maxExpose), "select sandboxes by tags, so that one rule is for many")
		return
	}
	for i, e := range v.doc.Expose {
		v.expose(fmt.Sprintf("expose[%d]", i), e)
	}
}

func (v *validator) expose(path string, e policy.ExposeRule) {
	v.oneOf(finding.BadAction, path+".action", string(e.Action), "is not an action", "write allow or deny", "allow", "deny")
	if e.Name == "" {
		v.say(finding.BadName, path, "has no name", "write name: and what the audit shall call it")
	} else if v.label(finding.BadName, path, e.Name) {
		v.own(path, e.Name)
	}
	if e.SSH != nil {
		v.overSSH(path, e)
	} else if e.Ports == nil && e.Action != policy.Deny {
		v.say(finding.BadPort, path, "has no ports", "write ports: and those that requests may reach")
	}
	if slices.Contains(e.Ports, policy.AgentPort) && e.Action != policy.Deny {
		v.say(finding.BadPort, path+".ports", fmt.Sprintf("%d is where the sandbox's own agent listens, which nobody is exposed to", policy.AgentPort), "remove it")
	}
	if slices.ContainsFunc(e.Methods, func(m string) bool { return strings.EqualFold(m, "CONNECT") || strings.EqualFold(m, "TRACE") }) && e.Action != policy.Deny {
		v.say(finding.NeverMatches, path+".methods", "CONNECT and TRACE are never carried to a sandbox", "remove them")
	}
	v.matches(path, e.Ports, e.Methods, e.Paths, e.Sandboxes)
	v.methods(path, e.Methods)
}

// overSSH checks what an expose rule for SSH access says of it.
func (v *validator) overSSH(path string, e policy.ExposeRule) {
	if len(e.SSH) == 0 {
		v.say(finding.NeverMatches, path+".ssh", "is empty, so the rule can never match", "write some of shell, sftp, forward, or remove it for a rule about requests")
	}
	for i, use := range e.SSH {
		at := fmt.Sprintf("%s.ssh[%d]", path, i)
		if use == "" {
			v.say(finding.NeverMatches, at, "is empty", "write shell, sftp or forward")
		}
		v.oneOf(finding.NeverMatches, at, string(use), "cannot be done over SSH", "write shell, sftp or forward", "shell", "sftp", "forward")
	}
	if e.Methods != nil || e.Paths != nil {
		v.say(finding.NeverMatches, path, "has methods or paths, which nothing over SSH has", "remove them, or ssh: where the rule is about requests")
	}
	forward := slices.Contains(e.SSH, policy.ProtocolForward)
	if !forward && e.Ports != nil {
		v.say(finding.NeverMatches, path+".ports", "is of forwarded connections, which the rule is not about", "remove it, or add forward to ssh")
	}
	if forward && e.Ports == nil && e.Action != policy.Deny {
		v.say(finding.BadPort, path, "has no ports", "write ports: and those that may be forwarded to")
	}
}
