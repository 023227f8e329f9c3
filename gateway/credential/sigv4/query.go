package sigv4

import (
	"cmp"
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
	if raw == "" {
		return nil
	}
	q = make(query, 0, strings.Count(raw, "&")+1)
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
	if !strings.ContainsAny(text, "%+") {
		return text
	}
	if plain, err := url.QueryUnescape(text); err == nil {
		return plain
	}
	return text
}

func (q *query) add(name, value string) { *q = append(*q, parameter{name, value, false}) }

// String is the query as it is sent, in the one spelling in which it is signed.
func (q query) String() string {
	var b strings.Builder
	for i, p := range q {
		if i > 0 {
			b.WriteByte('&')
		}
		b.WriteString(encode(p.name, ""))
		if !p.bare {
			b.WriteByte('=')
			b.WriteString(encode(p.value, ""))
		}
	}
	return b.String()
}

// canonical adds the query as it is signed.
func (q query) canonical(text []byte) []byte {
	pairs := make(query, len(q))
	for i, p := range q {
		pairs[i] = parameter{name: encode(p.name, ""), value: encode(p.value, "")}
	}
	slices.SortFunc(pairs, func(a, b parameter) int {
		return cmp.Or(strings.Compare(a.name, b.name), strings.Compare(a.value, b.value))
	})
	for i, p := range pairs {
		if i > 0 {
			text = append(text, '&')
		}
		text = append(append(append(text, p.name...), '='), p.value...)
	}
	return text
}
