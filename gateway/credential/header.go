package credential

import (
	"fmt"
	"net/http"

	"golang.org/x/net/http/httpguts"

	"sallyport/policy"
)

// headerKind gives a credential in a header of the request, which is also a call's
// metadata in gRPC.
type headerKind policy.HeaderInject

func (k headerKind) compose(fields map[string]Secret) (*composed, error) {
	name := http.CanonicalHeaderKey(k.Name)
	if !httpguts.ValidHeaderFieldName(name) || framing[fold(name)] || hopByHop[fold(name)] && fold(name) != "proxy-authorization" {
		return nil, fmt.Errorf("inject.header.name %q is not a header that a credential can be put in", k.Name)
	}
	value, used, err := execute(k.Value, fields)
	if err != nil {
		return nil, fmt.Errorf("inject.header.value: %w", err)
	}
	if err := headerSafe(value); err != nil {
		return nil, err
	}
	sent := NewSecret(value)
	return constant(func(r *http.Request) { setHeader(r, name, sent.Reveal()) }, sent).keeps(used, fields), nil
}

func (k headerKind) own(r *http.Request) bool { return hasHeader(r, k.Name) }

// bearerKind is the kind of a rule without inject: a bearer token (RFC 6750).
type bearerKind struct{}

func (bearerKind) compose(fields map[string]Secret) (*composed, error) {
	field := "token"
	if len(fields) == 1 {
		for name := range fields {
			field = name
		}
	}
	token, ok := fields[field]
	if !ok || token.Reveal() == "" {
		return nil, fmt.Errorf("%w for a bearer header: it has %d fields and none is named token; say which with inject", ErrNoSecret, len(fields))
	}
	if err := headerSafe(token.Reveal()); err != nil {
		return nil, err
	}
	value := NewSecret("Bearer " + token.Reveal())
	c := constant(func(r *http.Request) { setHeader(r, "Authorization", value.Reveal()) })
	c.length = len(value.text)
	return c.keeps([]string{field}, fields), nil
}

func (bearerKind) own(r *http.Request) bool { return hasHeader(r, "Authorization") }

// setHeader sets one header in the place of all that servers may take for it.
func setHeader(r *http.Request, name, value string) {
	var space [64]byte
	folded := fold(name)
	for other := range r.Header {
		if string(appendFold(space[:0], other)) == folded {
			delete(r.Header, other)
		}
	}
	if r.Header == nil {
		r.Header = make(http.Header)
	}
	r.Header[name] = []string{value}
}

func hasHeader(r *http.Request, name string) bool {
	folded := fold(name)
	for other := range r.Header {
		if fold(other) == folded {
			return true
		}
	}
	return false
}
