package workerapi

import (
	"net/netip"
	"time"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/gateway/access"
	"sallyport/gateway/placeholder"
	"sallyport/policy"
	"sallyport/policy/limit"
)

// StartRequest is everything that a worker needs before it can serve. The answer
// is its jail.State.
type StartRequest struct {
	Files       []string // names, in the order of the descriptors
	Certificate []byte   // PEM, of the explicit proxy; none: plain
	Key         []byte   // PEM
	Policy      string   // revision
	Next        uint64   // number of the next event
	Size        int64    // of FileLog, in bytes
	SegmentSize int64    // bytes
	Cluster     string   // of each event, likewise Node
	Node        string
	Found       int64 // see gateway.Options
	Level       int   // of slog
}

// Tables are the worker's copies of the daemon's tables, or changes of them. The
// worker gets all of each with MethodServe, before it accepts the first connection,
// and changes with MethodTables.
type Tables struct {
	Sandboxes map[netip.Addr]*policy.Sandbox // by address; nil: no sandbox has it any more; others are unchanged
	Clients   []access.Client                // of the explicit proxy, all of them; nil: unchanged
	Published []access.Port                  // ports, all of them; nil: unchanged
	// Placeholders are what sandboxes may hold, by the sandbox's ID; an empty list removes
	// a sandbox's; others are unchanged.
	Placeholders map[string][]placeholder.Held
	Held         *string // why no request may leave, "" if it may; nil: unchanged
	Router       *Router // nil: unchanged
}

// Router is what the listener of a router's clients works with.
type Router struct {
	Certificate, Key []byte // PEM
	Clients          []access.RouterClient
}

// PolicyRequest names the revision to prepare or to use.
type PolicyRequest struct{ Policy string }

// ForgetRequest drops what the worker keeps for a sandbox or a client.
type ForgetRequest struct{ ID string }

// StopRequest has the worker finish its requests within a time, and end.
type StopRequest struct{ Within time.Duration }

// StopReply is the worker's last word. Late tells that requests were broken off.
type StopReply struct {
	Log  auditlog.Stats
	Late bool
}

// AppendRequest appends events to the audit log: all of them or none.
type AppendRequest struct{ Events []*audit.Event }

// GatherReply is the worker's metrics in Prometheus's text format.
type GatherReply struct{ Text string }

// Effects of a SuspendRequest on a sandbox's connections.
const (
	SuspendFreeze = "sleep" // hold them
	SuspendThaw   = "wake"  // let them go on
	SuspendReset  = "end"   // reset them
)

// SuspendRequest says what becomes of the connections of the sandbox at an
// address.
type SuspendRequest struct {
	Address netip.Addr
	To      string // SuspendFreeze, SuspendThaw or SuspendReset
}

// LeaseRequest asks for a credential for one destination.
type LeaseRequest struct {
	Credential string
	Host       string
	Port       uint16
	Verified   bool
	Sandbox    string `json:",omitempty"` // ID, where each has a secret of its own
	Policy     string
	Have       []byte `json:",omitempty"` // mark of the material that the worker has
	Refused    string `json:",omitempty"` // version that the destination did not take
}

// LeaseReply permits a number of uses within a time; if that is 0, by requests that came
// before the worker asked. Fields is nil where the worker has the material already.
type LeaseReply struct {
	Mark     []byte
	Uses     int
	For      time.Duration
	Cached   bool              `json:",omitempty"` // the source may have another one by now
	Version  string            `json:",omitempty"`
	Accessor string            `json:",omitempty"`
	Fields   map[string]string `json:",omitempty"`
	Expires  time.Time         `json:",omitzero"`
	Ends     time.Time         `json:",omitzero"`
}

// LoginRequest asks for the login at an upstream proxy.
type LoginRequest struct{ Credential, Proxy string }

// LoginReply is that login.
type LoginReply struct{ Username, Password string }

// SignRequest asks for a certificate for a name that is shown to one sandbox.
type SignRequest struct {
	Sandbox, Name string
	Public        []byte // uncompressed point on P-256 (SEC 1, 2.3.3)
}

// SignReply is the chain in DER, the leaf first, without the root.
type SignReply struct{ Chain [][]byte }

// CertifyRequest asks for a certificate of OpenSSH for a host that is shown to one sandbox.
type CertifyRequest struct {
	Sandbox, Name string
	Public        []byte // in the form of RFC 4253, section 6.6
}

// CertifyReply is the certificate, in that form.
type CertifyReply struct{ Certificate []byte }

// NameRequest asks for the synthetic address of a name, or for the name of an
// address.
type NameRequest struct {
	Sandbox string
	Name    string     `json:",omitempty"`
	Address netip.Addr `json:",omitzero"`
}

// NameReply answers either.
type NameReply struct {
	Name    string     `json:",omitempty"`
	Address netip.Addr `json:",omitzero"`
	Known   bool       `json:",omitempty"`
}

// LocalReply lists this host's addresses and the sandboxes' networks.
type LocalReply struct{ Prefixes []netip.Prefix }

// SegmentRequest asks for a new file of the audit log that begins with an event.
type SegmentRequest struct{ First uint64 }

// SandboxRequest names a sandbox that has a published port, by its ID.
type SandboxRequest struct{ ID string }

// PortRequest names a published port of a sandbox.
type PortRequest struct {
	ID   string
	Port uint16
}

// IdentifyReply is the sandbox that a SandboxRequest names.
type IdentifyReply struct{ Sandbox policy.Sandbox }

// WakeReply is that sandbox, running, and its address.
type WakeReply struct {
	Sandbox policy.Sandbox
	Address netip.Addr
}

// CountsRequest asks for the counters of limits that have changed.
type CountsRequest struct {
	Since uint64 // the last reply's Stamp
	Most  int
}

// CountsReply has some of them. Everything that was recorded up to the event at
// Position has been counted.
type CountsReply struct {
	Position uint64
	Stamp    uint64
	Counts   []limit.Count
}

// RestoreRequest gives a new worker counters to begin with.
type RestoreRequest struct{ Counts []limit.Count }

// ResetRequest empties the counters of a limit, of one subject or of all
// (limit.Every).
type ResetRequest struct{ Limit, Subject string }

// WithdrawRequest takes back a question to an operator.
type WithdrawRequest struct{ Sandbox, ID string }

// AnsweredRequest tells that the worker should ask about a request again.
type AnsweredRequest struct{ ID string }
