// Package audit is the record of everything that sandboxes tried, and its outcome.
//
// An [Event] carries the field names of the Open Cybersecurity Schema Framework
// (OCSF 1.5.0, https://schema.ocsf.io) from the moment it is made, so that the
// log on disk, the SIEM's copy and the command line show the same words. Fields
// that OCSF does not have are under "unmapped.sallyport".
//
// The [Log] promises that when Append returns nil the events are on stable
// storage, in order, and will be read back by any later process; when it
// returns an error none of them may be acted on. It does not protect from root
// on the host.
package audit

import (
	cryptorand "crypto/rand"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"
)

// SchemaVersion is the OCSF version whose names and numbers Event uses.
const SchemaVersion = "1.5.0"

// Class is an OCSF class_uid.
type Class int

// The classes that Sallyport writes.
const (
	ClassNetwork   Class = 4001 // Network Activity: tunnels, raw connections, datapath drops
	ClassHTTP      Class = 4002 // HTTP Activity: one request
	ClassDNS       Class = 4003 // DNS Activity: a name that was refused
	ClassSSH       Class = 4007 // SSH Activity: an operator's connection to a sandbox, and what it is used for
	ClassLifecycle Class = 6002 // Application Lifecycle: daemon, sandbox, policy, secret
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
	NetworkOpen   = 1
	NetworkClose  = 2
	NetworkFail   = 4
	NetworkRefuse = 5

	DNSQueried = 1

	LifecycleInstall = 1 // made
	LifecycleRemove  = 2
	LifecycleStart   = 3
	LifecycleStop    = 4
	LifecycleUpdate  = 8

	ActivityOther = 99 // of any class
)

// HTTPActivity is the activity of ClassHTTP for a request's method.
func HTTPActivity(method string) int {
	switch method {
	case "CONNECT":
		return 1
	case "DELETE":
		return 2
	case "GET":
		return 3
	case "HEAD":
		return 4
	case "OPTIONS":
		return 5
	case "POST":
		return 6
	case "PUT":
		return 7
	case "TRACE":
		return 8
	}
	return ActivityOther
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
	KindDrop       Kind = "drop"       // packets that the datapath refused
	KindLifecycle  Kind = "lifecycle"  // a sandbox, the daemon or the policy changed state
)

// Event is one line of the log. Fields that are nil or zero are left out.
// Secret values are never in an event, and neither are the values of request
// headers or query parameters.
type Event struct {
	Metadata    Metadata    `json:"metadata"`
	Time        int64       `json:"time"` // milliseconds since the Unix epoch
	CategoryUID int         `json:"category_uid"`
	ClassUID    Class       `json:"class_uid"`
	ActivityID  int         `json:"activity_id"`
	TypeUID     int         `json:"type_uid"` // class_uid*100 + activity_id
	SeverityID  Severity    `json:"severity_id"`
	StatusID    Status      `json:"status_id,omitempty"`
	Action      Action      `json:"action_id,omitempty"`
	Disposition Disposition `json:"disposition_id,omitempty"`
	// Message is one line for a person; Detail names the failing part.
	Message string `json:"message,omitempty"`
	Detail  string `json:"status_detail,omitempty"`

	Source       *Endpoint     `json:"src_endpoint,omitempty"`
	Destination  *Endpoint     `json:"dst_endpoint,omitempty"`
	Connection   *Connection   `json:"connection_info,omitempty"`
	HTTPRequest  *HTTPRequest  `json:"http_request,omitempty"`
	HTTPResponse *HTTPResponse `json:"http_response,omitempty"`
	Query        *DNSQuery     `json:"query,omitempty"`
	TLS          *TLS          `json:"tls,omitempty"`
	Traffic      *Traffic      `json:"traffic,omitempty"`
	Rule         *Rule         `json:"firewall_rule,omitempty"`
	Policy       *Policy       `json:"policy,omitempty"`
	Actor        *Actor        `json:"actor,omitempty"`
	App          *Product      `json:"app,omitempty"`        // lifecycle only
	Duration     int64         `json:"duration,omitempty"`   // milliseconds
	Count        int           `json:"count,omitempty"`      // events folded into this one, when more than one
	StartTime    int64         `json:"start_time,omitempty"` // milliseconds since the Unix epoch

	Unmapped Unmapped `json:"unmapped"`
}

// Metadata identifies the event. UID of a decision is the decision id that the
// sandbox sees in Sallyport-Decision; a completion names it in CorrelationUID.
type Metadata struct {
	Version        string   `json:"version"`
	Profiles       []string `json:"profiles,omitempty"` // where action_id, firewall_rule, actor … come from
	Product        Product  `json:"product"`
	UID            string   `json:"uid"`
	Sequence       uint64   `json:"sequence"` // set by Log, from 1, without gaps
	CorrelationUID string   `json:"correlation_uid,omitempty"`
}

type Product struct {
	Name       string `json:"name"`
	VendorName string `json:"vendor_name,omitempty"`
	Version    string `json:"version,omitempty"`
}

type Endpoint struct {
	Hostname string `json:"hostname,omitempty"`
	IP       string `json:"ip,omitempty"`
	Port     int    `json:"port,omitempty"`
	MAC      string `json:"mac,omitempty"`
}

type Connection struct {
	ProtocolName string `json:"protocol_name,omitempty"` // tcp, udp, icmp, arp …
	ProtocolNum  int    `json:"protocol_num,omitempty"`
	Direction    int    `json:"direction_id"` // 1 inbound, 2 outbound, 0 unknown
}

type HTTPRequest struct {
	Method  string `json:"http_method,omitempty"`
	Version string `json:"version,omitempty"`
	URL     *URL   `json:"url,omitempty"`
	Length  int64  `json:"length,omitempty"` // bytes of the body as declared
}

// URL is without its query: that has keys in Extension and values nowhere.
type URL struct {
	Scheme   string `json:"scheme,omitempty"`
	Hostname string `json:"hostname,omitempty"`
	Port     int    `json:"port,omitempty"`
	Path     string `json:"path,omitempty"`
}

type HTTPResponse struct {
	Code   int   `json:"code"`
	Length int64 `json:"length,omitempty"`
}

type DNSQuery struct {
	Hostname string `json:"hostname"`
	Type     string `json:"type,omitempty"` // A, AAAA …
}

type TLS struct {
	SNI     string `json:"sni,omitempty"`
	Version string `json:"version"` // 1.2, 1.3; "" when none was agreed
}

// Traffic counts bytes as the sandbox sees them: out is what it sent.
type Traffic struct {
	BytesIn  int64 `json:"bytes_in"`
	BytesOut int64 `json:"bytes_out"`
	Packets  int64 `json:"packets,omitempty"`
}

type Rule struct {
	Name string `json:"name,omitempty"`
	Type string `json:"type,omitempty"` // egress, egressAuth, rego, limit, floor
}

type Policy struct {
	Name    string `json:"name,omitempty"`
	Version string `json:"version,omitempty"` // the policy's revision
}

// Actor is the operator behind a lifecycle event, or an SSH connection.
type Actor struct {
	User struct {
		Name string `json:"name,omitempty"`
		UID  string `json:"uid,omitempty"`
	} `json:"user"`
}

// Unmapped is OCSF's place for other fields.
type Unmapped struct {
	Sallyport Extension `json:"sallyport"`
}

// Extension is what Sallyport adds to OCSF.
type Extension struct {
	Kind        Kind              `json:"kind"`
	Sandbox     string            `json:"sandbox,omitempty"` // name
	SandboxID   string            `json:"sandbox_id,omitempty"`
	Session     string            `json:"session,omitempty"`
	Tags        map[string]string `json:"tags,omitempty"`
	Phase       string            `json:"phase,omitempty"`             // connect, request, dns, inbound, ssh
	Decision    string            `json:"decision,omitempty"`          // allow, deny, tunnel, approve
	Credentials []CredentialUse   `json:"credentials,omitempty"`       // what was injected
	Found       []CredentialUse   `json:"found_credentials,omitempty"` // what the response held and was overwritten
	Reason      string            `json:"reason,omitempty"`
	State       string            `json:"state,omitempty"`        // lifecycle: created, started, stopped, removed …
	HeaderNames []string          `json:"header_names,omitempty"` // of the request, sorted; OCSF's http_headers wants values too
	QueryKeys   []string          `json:"query_keys,omitempty"`   // of the request's URL
	Protocol    string            `json:"protocol,omitempty"`     // tls, http, other; of SSH ssh, shell, sftp, forward: what a connection was found to carry; a request's scheme says it
	Unsized     bool              `json:"size_unknown,omitempty"` // the request did not say how long its body is; without it the length, or 0, was declared
	Clipped     []string          `json:"clipped,omitempty"`      // fields here that hold less than was decided on: path, method, header_names, query_keys
	Observed    *Observed         `json:"observed,omitempty"`     // what observe mode has lifted
	Limits      []LimitUse        `json:"limits,omitempty"`       // what bounds it; of a lifecycle event: what was reset
	Approval    *Approval         `json:"approval,omitempty"`     // by which an allowed request was, or that a lifecycle event is about
	Tokens      *Tokens           `json:"tokens,omitempty"`       // of a completion that a limit of tokens or cost is about
	Owner       string            `json:"owner,omitempty"`        // the tenant whose sandbox it is
}

// Tokens is what a request to an LLM API has used, as its answer reports it. OCSF
// has no attributes for it.
type Tokens struct {
	Model      string `json:"model,omitempty"`
	In         int64  `json:"in"` // with Cached and CacheWrite in it
	Out        int64  `json:"out"`
	Cached     int64  `json:"cached,omitempty"`
	CacheWrite int64  `json:"cache_write,omitempty"`
	Cost       string `json:"cost,omitempty"` // decimal, in the currency of the prices; without one nothing is said
	// Estimated reports that a part was not reported and is an upper estimate.
	Estimated bool `json:"estimated,omitempty"`
}

// Observed is the decision that there would be without observe mode.
type Observed struct {
	Decision string `json:"decision"`
	Rule     string `json:"rule,omitempty"`
	RuleType string `json:"rule_type,omitempty"`
	Reason   string `json:"reason,omitempty"`
}

// LimitUse names a limit and the subject of its counter.
type LimitUse struct {
	Name    string `json:"name"`
	Subject string `json:"subject"`
	Period  int64  `json:"period,omitempty"` // milliseconds, where it counts over one
	Uses    int64  `json:"uses,omitempty"`   // of credentials
}

// Approval is a question to an operator, or the answer.
type Approval struct {
	ID       string `json:"id"`
	Operator string `json:"operator,omitempty"`
	UID      string `json:"uid,omitempty"`
	Login    string `json:"login,omitempty"`  // who logged in, where the operator is whom they became since
	Span     string `json:"span,omitempty"`   // once, session, period
	By       string `json:"by,omitempty"`     // the approval that covers this one too
	Method   string `json:"method,omitempty"` // of a longer one, * is any
	Path     string `json:"path,omitempty"`   // likewise, a glob
	Count    int    `json:"count,omitempty"`  // uses, of a longer one
	Until    int64  `json:"until,omitempty"`  // milliseconds since the Unix epoch: when the question, or the answer, ends
	Query    string `json:"query_sha256,omitempty"`
	Body     string `json:"body_sha256,omitempty"`
}

// CredentialUse names a credential and the version of the secret behind it.
type CredentialUse struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
}

// New returns an event of the class and activity with its identifiers, time and
// category set. Its UID is a UUIDv7, so that identifiers sort by time.
func New(kind Kind, class Class, activity int) *Event {
	e := new(Event)
	e.begin(kind, class, activity)
	return e
}

// begin sets what New promises in an event that is zero.
func (e *Event) begin(kind Kind, class Class, activity int) {
	e.Metadata.UID = uuid.Must(uuid.NewV7FromReader(&random)).String()
	e.Metadata.Version, e.Metadata.Product = SchemaVersion, own
	e.Metadata.Profiles = networkProfiles
	if class == ClassLifecycle || class == ClassSSH {
		e.Metadata.Profiles = lifecycleProfiles
	}
	e.Time = time.Now().UnixMilli() // an identifier's time stands still when the clock is set back
	e.CategoryUID = int(class) / 1000
	e.ClassUID = class
	e.ActivityID = activity
	e.TypeUID = int(class)*100 + activity
	e.SeverityID = SeverityInformational
	e.Unmapped.Sallyport.Kind = kind
}

// random gives identifiers what cannot be guessed of them. The kernel's
// randomness seeds it: asked for each event, that costs a system call before
// Linux 6.11.
var random generator

// generator is a ChaCha8 for many goroutines.
type generator struct {
	mu     sync.Mutex
	cipher *rand.ChaCha8
}

func (g *generator) Read(b []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.cipher == nil {
		var seed [32]byte
		cryptorand.Read(seed[:]) // never fails
		g.cipher = rand.NewChaCha8(seed)
	}
	return g.cipher.Read(b)
}

// An OCSF event says which profiles its attributes are from: security_control
// has action_id, disposition_id, firewall_rule and policy; host has actor. That of
// SSH is an operator, who logs in; other traffic is a sandbox's.
var (
	networkProfiles   = []string{securityControl}
	lifecycleProfiles = []string{"host", securityControl}
)

const securityControl = "security_control"

// What writes the events.
const product = "Sallyport"

var own = Product{Name: product, VendorName: product}

// ID is the event's identifier; for a decision, the decision id.
func (e *Event) ID() string { return e.Metadata.UID }
