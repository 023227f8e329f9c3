package audit

import (
	"cmp"
	"math"
	"net"
	"strconv"
	"strings"
)

type Endpoint struct {
	Container *Container `json:"container,omitempty"` // that it is, a sandbox
	Hostname  string     `json:"hostname,omitempty"`
	IP        string     `json:"ip,omitempty"`
	MAC       string     `json:"mac,omitempty"`
	Name      string     `json:"name,omitempty"`
	Port      int        `json:"port,omitempty"`
	UID       string     `json:"uid,omitempty"`
}

// Container is a sandbox.
type Container struct {
	Name string `json:"name,omitempty"`
	UID  string `json:"uid,omitempty"`
}

// Sandboxed is the endpoint of a sandbox; ip is empty where it is not known.
func Sandboxed(name, id, ip string) *Endpoint {
	e := &Endpoint{IP: ip}
	if id != "" {
		e.Container = &Container{Name: name, UID: id}
	}
	if ip == "" { // OCSF wants one of some
		e.UID, e.Name = id, name
	}
	return e
}

type Connection struct {
	Direction    int    `json:"direction_id"`            // 1 inbound, 2 outbound, 0 unknown
	ProtocolName string `json:"protocol_name,omitempty"` // tcp, udp, icmp, arp …
	ProtocolNum  int    `json:"protocol_num,omitempty"`
}

type HTTPRequest struct {
	Method  string `json:"http_method,omitempty"` // if OCSF knows it: see SetMethod
	Length  int64  `json:"length,omitempty"`      // bytes of the body as declared
	URL     *URL   `json:"url,omitempty"`
	Version string `json:"version,omitempty"`
}

// URL is without its query: that has keys in Extension and values nowhere.
type URL struct {
	Hostname string `json:"hostname,omitempty"`
	Path     string `json:"path,omitempty"`
	Port     int    `json:"port,omitempty"`
	Scheme   string `json:"scheme,omitempty"`
}

func (u *URL) String() string {
	host := u.Hostname
	switch {
	case u.Port != 0 && u.Port != map[string]int{"https": 443, "http": 80}[u.Scheme]:
		host = net.JoinHostPort(host, strconv.Itoa(u.Port))
	case strings.Contains(host, ":"):
		host = "[" + host + "]"
	}
	if u.Scheme == "" {
		return host + u.Path
	}
	return u.Scheme + "://" + host + u.Path
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

// SetMethod sets the method of an event's request. One that OCSF does not know is in the
// extension.
func (e *Event) SetMethod(method string) {
	if HTTPActivity(method) != ActivityOther {
		e.HTTPRequest.Method = method
		return
	}
	e.Unmapped.Sallyport.Method = method
	if e.ClassUID == ClassHTTP {
		e.ActivityName = cmp.Or(method, "Unknown")
	}
}

// Method is that of an event's request.
func (e *Event) Method() string {
	if e.HTTPRequest != nil && e.HTTPRequest.Method != "" {
		return e.HTTPRequest.Method
	}
	return e.Unmapped.Sallyport.Method
}

// Through says which proxy the gateway went through.
func (e *Event) Through(host string, port int) {
	e.Metadata.with(networkProxy)
	e.Proxy = &Endpoint{Hostname: host, Port: port}
}

// Model is what a request to an LLM API was for.
type Model struct {
	Provider string `json:"ai_provider"` // the host
	Name     string `json:"name"`
}

// MessageContext says how much of a model a request has used.
type MessageContext struct {
	Completion int64   `json:"completion_tokens"`
	Prompt     int64   `json:"prompt_tokens"`
	Service    Service `json:"service"`
	Total      int64   `json:"total_tokens"`
}

type Service struct {
	Name string `json:"name"`
}

// SetTokens says what a request to an LLM API has used, in OCSF's words and in our own,
// which say more. nil is of no effect.
func (e *Event) SetTokens(t *Tokens) {
	e.Unmapped.Sallyport.Tokens = t
	if t == nil {
		return
	}
	host := "unknown"
	if e.Destination != nil {
		host = cmp.Or(e.Destination.Hostname, e.Destination.IP, host)
	}
	e.Metadata.with(aiOperation)
	if t.Model != "" {
		e.Model = &Model{Provider: host, Name: t.Model}
	}
	in, out := max(t.In, 0), max(t.Out, 0)
	e.MessageContext = &MessageContext{
		Completion: few(out), Prompt: few(in), Total: few(few(in) + few(out)), Service: Service{Name: host},
	}
}

// few bounds a count to what OCSF has place for.
func few(n int64) int64 { return min(n, math.MaxInt32) }
