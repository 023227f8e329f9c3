package audit

type Endpoint struct {
	Hostname string `json:"hostname,omitempty"`
	IP       string `json:"ip,omitempty"`
	MAC      string `json:"mac,omitempty"`
	Port     int    `json:"port,omitempty"`
}

type Connection struct {
	Direction    int    `json:"direction_id"`            // 1 inbound, 2 outbound, 0 unknown
	ProtocolName string `json:"protocol_name,omitempty"` // tcp, udp, icmp, arp …
	ProtocolNum  int    `json:"protocol_num,omitempty"`
}

type HTTPRequest struct {
	Method  string `json:"http_method,omitempty"`
	Length  int64  `json:"length,omitempty"` // bytes of the body as declared
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
