package placeholder

import (
	"encoding/base64"
	"net/http"
	"net/url"
	"strings"

	"sallyport/gateway/credential"
	"sallyport/policy"
)

// search notes the placeholders in the head.
func (h *Request) search(r *http.Request, host string) {
	note := func(s spot, names []string) {
		for _, s.credential = range names {
			h.spots = append(h.spots, s)
		}
	}
	if name := h.set.OfName(host); name != "" {
		note(spot{name: "the host's name"}, []string{name})
	}
	note(spot{place: policy.PlacePath}, h.set.Of(r.URL.Path, Raw))
	for part := range queryParts(r.URL.RawQuery) {
		key, value, _ := strings.Cut(part, "=")
		key, err := url.QueryUnescape(key)
		plain, verr := url.QueryUnescape(value)
		_, alone := h.set.Is(plain)
		alone = alone && err == nil && verr == nil && len(h.set.Of(key, Raw)) == 0
		note(spot{
			place: policy.PlaceQuery, name: key, alone: alone, carrier: err != nil || credential.CarriesKey(key),
		}, h.set.Of(part, Form))
	}
	for name, values := range r.Header {
		for _, v := range values {
			names := h.set.Of(v, Form)
			if pair, ok := basic(name, v); ok {
				names = append(names, h.set.Of(pair, Raw)...)
			}
			if len(names) > 0 {
				note(spot{
					place: policy.PlaceHeader, name: name, alone: h.kept(name, v) != "", carrier: carriesHeader(name),
				}, names)
			}
		}
	}
}

// queryParts yields the parameters of a query. Some servers take ; for &.
func queryParts(query string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for query != "" {
			part := query
			if i := strings.IndexAny(query, "&;"); i >= 0 {
				part, query = query[:i], query[i+1:]
			} else {
				query = ""
			}
			if !yield(part) {
				return
			}
		}
	}
}

// basic decodes the credentials of Basic authentication (RFC 7617).
func basic(header, value string) (pair string, ok bool) {
	const scheme = "basic "
	if len(value) < len(scheme) || !strings.EqualFold(value[:len(scheme)], scheme) || !strings.HasSuffix(strings.ToLower(header), "authorization") {
		return "", false
	}
	text, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(strings.TrimSpace(value[len(scheme):]), "="))
	return string(text), err == nil
}
