package rule

import (
	"slices"

	"sallyport/policy"
)

// Effect is what a rule does to an input: see decision.rego. 0 is nothing.
type Effect int

const (
	Denies Effect = iota + 1
	Approves
	Authorises
	Governs
	Allows
	Reads
	Tunnels

	EffectCount = iota + 1
)

// Moment is a phase and what is carried.
type Moment struct {
	phase    policy.Phase
	protocol policy.Protocol
}

// Moment is when the input is decided about.
func (s ParsedInput) Moment() Moment { return Moment{s.Phase, s.Protocol} }

// Unmatched is what the rule does whether its pattern matches or not, or 0.
func (r *Rule) Unmatched(m Moment) Effect {
	if r.Type == policy.TypeEgressAuth && m.phase != policy.PhaseDNS {
		return Governs
	}
	return 0
}

// Matched is what the rule does at a moment to what its methods and paths match, or 0.
func (r *Rule) Matched(m Moment) Effect {
	carried := m.phase == policy.PhaseDNS || r.Carries(m.protocol)
	switch {
	case r.Action == policy.Deny:
		return r.denial(m)
	case !carried:
		return 0
	case m.phase == policy.PhaseDNS:
		return Allows // whatever comes of it, the name is worth an address
	case r.Type == policy.TypeEgressAuth:
		return Authorises
	case m.protocol.IsOther() && r.Action != policy.Approve:
		if m.phase == policy.PhaseRequest {
			return 0 // it is about the bytes of a connection, and here is one of its requests
		}
		return Tunnels
	case r.Action == policy.Approve:
		if m.phase == policy.PhaseConnect && !m.protocol.IsOther() {
			return Allows // the request is what a person is asked about
		}
		return Approves
	case r.Action == policy.Tunnel && m.phase == policy.PhaseConnect:
		return Tunnels
	}
	return Allows
}

func (r *Rule) denial(m Moment) Effect {
	switch {
	case m.phase == policy.PhaseDNS:
		// A name is refused when nothing about it can be allowed.
		if r.Conditional() || r.Ports != nil {
			return 0
		}
	case m.phase == policy.PhaseConnect && !m.protocol.IsOther() && r.Conditional():
		return Reads // the request decides
	}
	// A request that cannot be read cannot be shown to be none of the denied ones.
	return Denies
}

// Match is a rule that speaks about an input, and what it does there.
type Match struct {
	Rule *Rule
	Does Effect
}

// MatchesRequest tells whether a request is one of the rule's methods and paths.
func (r *Rule) MatchesRequest(s ParsedInput) bool {
	return s.Request == nil ||
		(r.Methods == nil || slices.Contains(r.Methods, s.Request.Method)) && (r.Paths == nil || r.MatchesPath(s.Request.Path))
}

func (r *Rule) MatchesPath(path string) bool { return r.path().MatchString(path) }
