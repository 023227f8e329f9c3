package policy

import (
	"slices"
	"time"
)

// Recorded is a decision that was made once, with all that it was made on.
type Recorded struct {
	// ID is the decision's; it names it in the audit.
	ID    string
	At    time.Time
	Input Input
	// The decision. One that observe mode lifted has Observed set, and
	// the Action that was carried out.
	Action      Action
	Rule        string
	RuleType    string
	Reason      string
	Credentials []string // that were to be injected
	Revision    string   // of the policy that decided
	Observed    bool
	// Count is how many decisions the record stands for, at least 1. They are
	// alike in all but, perhaps, method and path.
	Count int
	// Unfit says why it cannot be decided again; the zero Unfit is that it can.
	Unfit Unfit
}

// Unfit is a reason why a recorded decision cannot be made again.
type Unfit string

const (
	// UnfitClipped is one that was made on more than the record has.
	UnfitClipped Unfit = "clipped"
	// UnfitFloor is a refusal that the gateway made, whatever a policy says.
	UnfitFloor Unfit = "floor"
	// UnfitLimit was made on counters.
	UnfitLimit Unfit = "limit"
	// UnfitFolded stands for several, of which nothing is known apart.
	UnfitFolded Unfit = "folded"
	// UnfitBody is one about a request whose body the policy reads.
	UnfitBody Unfit = "body"
	// UnfitIncomplete lacks what a decision needs, as one of an older version may.
	UnfitIncomplete Unfit = "incomplete"
)

// Passes tells whether what was asked for went out.
func (r *Recorded) Passes() bool { return r.Action == Allow || r.Action == Tunnel }

// Differs lists what a decision has other than the recorded one: action, rule,
// credentials.
func (r *Recorded) Differs(d Decision) (parts []string) {
	if r.Action != d.Action {
		parts = append(parts, "action")
	}
	// The type of a refusal without a rule is not recorded.
	if r.Rule != d.Rule || r.Rule != "" && r.RuleType != d.RuleType {
		parts = append(parts, "rule")
	}
	if !sameCredentials(r.Credentials, d) {
		parts = append(parts, "credentials")
	}
	return parts
}

// sameCredentials compares as sets: a decision's come from one.
func sameCredentials(names []string, d Decision) bool {
	if len(names) != len(d.Inject) {
		return false
	}
	for _, in := range d.Inject {
		if !slices.Contains(names, in.Credential) {
			return false
		}
	}
	return true
}
