package sigv4

import (
	"net/url"
	"slices"
	"strings"
)

// query is a URL's, in the order in which it came.
type query []parameter

type parameter struct {
	name, value string
	bare        bool // without a =
}

func readQuery(raw string) (q query) {
	for part := range strings.SplitSeq(raw, "&") {
		if part == "" {
			continue
		}
		name, value, found := strings.Cut(part, "=")
		q = append(q, parameter{decode(name), decode(value), !found})
	}
	return q
}

// decode takes what cannot be decoded as it is.
func decode(text string) string {
	if plain, err := url.QueryUnescape(text); err == nil {
		return plain
	}
	return text
}

func (q *query) add(name, value string) { *q = append(*q, parameter{name, value, false}) }

// String is the query as it is sent, in the one spelling in which it is signed.
func (q query) String() string {
	parts := make([]string, len(q))
	for i, p := range q {
		if parts[i] = encode(p.name, ""); !p.bare {
			parts[i] += "=" + encode(p.value, "")
		}
	}
	return strings.Join(parts, "&")
}

// canonical is the query as it is signed.
func (q query) canonical() string {
	type pair struct{ name, value string }
	pairs := make([]pair, len(q))
	for i, p := range q {
		pairs[i] = pair{encode(p.name, ""), encode(p.value, "")}
	}
	slices.SortFunc(pairs, func(a, b pair) int {
		if a.name != b.name {
			return strings.Compare(a.name, b.name)
		}
		return strings.Compare(a.value, b.value)
	})
	parts := make([]string, len(pairs))
	for i, p := range pairs {
		parts[i] = p.name + "=" + p.value
	}
	return strings.Join(parts, "&")
}
