package audit

// Unmapped is OCSF's place for other fields.
type Unmapped struct {
	Sallyport Extension `json:"sallyport"`
}

// Extension is what Sallyport adds to OCSF.
type Extension struct {
	Approval    *Approval         `json:"approval,omitempty"`          // by which an allowed request was, or that a lifecycle event is about
	Checkpoint  string            `json:"checkpoint,omitempty"`        // of a lifecycle event of this state: a signed note, see audit/tree
	Clipped     []string          `json:"clipped,omitempty"`           // fields here that hold less than was decided on: path, method, header_names, query_keys
	Cluster     string            `json:"cluster,omitempty"`           // of Kubernetes, as pods.cluster names it
	Credentials []CredentialUse   `json:"credentials,omitempty"`       // what was injected
	Decision    string            `json:"decision,omitempty"`          // allow, deny, tunnel, approve
	Deleted     *Deletion         `json:"deleted,omitempty"`           // of a lifecycle event in state audit-deleted
	Found       []CredentialUse   `json:"found_credentials,omitempty"` // what the response held and was overwritten
	Gap         *Gap              `json:"gap,omitempty"`               // of a lifecycle event in state audit-gap
	HeaderNames []string          `json:"header_names,omitempty"`      // of the request, sorted; OCSF's http_headers wants values too
	Method      string            `json:"http_method,omitempty"`       // that OCSF does not know
	Kind        Kind              `json:"kind"`
	Limits      []LimitUse        `json:"limits,omitempty"`        // what bounds it; of a lifecycle event: what was reset
	Memory      *MemoryCommit     `json:"memory_commit,omitempty"` // of a lifecycle event of a sandbox's memory
	MoreSources int               `json:"more_sources,omitempty"`  // of those that count stands for, how many had other ports than source_ports
	Node        string            `json:"node,omitempty"`          // of Kubernetes, where it happened
	Observed    *Observed         `json:"observed,omitempty"`      // what observe mode has lifted
	Owner       string            `json:"owner,omitempty"`         // the tenant whose sandbox it is
	Phase       string            `json:"phase,omitempty"`         // connect, request, dns, inbound, ssh
	Protocol    string            `json:"protocol,omitempty"`      // tls, http, other; of SSH ssh, shell, sftp, forward: what a connection was found to carry; a request's scheme says it
	QueryKeys   []string          `json:"query_keys,omitempty"`    // of the request's URL
	Reason      string            `json:"reason,omitempty"`
	Sandbox     string            `json:"sandbox,omitempty"` // name
	SandboxID   string            `json:"sandbox_id,omitempty"`
	Session     string            `json:"session,omitempty"`
	Unsized     bool              `json:"size_unknown,omitempty"` // the request did not say how long its body is; without it the length, or 0, was declared
	Snapshot    string            `json:"snapshot,omitempty"`     // lifecycle: of the sandbox, that was made, restored or removed
	SourcePorts []int             `json:"source_ports,omitempty"` // of the connections that count stands for
	State       string            `json:"state,omitempty"`        // lifecycle: created, started, stopped, removed …; what a finding has found
	Subject     string            `json:"subject,omitempty"`      // lifecycle: KIND/NAME of what changed state
	Tags        map[string]string `json:"tags,omitempty"`
	Tokens      *Tokens           `json:"tokens,omitempty"` // of a completion that a limit of tokens or cost is about
}

// MemoryCommit is a step of the history of a sandbox's memory.
type MemoryCommit struct {
	Changes int    `json:"changes"` // paths
	Digest  string `json:"digest"`  // of the commit and, by that, of all before it
	Number  uint64 `json:"number"`
}

// Tokens is what a request to an LLM API has used, as its answer reports it: see
// [Event.SetTokens].
type Tokens struct {
	CacheWrite int64  `json:"cache_write,omitempty"`
	Cached     int64  `json:"cached,omitempty"`
	Cost       string `json:"cost,omitempty"` // decimal, in the currency of the prices; without one nothing is said
	// Estimated reports that a part was not reported and is an upper estimate.
	Estimated bool   `json:"estimated,omitempty"`
	In        int64  `json:"in"` // with Cached and CacheWrite in it
	Model     string `json:"model,omitempty"`
	Out       int64  `json:"out"`
}

// Observed is the decision that there would be without observe mode.
type Observed struct {
	Decision string `json:"decision"`
	Reason   string `json:"reason,omitempty"`
	Rule     string `json:"rule,omitempty"`
	RuleType string `json:"rule_type,omitempty"`
}

// LimitUse names a limit and the subject of its counter.
type LimitUse struct {
	Name    string `json:"name"`
	Period  int64  `json:"period,omitempty"` // milliseconds, where it counts over one
	Subject string `json:"subject"`
	Uses    int64  `json:"uses,omitempty"` // of credentials
}

// Approval is a question to an operator, or the answer.
type Approval struct {
	Body     string `json:"body_sha256,omitempty"`
	By       string `json:"by,omitempty"`    // the approval that covers this one too
	Count    int    `json:"count,omitempty"` // uses, of a longer one
	ID       string `json:"id"`
	Login    string `json:"login,omitempty"`  // who logged in, where the operator is whom they became since
	Method   string `json:"method,omitempty"` // of a longer one, * is any
	Operator string `json:"operator,omitempty"`
	Path     string `json:"path,omitempty"` // likewise, a glob
	Query    string `json:"query_sha256,omitempty"`
	Span     string `json:"span,omitempty"` // once, session, period
	UID      string `json:"uid,omitempty"`
	Until    int64  `json:"until,omitempty"` // milliseconds since the Unix epoch: when the question, or the answer, ends
}

// CredentialUse names a credential and the version of the secret behind it.
type CredentialUse struct {
	Lease string `json:"lease_accessor,omitempty"` // what its source calls the lease, where there is one; not a secret
	Name  string `json:"name"`
	// Placeholder says that the sandbox had asked for it by its placeholder.
	Placeholder bool   `json:"placeholder,omitempty"`
	Version     string `json:"version,omitempty"`
}

// String is NAME@VERSION, or the name alone.
func (u CredentialUse) String() string {
	if u.Version == "" {
		return u.Name
	}
	return u.Name + "@" + u.Version
}
