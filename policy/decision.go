package policy

import (
	"time"

	"sallyport/policy/finding"
)

// Action is what a decision says to do. The zero Action is deny.
type Action string

const (
	Deny    Action = "deny"
	Allow   Action = "allow"  // read, decide per request, carry
	Tunnel  Action = "tunnel" // carry the bytes unread; PhaseConnect only, and always for what [Protocol.IsOther] unless it is Authorised
	Approve Action = "approve"
)

// Decision is the answer of data.sallyport.decision. The zero Decision denies.
type Decision struct {
	Action Action
	// Rule is the name of the rule that decided; RuleType says which list it is
	// from: egress, egressAuth, expose, rego, observe for what observe mode lets pass,
	// limit, or floor for what no policy can allow.
	Rule     string
	RuleType string
	// Reason is one sentence for the agent and for the audit.
	Reason string
	// Inject lists the credentials to put into the request.
	Inject []Injection
	// Authorised says of a connection, which is to be allowed or approved, that an egressAuth
	// rule logs in by its protocol: the gateway speaks it, and each request on it is decided.
	Authorised bool `json:",omitempty"`
	// Cookies says that all rules which inject let cookies pass: see EgressAuthRule.Cookies.
	Cookies bool `json:",omitempty"`
	// Upstream is how the destination is reached, or nil for the public way.
	Upstream *Upstream
	// RawPath says that the path goes as the client wrote it: see EgressRule.RawPath.
	RawPath bool `json:",omitempty"`
	// Observed is what would have been decided without observe mode, which has
	// lifted it; nil for what was not lifted.
	Observed *Observed `json:",omitempty"`
	// Governed says of what was lifted that the destination is one of egressAuth
	// rules: what credentials the sandbox sends of its own stay behind.
	Governed bool `json:",omitempty"`
	// Revision is the digest of the policy that decided.
	Revision string
	// Unjudged is set where this is denied because a rule has to see the request's
	// body and cannot, and says why: with the body it might be decided otherwise.
	Unjudged error `json:"-"`
	// Limits lists what bounds this, where it is allowed, tunnelled or to be
	// approved. The part of the program that carries it counts.
	Limits []Applied
	// Lenient says that limits are counted and not enforced, since the sandbox is
	// in observe mode.
	Lenient bool `json:",omitempty"`
	// Retry is for how long a limit denies, set by who counts; zero where waiting
	// does not help.
	Retry time.Duration
	// Approvals says, with an Approve, how the request waits; nil is by default.
	Approvals *Approvals
	// Approval is what an operator has answered, set by who asked.
	Approval *Approval
	// Err is set when the policy could not be evaluated; the Action is then Deny.
	Err error `json:"-"`
}

// Approval is the yes of an operator that made an Approve an Allow.
type Approval struct {
	ID       string
	Operator string
	UID      string
	Login    string // who logged in, where that is another
	Span     string // once, session, period
}

// Injection pairs a credential with its place in the request. The zero Inject is
// the default: see EgressAuthRule.Inject.
type Injection struct {
	Credential string
	Inject     Inject
	// DenyOwn says that a request which has something of the sandbox's own in that place is
	// denied: see EgressAuthRule.Own.
	DenyOwn bool `json:",omitempty"`
}

const (
	TypeEgress     = "egress"
	TypeEgressAuth = "egressAuth"
	TypeRego       = "rego"
	TypeExpose     = "expose"
	TypeFloor      = "floor"

	// TypeLimit is the RuleType of a limit that denies.
	TypeLimit = "limit"
)

const TypeObserve = "observe"

// Contribution is one thing that a team's Rego contributes to an input, whether it decides
// or not.
type Contribution struct {
	Set string // deny, approve, allow or inject
	// By is the package of a deny or approve, the rule of an allow, the credential
	// of an inject.
	By string
	// Reason is what it says, if it says anything.
	Reason string
}

// Explanation says what would be decided and why.
type Explanation struct {
	Decision Decision
	// Credentials names what would be injected.
	Credentials []string
	// Near lists the rules for the host, those that fit best first; where there
	// is none, those for hosts that are spelled alike.
	Near []Near
	// Contributions lists what the team's Rego contributes to this input.
	Contributions []Contribution `json:"Said"`
	// Variants says what would be decided of each reading of the path, where it has
	// several: those of encoded slashes.
	Variants []PathVariant `json:"Readings,omitempty"`
}

// PathVariant is one way to read a path, and what would be decided of that alone.
type PathVariant struct {
	Path     string
	Action   Action
	Rule     string
	RuleType string
	Reason   string
}

// Near is a rule and the parts of it that the input failed on: host, sandbox, fork,
// port, plain, action, method, path, body. A deny that failed on something did not deny.
type Near struct {
	Rule        string
	RuleType    string
	Action      Action
	Destination string
	Position    finding.Position
	Failed      []string
	// Wants says for each of Failed what the rule would have fitted.
	Wants []string
}
