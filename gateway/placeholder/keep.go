package placeholder

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"sallyport/gateway/credential"
	"sallyport/policy"
)

// Kept are the parts of a head that are kept although credentials travel in them.
type Kept struct {
	header http.Header
	query  []string
}

// Clone returns a copy.
func (k Kept) Clone() Kept { return Kept{k.header.Clone(), slices.Clone(k.query)} }

// Keep returns what stays of a head when the sandbox's own credentials are removed: the
// placeholders that a decision replaces where they stand.
func (h *Request) Keep(r *http.Request, d policy.Decision) (k Kept) {
	if h == nil {
		return k
	}
	for _, s := range h.spots {
		replaces := slices.ContainsFunc(d.Inject, func(i policy.Injection) bool {
			return i.Credential == s.credential && listed(i.Inject.Placeholder, s.place, s.name)
		})
		if !s.carrier || !s.alone || !replaces {
			continue
		}
		switch s.place {
		case policy.PlaceHeader:
			if k.header == nil {
				k.header = make(http.Header)
			}
			if k.header[s.name] != nil { // of another spot in it
				continue
			}
			for _, v := range r.Header[s.name] {
				if v = h.kept(s.name, v); v != "" && !slices.Contains(k.header[s.name], v) {
					k.header[s.name] = append(k.header[s.name], v)
				}
			}
		case policy.PlaceQuery:
			for part := range queryParts(r.URL.RawQuery) {
				key, _, _ := strings.Cut(part, "=")
				if name, err := url.QueryUnescape(key); err == nil && name == s.name && len(h.set.Of(part, Form)) > 0 && !slices.Contains(k.query, part) {
					k.query = append(k.query, part)
				}
			}
		}
	}
	return k
}

// socketProtocol is the header in which browsers have to put credentials of a WebSocket.
const socketProtocol = "Sec-Websocket-Protocol"

// fillers are what clients of Basic authentication write beside a key where the service
// reads nothing else.
var fillers = []string{
	"", "x-access-token", "oauth2", "git", "api", "x-oauth-basic", "x", "token", "__token__", "x-token-auth", "oauth2accesstoken",
}

// schemes are those of Authorization that have a key behind them, in lower case (RFC 9110,
// section 11.4, and what services make of it).
var schemes = []string{
	"bearer", "basic", "token", "key", "apikey", "api-key", "apitoken", "api-token", "x-api-key", "oauth", "jwt", "bot", "ssws", "geniekey",
	"googlelogin", "snowflake", "splunk", "discogs", "klaviyo-api-key", "deepl-auth-key", "zoho-oauthtoken",
}

// kept is what stays of a header in which credentials travel: the placeholder, and what
// says how it is to be read. An account of the sandbox's own beside it would be a way out,
// and some servers take a key for a user or a password, whatever the other of them is: so
// only well-known texts may stand there.
func (h *Request) kept(header, value string) string {
	switch header {
	case "Cookie":
		return h.keptOf(value, ";", "; ", func(pair string) string {
			_, v, _ := strings.Cut(pair, "=")
			return v
		})
	case socketProtocol:
		return h.keptOf(value, ",", ", ", func(token string) string { return token[strings.LastIndexByte(token, '.')+1:] })
	}
	if pair, ok := basic(header, value); ok {
		if h.inPair(pair, fillers) {
			return value
		}
		return ""
	}
	text := value
	if scheme, rest, ok := strings.Cut(text, " "); ok && slices.Contains(schemes, strings.ToLower(scheme)) {
		text = strings.TrimSpace(rest)
	}
	if name, rest, ok := strings.Cut(text, "="); ok && credential.CarriesKey(name) {
		text = rest
	}
	if _, is := h.set.Is(strings.Trim(text, `"`)); is {
		return value
	}
	return ""
}

// inPair tells whether a user and a password are a placeholder, and one of some texts
// besides. A placeholder may have colons.
func (h *Request) inPair(pair string, beside []string) bool {
	for i := range len(pair) + 1 {
		if i < len(pair) && pair[i] != ':' {
			continue
		}
		user, password := pair[:i], strings.TrimPrefix(pair[i:], ":")
		_, isUser := h.set.Is(user)
		_, isPassword := h.set.Is(password)
		if isUser && isPassword || isUser && slices.Contains(beside, password) || isPassword && slices.Contains(beside, user) {
			return true
		}
	}
	return false
}

// keptOf is what stays of a list: the elements that are a placeholder.
func (h *Request) keptOf(list, sep, join string, of func(string) string) string {
	var kept []string
	for part := range strings.SplitSeq(list, sep) {
		part = strings.TrimSpace(part)
		if _, is := h.set.Is(of(part)); is {
			kept = append(kept, part)
		}
	}
	return strings.Join(kept, join)
}
