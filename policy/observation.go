package policy

import (
	"strings"
	"time"
)

// Observation puts sandboxes into observe mode for a while: everything is decided
// and recorded, and what the policy denies, or asks a person about, is carried
// all the same, without a credential that no rule gives, and by the upstream that
// a rule for its destination names. The floor always holds:
// the datapath, the classes of addresses, the bindings of credentials, verified
// TLS, the form of requests.
//
//	observe:
//	- {sandboxes: {names: [demo]}, until: 2026-12-01T00:00:00Z}
type Observation struct {
	// Sandboxes selects whose. It names some: there is no default.
	// Example: {names: [demo]}
	Sandboxes Selector `yaml:"sandboxes"`
	// Until is when it ends by itself, at most 30 days ahead.
	// Example: 2026-12-01T00:00:00Z
	Until time.Time `yaml:"until"`
}

// Observed is a decision that observe mode has lifted.
type Observed struct {
	Action   Action
	Rule     string
	RuleType string
	Reason   string
}

// Lifting is one thing that is in observe mode.
type Lifting struct {
	// Sandboxes are selected by name and tags; a rule's are all that it is for.
	Names []string          `json:"names,omitempty"`
	Tags  map[string]string `json:"tags,omitempty"`
	Rule  string            `json:"rule,omitempty"` // whose own observe it is
	Until time.Time         `json:"until"`
}

// String says what is not enforced.
func (l Lifting) String() string {
	var parts []string
	for _, name := range l.Names {
		parts = append(parts, "sandbox "+Quoted(name))
	}
	if len(l.Tags) > 0 {
		parts = append(parts, Selector{Tags: l.Tags}.String())
	}
	what := strings.Join(parts, ", ")
	if l.Rule != "" {
		what = "rule " + l.Rule
	}
	return what + " until " + l.Until.UTC().Format(time.RFC3339)
}
