package credential

import (
	"net/http"
	"net/textproto"
)

// placeholderKind gives a credential wherever its placeholder stands: the gateway does
// that, by [Lease.Placeholder].
type placeholderKind struct{}

func (placeholderKind) compose(fields map[string]Secret) (*composed, error) {
	c, err := bearerKind{}.compose(fields)
	if err != nil {
		return nil, err
	}
	value := fields[c.secret[0]]
	stands := constant(func(*http.Request) {}).keeps(c.secret, fields)
	stands.stands, stands.length = value, len(value.Reveal())
	return stands, nil
}

// own is false: what a sandbox has of its own in those places is for the gateway to find.
func (placeholderKind) own(*http.Request) bool { return false }

// Placeholder returns what takes the place of the credential's placeholder in a request
// that an inject with placeholder was applied to; it is empty otherwise.
func (l *Lease) Placeholder() (s Secret) {
	for _, c := range l.applied {
		if c.stands.Reveal() != "" {
			s = c.stands
		}
	}
	return s
}

// CarriesHeader reports whether credentials travel in a header, so that [StripRequest]
// removes it.
func CarriesHeader(name string) bool {
	return credentialHeaders[fold(textproto.TrimString(name))]
}

// CarriesKey reports whether credentials travel in a query key, which is decoded, so that
// [StripRequest] removes it.
func CarriesKey(key string) bool { return credentialKeys[foldKey(key)] }
