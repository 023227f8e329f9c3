package api

import (
	"fmt"
	"net/http"
	"time"

	"sallyport/audit/retention"
	"sallyport/internal/recorded"
	"sallyport/policy"
	reqbody "sallyport/policy/body"
	"sallyport/sandbox"
)

// Status is what the daemon says of itself.
type Status struct {
	Version   string `json:"version"`
	PID       int    `json:"pid"`
	Revision  string `json:"policy_revision"`
	Rules     int    `json:"rules"`
	Sandboxes int    `json:"sandboxes"`
	Events    uint64 `json:"events"`
	Syncs     uint64 `json:"syncs"`
	Policy    Policy `json:"policy"`
	// Gateway is the process that carries what leaves.
	Gateway Process `json:"gateway"`
	// Observing lists what is in observe mode now.
	Observing []policy.Lifting `json:"observing,omitempty"`
	// Node is that of Kubernetes whose pods are the sandboxes, nil elsewhere.
	Node *Node `json:"node,omitempty"`
	// SSH is the process that operators reach sandboxes through, nil without one.
	SSH *SSH `json:"ssh,omitempty"`
	// Sinks are the receivers of the audit log's records.
	Sinks []Sink `json:"sinks,omitempty"`
	// Leases are those of Vault that are to be revoked and could not be yet.
	Leases []Lease `json:"leases,omitempty"`
	// Retention is what there is of the audit log.
	Retention retention.Status `json:"retention"`
	// Seal is how the audit log is sealed.
	Seal *Seal `json:"seal,omitempty"`
	// Fingerprint is that of the certificate of the TLS listener, sha256:HEX.
	Fingerprint string `json:"fingerprint,omitempty"`
}

func (h *handler) status(*http.Request, none) (Status, error) { return h.opt.Status(), nil }

func (h *handler) reload(r *http.Request, _ none) (Status, error) {
	if err := h.opt.Reload(r.Context()); err != nil {
		return Status{}, fmt.Errorf("%w: the running policy stays: %w", errBadRequest, err)
	}
	return h.opt.Status(), nil
}

func (h *handler) shutdown(w http.ResponseWriter, r *http.Request) {
	h.opt.Shutdown(r.Context())
	w.WriteHeader(http.StatusAccepted)
}

// Node is a node of Kubernetes. Limits are counted, and approvals asked for, on each node
// by itself.
type Node struct {
	Name    string `json:"name"`
	Cluster string `json:"cluster,omitempty"`
	// Tainted is why new pods may be kept off the node, or "".
	Tainted string `json:"tainted,omitempty"`
}

// Lease is a secret that an engine of Vault made for a sandbox.
type Lease struct {
	ID         string    `json:"id"` // Vault's
	Credential string    `json:"credential"`
	Sandbox    string    `json:"sandbox,omitempty"` // ID; empty for the host's own
	Expires    time.Time `json:"expires"`
	Error      string    `json:"error,omitempty"` // why it was not revoked the last time
}

// Process says how a process that the daemon looks after is.
type Process struct {
	PID      int       `json:"pid"` // 0: there is none
	Since    time.Time `json:"since,omitzero"`
	Restarts int       `json:"restarts"`
	Failure  string    `json:"failure,omitempty"` // how the last one ended
	UID      int       `json:"uid"`
	OwnRoot  bool      `json:"own_root"`
	Landlock int       `json:"landlock"` // version; 0: the kernel has none
}

// Seal says how far the audit log is covered by signed checkpoints.
type Seal struct {
	Log        string    `json:"log"`                 // the name of its key; "" until that is open
	Size       uint64    `json:"size"`                // records in the tree
	Covered    uint64    `json:"covered"`             // records that the newest checkpoint covers
	Checkpoint time.Time `json:"checkpoint,omitzero"` // when it was signed
	Unanchored uint64    `json:"unanchored"`          // records that it does not cover
	Failure    string    `json:"failure,omitempty"`   // why records are not sealed now
	Since      time.Time `json:"since,omitzero"`      // of Failure
	Failures   uint64    `json:"failures,omitempty"`
}

// SSH says how the process is that serves SSH, and where.
type SSH struct {
	Listen      string `json:"listen"`
	Fingerprint string `json:"fingerprint"` // of the host key
	HostKey     string `json:"host_key"`    // as known_hosts has it after the name
	PID         int    `json:"pid"`         // 0: there is none
	UID         int    `json:"uid"`
	Landlock    int    `json:"landlock"` // version; 0: the kernel has none
	Restarts    int    `json:"restarts"`
	Failure     string `json:"failure,omitempty"` // how the last one ended
	Connections int    `json:"connections"`
}

// Bundle says where the policy's bundle is from, and how fresh it is.
type Bundle struct {
	Source   string    `json:"source"`             // file or URL
	Revision string    `json:"revision,omitempty"` // as its manifest says
	Signed   bool      `json:"signed"`
	Checked  time.Time `json:"checked,omitzero"`  // when the server last had the bundle in force, or gave it
	Stale    bool      `json:"stale,omitempty"`   // the last check that succeeded is too long ago
	Failure  string    `json:"failure,omitempty"` // of the last check
}

// Policy says how what is in force came to be, and what did not.
type Policy struct {
	Loaded time.Time `json:"loaded"`
	By     string    `json:"by"` // start, signal, api, files or bundle
	// Refused is what is on disk, or at the bundle's server, in place of what is in
	// force; nil where that is the same.
	Refused *Refused `json:"refused,omitempty"`
	// Selected are sandboxes that the last load's rules began to select by a name that
	// they had before.
	Selected []string `json:"selected,omitempty"`
	Bundle   *Bundle  `json:"bundle,omitempty"`
}

// Refused is a policy that was not taken.
type Refused struct {
	Since  time.Time `json:"since"` // of the first of several in a row
	By     string    `json:"by"`
	Reason string    `json:"reason"`
}

// Question is what is explained: an input, and its request's body where that is
// known.
type Question struct {
	policy.Input
	Sent *reqbody.Raw `json:",omitempty"`
}

// explain decides about a question whose body, if there is one, is in Base64.
func (h *handler) explain(r *http.Request, in Question) (policy.Explanation, error) {
	if name := in.Sandbox.Name; name != "" {
		known, err := h.known(name)
		if err != nil {
			return policy.Explanation{}, err
		}
		in.Sandbox = known // with its own tags, whatever the caller says
	}
	return nameless(r, h.opt.Explain(r.Context(), in.Input, in.Sent)), nil
}

// explainDecision says what the policy makes of a recorded decision.
func (h *handler) explainDecision(r *http.Request, _ none) (recorded.Explanation, error) {
	e, err := h.opt.Recorded(r.Context(), r.PathValue("decision"))
	if e.Explanation = nameless(r, e.Explanation); !PrincipalOf(r.Context()).May(ScopeSecrets) {
		e.Recorded.Credentials = nil
	}
	return e, err
}

// known is the sandbox, or else the user of the explicit proxy, of that name as
// policy sees it.
func (h *handler) known(name string) (policy.Sandbox, error) {
	err := fmt.Errorf("%w: %q: `sallyport client ls` shows the users of the proxy", sandbox.ErrNotFound, name)
	if h.opt.Sandboxes != nil {
		var i sandbox.Info
		if i, err = h.opt.Sandboxes.Get(name); err == nil {
			return policy.Sandbox{Name: i.Name, ID: i.ID, Session: i.Session, Tags: i.Tags()}, nil
		}
	}
	if c, ok := h.client(name); ok {
		return policy.Sandbox{Name: c.Name, ID: c.ID, Tags: c.Tags}, nil
	}
	return policy.Sandbox{}, err
}
