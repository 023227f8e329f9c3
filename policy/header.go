package policy

import (
	"slices"
	"strings"
)

// Meddling is what a request's header does to a request that was decided about without
// its value. The zero Meddling is nothing.
//
// Headers are told by the words in their names, since a closed list of names has gaps:
// each proxy and framework has its own. A list of those that may pass would have more: the
// metadata of gRPC and the headers of SDKs have any name.
type Meddling string

const (
	// OtherRequest has some servers act on another method, path or host.
	OtherRequest Meddling = "names another method, path or host"
	// OtherResource names a second resource, which no path of a rule is compared with.
	OtherResource Meddling = "names another resource"
	// OtherUser has the owner of a credential act as another, or tells a server that
	// trusts the proxy before it who asks.
	OtherUser Meddling = "says on whose behalf the request is"
)

// Meddles tells what a header does by its name.
func Meddles(header string) Meddling {
	if usual[header] {
		return ""
	}
	var room [64]byte
	name := room[:0]
	for i := range len(header) {
		switch c := header[i]; {
		case 'A' <= c && c <= 'Z':
			name = append(name, c+'a'-'A')
		case c != '-' && c != '_': // CGI-like servers take the one for the other
			name = append(name, c)
		}
	}
	if slices.ContainsFunc(metadata, func(prefix string) bool { return strings.HasPrefix(string(name), prefix) }) {
		return "" // an object's own
	}
	if m, known := exactly[string(name)]; known {
		return m
	}
	s := string(name)
	for _, before := range []string{"original", "rewrite", "override", "forwarded", "real", "unencoded", "effective"} {
		if _, rest, found := strings.Cut(s, before); found {
			rest = strings.TrimPrefix(strings.TrimPrefix(rest, "request"), "http")
			if slices.ContainsFunc(parts, func(part string) bool { return strings.HasPrefix(rest, part) }) {
				return OtherRequest
			}
		}
	}
	if i := strings.Index(s, "override"); i > 0 && slices.ContainsFunc(parts, func(part string) bool { return strings.HasSuffix(s[:i], part) }) {
		return OtherRequest
	}
	for _, word := range resources {
		if strings.Contains(s, word) {
			return OtherResource
		}
	}
	for _, word := range users {
		if strings.Contains(s, word) {
			return OtherUser
		}
	}
	return ""
}

var (
	parts     = []string{"method", "url", "uri", "path", "host", "prefix", "server", "target", "query", "authority"}
	metadata  = []string{"xamzmeta", "xgoogmeta", "xmsmeta", "xobjectmeta", "xossmeta", "xcosmeta"}
	resources = []string{"copysource", "renamesource", "movesource", "copyfrom", "symlinktarget", "objectmanifest"}
	users     = []string{
		"impersonat", "runas", "remoteuser", "remotegroup", "remoteextra", "remotename", "remoteemail", "webauthuser", "webauthname", "webauthemail", "webauthgroup", "webauthrole",
		"onbehalfof", "actas", "actingas", "assumeuser", "switchuser", "selectuser", "selectadmin", "authrequestuser", "authrequestemail", "authrequestgroups",
		"forwardeduser", "forwardedemail", "forwardedgroups", "forwardedpreferredusername", "forwardedclientcert", "authenticateduser", "authenticatedgroups",
		"clientprincipal", "amznoidc", "sslclient", "clientcert", "consumerusername", "consumerid", "consumercustomid", "tailscaleuser",
	}
	exactly = map[string]Meddling{
		"forwarded": OtherRequest, "xhost": OtherRequest, "xscriptname": OtherRequest, "xhttpmethod": OtherRequest, "xrequesturi": OtherRequest, "requesturi": OtherRequest,
		"destination": OtherResource, "xdestination": OtherResource,
		"sudo": OtherUser, "xsudo": OtherUser, "asuser": OtherUser, "xasuser": OtherUser, "apiusername": OtherUser,
		"xuser": OtherUser, "xuserid": OtherUser, "xusername": OtherUser, "xuseremail": OtherUser, "xuserrole": OtherUser, "xuserroles": OtherUser, "xusergroups": OtherUser,
		"xroles": OtherUser, "xgroups": OtherUser,
	}
	// usual are those of most requests, which need not be looked at.
	usual = map[string]bool{
		"Accept": true, "Accept-Encoding": true, "Accept-Language": true, "Authorization": true, "Cache-Control": true, "Content-Encoding": true, "Content-Length": true,
		"Content-Type": true, "Cookie": true, "Expect": true, "Idempotency-Key": true, "If-Match": true, "If-Modified-Since": true, "If-None-Match": true, "Origin": true,
		"Range": true, "Referer": true, "Te": true, "Traceparent": true, "Tracestate": true, "User-Agent": true, "X-Api-Key": true, "X-Request-Id": true,
	}
)
