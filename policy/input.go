package policy

import (
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// String is host:port, or the host alone where there is no port.
func (d Destination) String() string {
	switch {
	case d.Port == 0:
		return d.Host
	case strings.Contains(d.Host, ":"):
		return "[" + d.Host + "]:" + strconv.Itoa(int(d.Port))
	}
	return d.Host + ":" + strconv.Itoa(int(d.Port))
}

// TagFork is the tag of a sandbox that is a fork of another, whatever its value.
// Users can give none that begins so.
const TagFork = "sallyport.fork"

// TagLineage is the tag of a fork with the ID of the sandbox that its lineage began
// with.
const TagLineage = "sallyport.lineage"

// Phase is the moment of a decision.
type Phase string

const (
	PhaseDNS     Phase = "dns"     // could any rule allow this name?
	PhaseConnect Phase = "connect" // may this connection be opened, and read?
	PhaseRequest Phase = "request" // may this request go, and with what?
	PhaseInbound Phase = "inbound" // may this request reach the sandbox? See [ExposeRule].
	PhaseSSH     Phase = "ssh"     // may this be done over SSH? See [ExposeRule.SSH].
)

// Protocol is what the first bytes of a connection look like.
type Protocol string

const (
	ProtocolTLS   Protocol = "tls"
	ProtocolHTTP  Protocol = "http"
	ProtocolOther Protocol = "other"

	// Kinds of other that the gateway can log in to a server with: see [Protocol.IsOther].
	ProtocolSSH      Protocol = "ssh"
	ProtocolPostgres Protocol = "postgres"
	ProtocolRedis    Protocol = "redis"

	// Those of PhaseSSH: what is asked for.
	ProtocolShell   Protocol = "shell"   // a shell or a command
	ProtocolSFTP    Protocol = "sftp"    // the sandbox's files
	ProtocolForward Protocol = "forward" // a connection to a port of the sandbox
)

// IsOther tells whether p is neither TLS nor HTTP: other, or a kind of it. A rule that
// carries or denies other does so with each of its kinds, and Rego sees other in PhaseConnect.
func (p Protocol) IsOther() bool { return p == ProtocolOther || p.IsLogin() }

// IsLogin tells whether the gateway can log in to servers of the protocol with a credential.
func (p Protocol) IsLogin() bool {
	return p == ProtocolSSH || p == ProtocolPostgres || p == ProtocolRedis
}

// Input is what a decision is made on, the document `input` in Rego. Secret
// values, header values and query values are never in it.
type Input struct {
	Phase       Phase
	Sandbox     Sandbox
	Destination Destination
	Protocol    Protocol
	// Request is set in PhaseRequest and PhaseInbound only.
	Request *Request
}

// Sandbox is who asks, or, in PhaseInbound and PhaseSSH, who is asked.
type Sandbox struct {
	Name    string
	ID      string
	Session string
	Tags    map[string]string
	// Owner is the tenant, or empty. Policy does not see it: what is shared is divided
	// by it.
	Owner string `json:",omitempty"`
}

// Destination is where to. Host is a lower-case name without trailing dot, or
// the text of an IP address when the sandbox dialled a bare one. In PhaseInbound
// and PhaseSSH it is the sandbox's name, and Port the one that listens inside; for
// what is no forwarded connection, 22.
type Destination struct {
	Host string
	Port uint16
}

// Request is one HTTP request, normalised, or one that is made over a protocol that the
// gateway logs in by: over SSH a channel's, with one of [SSHMethods].
type Request struct {
	Method    string
	Scheme    string // https or http, or the name of such a protocol
	Path      string // as urlpath.Normalize returns it, of perhaps several readings; anything else is denied
	QueryKeys []string
	Headers   []string // canonical names
	Size      int64    // Content-Length, -1 when unknown
	Body      *Body    `json:"-"` // what ReadBody made of it, where there is a Need; else nil
}

// QueryKeys returns the decoded keys of a query, sorted and without repeats.
// Servers differ on whether a semicolon separates, so it does here too: policy
// sees every key that any of them could. It is [Request.QueryKeys] of the query as
// it stands on the wire.
func QueryKeys(raw string) []string {
	if raw == "" {
		return nil
	}
	var keys []string
	for pair := range strings.FieldsFuncSeq(raw, func(c rune) bool { return c == '&' || c == ';' }) {
		key, _, _ := strings.Cut(pair, "=")
		if decoded, err := url.QueryUnescape(key); err == nil {
			key = decoded
		}
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}
