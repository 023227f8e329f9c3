package policy

// Said is one thing that a team's Rego contributes to an input, whether it decides
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
	// Said lists what the team's Rego contributes to this input.
	Contributions []Contribution `json:"Said"`
	// Readings says what would be decided of each reading of the path, where it has
	// several: those of encoded slashes.
	Variants []PathVariant `json:"Readings,omitempty"`
}

// Reading is one way to read a path, and what would be decided of that alone.
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
	Position    Position
	Failed      []string
	// Wants says for each of Failed what the rule would have fitted.
	Wants []string
}
