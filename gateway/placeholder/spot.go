package placeholder

import (
	"net/http"
	"slices"
	"strconv"
	"strings"

	"sallyport/gateway/credential"
	"sallyport/policy"
)

// spot is a placeholder in the head of a request.
type spot struct {
	credential string
	place      string // of policy.PlaceholderPlaces, or "" for none of them
	name       string // of the header, or of the query key
	carrier    bool   // credentials travel there, and are removed
	alone      bool   // with nothing besides it but the name of a scheme
}

func (s spot) String() string {
	switch s.place {
	case policy.PlaceHeader:
		return "header " + s.name
	case policy.PlaceQuery:
		return "query parameter " + policy.Clean(s.name)
	case policy.PlacePath:
		return "the path"
	}
	return s.name
}

// entry is what a rule lists to have a placeholder replaced there.
func (s spot) entry() string {
	if s.carrier || s.name == "" || s.place == "" {
		return s.place
	}
	return strconv.Quote(s.place + ":" + policy.Clean(s.name))
}

// listed tells whether a rule lists a place: a header or a query parameter, which have
// names, by its name, or for all of those that credentials travel in.
func listed(places []string, place, name string) bool {
	switch {
	case place == policy.PlaceHeader && !carriesHeader(name), place == policy.PlaceQuery && !credential.CarriesKey(name):
	case slices.Contains(places, place):
		return true
	}
	return slices.ContainsFunc(places, func(p string) bool {
		kind, named, ok := strings.Cut(p, ":")
		return ok && kind == place && (named == name || place == policy.PlaceHeader && strings.EqualFold(named, name))
	})
}

// carriesHeader tells whether credentials travel in a header.
func carriesHeader(name string) bool {
	return credential.CarriesHeader(name) || name == socketProtocol
}

// allowed tells whether a decision replaces a placeholder where it stands, or removes it
// there and puts the credential into its own place.
func (s spot) allowed(d policy.Decision) bool {
	for _, i := range d.Inject {
		if i.Credential != s.credential {
			continue
		}
		if i.Inject.Placeholder != nil {
			return listed(i.Inject.Placeholder, s.place, s.name) && (s.alone || !s.carrier)
		}
		return s.place != "" && (s.carrier || i.Inject.Place() == s.place+" "+http.CanonicalHeaderKey(s.name) || i.Inject.Place() == "query parameter "+s.name)
	}
	return false
}

// Fills reports whether what the request has where a credential goes is the credential's
// placeholder.
func (h *Request) Fills(i policy.Injection, r *http.Request) bool {
	return h != nil && slices.ContainsFunc(h.spots, func(s spot) bool {
		if s.credential != i.Credential {
			return false
		}
		inHeader := s.place == policy.PlaceHeader && i.Inject.Place() == "header "+s.name && len(r.Header[s.name]) == 1
		return inHeader && (s.alone || h.written(i.Inject, s.name, r.Header[s.name][0])) || s.alone && i.Inject.Place() == "query parameter "+s.name
	})
}

// written tells whether a header is what a rule writes, with a placeholder in the secret's
// place.
func (h *Request) written(i policy.Inject, name, value string) bool {
	if i.Basic != nil {
		pair, ok := basic(name, value)
		return ok && h.inPair(pair, []string{i.Basic.Username, i.Basic.Password})
	}
	if i.Header == nil {
		return false
	}
	before, rest, _ := strings.Cut(i.Header.Value, "{{")
	after := rest
	if end := strings.LastIndex(rest, "}}"); end >= 0 {
		after = rest[end+len("}}"):]
	}
	text, begins := strings.CutPrefix(value, before)
	text, ends := strings.CutSuffix(text, after)
	_, is := h.set.Is(text)
	return begins && ends && is
}
