package audit

import "slices"

// Class is an OCSF class_uid.
type Class int

// The classes that Sallyport writes.
const (
	ClassFinding   Class = 2004 // Detection Finding: see [Finding]
	ClassEntity    Class = 3004 // Entity Management: sandboxes, their snapshots, and images
	ClassNetwork   Class = 4001 // Network Activity: tunnels, raw connections, datapath drops
	ClassHTTP      Class = 4002 // HTTP Activity: one request
	ClassDNS       Class = 4003 // DNS Activity: a name that was refused
	ClassSSH       Class = 4007 // SSH Activity: an operator's connection to a sandbox, and what it is used for
	ClassLifecycle Class = 6002 // Application Lifecycle: the daemon, and the log itself
	ClassAPI       Class = 6003 // API Activity: what operators administer, approvals, reads of a secret
)

// Action is an OCSF action_id. The zero value is undecided.
type Action int

const (
	ActionUnknown Action = 0
	ActionAllowed Action = 1
	ActionDenied  Action = 2
)

// Disposition is an OCSF disposition_id: what was done about it.
type Disposition int

const (
	DispositionUnknown Disposition = 0
	DispositionAllowed Disposition = 1
	DispositionBlocked Disposition = 2
	DispositionDropped Disposition = 6
	DispositionError   Disposition = 27
)

// Activities (activity_id) of the classes; those of HTTP come from HTTPActivity, and
// those of SSH are the network's.
const (
	NetworkOpen    = 1
	NetworkClose   = 2
	NetworkFail    = 4
	NetworkRefuse  = 5
	NetworkTraffic = 6

	DNSQueried = 1

	LifecycleStart = 3
	LifecycleStop  = 4

	ActivityOther = 99 // of any class
)

// HTTPActivity is the activity of ClassHTTP for a request's method.
func HTTPActivity(method string) int {
	if i := slices.Index(methods[:], method); i >= 0 {
		return i + 1
	}
	return ActivityOther
}

// methods are those that OCSF knows, the activity of each being one more than its index.
var methods = [...]string{
	"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "POST", "PUT", "TRACE", "PATCH",
	"ACL", "BASELINE-CONTROL", "BIND", "CHECKIN", "CHECKOUT", "COPY", "LABEL", "LINK", "LOCK", "MERGE", "MKACTIVITY", "MKCALENDAR",
	"MKCOL", "MKREDIRECTREF", "MKWORKSPACE", "MOVE", "ORDERPATCH", "PRI", "PROPFIND", "PROPPATCH", "QUERY", "REBIND", "REPORT",
	"SEARCH", "UNBIND", "UNCHECKOUT", "UNLINK", "UNLOCK", "UPDATE", "UPDATEREDIRECTREF", "VERSION-CONTROL",
}

// Status is an OCSF status_id.
type Status int

const (
	StatusUnknown Status = 0
	StatusSuccess Status = 1
	StatusFailure Status = 2
)

// Severity is an OCSF severity_id.
type Severity int

const (
	SeverityInformational Severity = 1
	SeverityLow           Severity = 2
	SeverityMedium        Severity = 3
	SeverityHigh          Severity = 4
	SeverityCritical      Severity = 5
)

// Kind is the part that an event has in a request's record.
type Kind string

const (
	KindDecision   Kind = "decision"   // what was decided; durable before anything left
	KindCompletion Kind = "completion" // what became of an allowed decision
	KindConnection Kind = "connection" // bytes of a sandbox about which nothing is decided yet, or was until their connection ended
	KindDrop       Kind = "drop"       // packets that the datapath refused
	KindLifecycle  Kind = "lifecycle"  // a sandbox, the daemon or the policy changed state
	KindFinding    Kind = "finding"    // what another event shows: see [Finding]
)
