package form

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"

	"sallyport/policy"
)

// Names holds the sorted names that policy and audit see.
type Names struct {
	Headers, Query []string
}

// NamesOf leaves out what is of this connection alone, and so does not go on.
func NamesOf(r *http.Request) Names {
	upgrade := IsWebSocket(r.Header)
	headers := make([]string, 0, len(r.Header))
	for name := range r.Header {
		name = http.CanonicalHeaderKey(name)
		switch name {
		case "Connection", "Upgrade":
			if !upgrade {
				continue
			}
		case "Keep-Alive", "Proxy-Connection", "Http2-Settings":
			continue
		}
		headers = append(headers, name)
	}
	headers = append(headers, Announced(r)...)
	slices.Sort(headers)
	return Names{Headers: slices.Compact(headers), Query: policy.QueryKeys(r.URL.RawQuery)}
}

// Check refuses fields that change what a request is, and those that cannot come
// after its body.
func (n Names) Check(r *http.Request) *Error {
	for _, h := range n.Headers {
		if policy.Meddles(h) == policy.OtherRequest {
			return &Error{http.StatusForbidden, "override-header", fmt.Sprintf("the header %s can change what the request is after it was decided on", h)}
		}
	}
	if name := unlinked(r); name != "" {
		return &Error{http.StatusBadRequest, "connection", fmt.Sprintf("the Connection header has %.64q taken out at the next hop, after it has been decided about", name)}
	}
	for _, name := range Announced(r) {
		if !AllowedTrailer(name) {
			return &Error{http.StatusBadRequest, "trailer", fmt.Sprintf("the field %.64q cannot come after the body", name)}
		}
	}
	return nil
}

// unlinked is a header that Connection names and that is there, "" for none: it would be
// seen by the policy and not go on. Those of a hop are no such header (RFC 9110, section 7.6.1).
func unlinked(r *http.Request) string {
	for _, header := range []string{"Connection", "Proxy-Connection"} {
		for _, line := range r.Header[header] {
			for name := range strings.SplitSeq(line, ",") {
				name = http.CanonicalHeaderKey(strings.TrimSpace(name))
				if name == "" || slices.Contains(hops, name) {
					continue
				}
				for there := range r.Header {
					if strings.EqualFold(strings.ReplaceAll(there, "_", "-"), strings.ReplaceAll(name, "_", "-")) {
						return name
					}
				}
				if _, there := r.Trailer[name]; there {
					return name
				}
			}
		}
	}
	return ""
}

// hops are the headers of one connection (RFC 9110, section 7.6.1).
var hops = []string{
	"Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "Proxy-Authorization",
	"Te", "Trailer", "Transfer-Encoding", "Upgrade", "Http2-Settings",
}

// DropHops removes what is meant for one connection, and what Connection says
// is. It comes before injection, so that Connection cannot name an injected
// header. A WebSocket handshake keeps its two.
func DropHops(h http.Header, upgrade bool) {
	keep := upgrade && IsWebSocket(h)
	for _, line := range h["Connection"] {
		for name := range strings.SplitSeq(line, ",") {
			if name = http.CanonicalHeaderKey(strings.TrimSpace(name)); name != "" && !(keep && name == "Upgrade") {
				delete(h, name)
			}
		}
	}
	for _, name := range hops {
		delete(h, name)
	}
	if keep {
		h["Connection"], h["Upgrade"] = []string{"Upgrade"}, []string{"websocket"}
	}
}

// IsWebSocket tells whether a header is one half of a handshake (RFC 6455, section 4).
func IsWebSocket(h http.Header) bool {
	if h == nil || len(h["Upgrade"]) == 0 {
		return false
	}
	return HasToken(h["Connection"], "upgrade") && HasToken(h["Upgrade"], "websocket")
}

// HasToken tells whether a list in lines of a header has a token, in any case.
func HasToken(lines []string, token string) bool {
	return slices.ContainsFunc(lines, func(line string) bool {
		for t := range strings.SplitSeq(line, ",") {
			t, _, _ = strings.Cut(t, ";")
			if strings.EqualFold(strings.TrimSpace(t), token) {
				return true
			}
		}
		return false
	})
}

// Announced returns the names of the trailers that a request says will come. Some
// servers merge trailers into the headers, so policy sees both.
func Announced(r *http.Request) []string {
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	names := make([]string, 0, len(r.Trailer))
	for name := range r.Trailer {
		names = append(names, name)
	}
	return names
}

// AllowedTrailer tells whether a field may come after the body: not one that says how to
// read the message, where it goes, or who sends it (RFC 9110, section 6.5.1).
func AllowedTrailer(name string) bool {
	return httpguts.ValidHeaderFieldName(name) && httpguts.ValidTrailerHeader(name) && !slices.Contains(hops, http.CanonicalHeaderKey(name))
}

// Basic reads the name and the secret of Basic credentials (RFC 7617), as an Authorization or
// a Proxy-Authorization has them.
func Basic(header string) (name, secret string, ok bool) {
	scheme, rest, found := strings.Cut(header, " ")
	if !found || !strings.EqualFold(scheme, "Basic") {
		return "", "", false
	}
	plain, err := base64.StdEncoding.DecodeString(strings.TrimSpace(rest))
	if err != nil {
		return "", "", false
	}
	return strings.Cut(string(plain), ":")
}
