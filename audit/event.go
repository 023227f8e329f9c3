// Package audit is the record of everything that sandboxes tried, and its outcome.
//
// An [Event] carries the field names of the Open Cybersecurity Schema Framework
// (OCSF 1.9.0, https://schema.ocsf.io) from the moment it is made, so that the
// log on disk, the SIEM's copy and the command line show the same words. Fields
// that OCSF does not have are under "unmapped.sallyport".
//
// Package auditlog writes events to disk and reads them back.
package audit

import (
	cryptorand "crypto/rand"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
)

// SchemaVersion is the OCSF version whose names and numbers Event uses.
const SchemaVersion = "1.9.0"

// Event is one line of the log. Fields that are nil or zero are left out.
// Secret values are never in an event, and neither are the values of request
// headers or query parameters.
//
// The fields of this and of each struct below it are in the order of their keys,
// so that a line is in the canonical form of RFC 8785 as it is written.
type Event struct {
	Action         Action          `json:"action_id,omitempty"`
	ActivityID     int             `json:"activity_id"`
	ActivityName   string          `json:"activity_name,omitempty"` // of ActivityOther only
	Actor          *Actor          `json:"actor,omitempty"`
	Model          *Model          `json:"ai_model,omitempty"`
	API            *API            `json:"api,omitempty"`
	App            *Product        `json:"app,omitempty"` // of ClassLifecycle only
	CategoryUID    int             `json:"category_uid"`
	ClassUID       Class           `json:"class_uid"`
	Connection     *Connection     `json:"connection_info,omitempty"`
	Count          int             `json:"count,omitempty"` // events folded into this one, when more than one
	Device         *Device         `json:"device,omitempty"`
	Disposition    Disposition     `json:"disposition_id,omitempty"`
	Destination    *Endpoint       `json:"dst_endpoint,omitempty"`
	Duration       int64           `json:"duration,omitempty"` // milliseconds
	Entity         *Entity         `json:"entity,omitempty"`
	Evidences      []Evidence      `json:"evidences,omitempty"`
	FindingInfo    *FindingInfo    `json:"finding_info,omitempty"`
	Rule           *Rule           `json:"firewall_rule,omitempty"`
	HTTPRequest    *HTTPRequest    `json:"http_request,omitempty"`
	HTTPResponse   *HTTPResponse   `json:"http_response,omitempty"`
	IsAlert        bool            `json:"is_alert,omitempty"`
	Message        string          `json:"message,omitempty"` // one line for a person
	MessageContext *MessageContext `json:"message_context,omitempty"`
	Metadata       Metadata        `json:"metadata"`
	Policy         *Policy         `json:"policy,omitempty"`
	Proxy          *Endpoint       `json:"proxy_endpoint,omitempty"` // that the gateway went through
	Query          *DNSQuery       `json:"query,omitempty"`
	Resources      []Resource      `json:"resources,omitempty"`
	SeverityID     Severity        `json:"severity_id"`
	Source         *Endpoint       `json:"src_endpoint,omitempty"`
	StartTime      int64           `json:"start_time,omitempty"`    // milliseconds since the Unix epoch
	Detail         string          `json:"status_detail,omitempty"` // the failing part
	StatusID       Status          `json:"status_id,omitempty"`
	Time           int64           `json:"time"` // milliseconds since the Unix epoch
	TLS            *TLS            `json:"tls,omitempty"`
	Traffic        *Traffic        `json:"traffic,omitempty"`
	TypeUID        int             `json:"type_uid"` // class_uid*100 + activity_id
	Unmapped       Unmapped        `json:"unmapped"`
}

// Metadata identifies the event. UID of a decision is the decision id that the
// sandbox sees in Sallyport-Decision; a completion names it in CorrelationUID.
type Metadata struct {
	CorrelationUID string   `json:"correlation_uid,omitempty"`
	Product        Product  `json:"product"`
	Profiles       []string `json:"profiles,omitempty"` // where action_id, firewall_rule, actor … come from
	Sequence       uint64   `json:"sequence"`           // set by Log, from 1, without gaps
	UID            string   `json:"uid"`
	Version        string   `json:"version"`
}

type Product struct {
	Name       string `json:"name"`
	VendorName string `json:"vendor_name,omitempty"`
	Version    string `json:"version,omitempty"`
}

type Rule struct {
	Name string `json:"name,omitempty"`
	Type string `json:"type,omitempty"` // egress, egressAuth, rego, limit, floor
}

type Policy struct {
	Name    string `json:"name,omitempty"`
	Version string `json:"version,omitempty"` // the policy's revision
}

// Device is the node of Kubernetes where it happened.
type Device struct {
	Hostname string `json:"hostname"`
	TypeID   int    `json:"type_id"`
}

// Actor is the operator behind a lifecycle event, or an SSH connection; or the daemon; or a
// client of the router on a node of Kubernetes.
type Actor struct {
	AppName string `json:"app_name,omitempty"`
	User    User   `json:"user,omitzero"`
}

type User struct {
	Name string `json:"name,omitempty"`
	UID  string `json:"uid,omitempty"`
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
	switch class {
	case ClassEntity, ClassAPI, ClassLifecycle:
		e.Metadata.Profiles = changeProfiles
	case ClassSSH:
		e.Metadata.Profiles = operatorProfiles
	case ClassFinding:
		e.Metadata.Profiles = findingProfiles
	default:
		e.Metadata.Profiles = networkProfiles
	}
	e.Time = time.Now().UnixMilli() // an identifier's time stands still when the clock is set back
	e.CategoryUID = int(class) / 1000
	e.ClassUID = class
	e.ActivityID = activity
	e.TypeUID = int(class)*100 + activity
	e.SeverityID = SeverityInformational
	e.Unmapped.Sallyport.Kind = kind
}

// SetPlace says on which node of which cluster of Kubernetes it happened, "" for none.
func (e *Event) SetPlace(cluster, node string) {
	e.Unmapped.Sallyport.Cluster, e.Unmapped.Sallyport.Node = cluster, node
	if node != "" {
		const server = 1 // of OCSF's kinds of device
		e.Device = &Device{Hostname: node, TypeID: server}
		e.Metadata.with(host)
	}
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

// An OCSF event says which profiles its attributes are from: security_control has
// action_id, disposition_id, firewall_rule, policy and is_alert; host has actor and device; container
// has a sandbox, in its endpoint. An SSH connection is that of an operator, who logs in;
// other traffic is a sandbox's.
var (
	networkProfiles  = []string{container, securityControl}
	operatorProfiles = []string{container, host, securityControl}
	changeProfiles   = []string{host, securityControl}
	findingProfiles  = []string{securityControl}
)

// By says which client, of those that the configuration names, has asked.
func (e *Event) By(client string) {
	e.Actor = &Actor{User: User{Name: client}}
	e.Metadata.with("host")
}

// with adds a profile to those of an event.
func (m *Metadata) with(profile string) {
	if !slices.Contains(m.Profiles, profile) { // which events share
		m.Profiles = slices.Sorted(slices.Values(append(slices.Clone(m.Profiles), profile)))
	}
}

const (
	aiOperation     = "ai_operation"
	container       = "container"
	host            = "host"
	networkProxy    = "network_proxy"
	securityControl = "security_control"
)

// product writes the events.
const product = "Sallyport"

var own = Product{Name: product, VendorName: product}

// ID is the event's identifier; for a decision, the decision id.
func (e *Event) ID() string { return e.Metadata.UID }
