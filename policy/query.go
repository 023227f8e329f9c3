package policy

import (
	"net/url"
	"slices"
	"strings"
)

// QueryKeys returns the decoded keys of a query, sorted and without repeats.
// Servers differ on whether a semicolon separates, so it does here too: policy
// sees every key that any of them could. It is [Request.QueryKeys] of the query as
// it stands on the wire.
func QueryKeys(raw string) []string {
	if raw == "" {
		return nil
	}
	var keys []string
	for pair := range strings.FieldsFuncSeq(raw, func(c rune) bool { return c == '&' || c == ';' }) {
		key, _, _ := strings.Cut(pair, "=")
		if decoded, err := url.QueryUnescape(key); err == nil {
			key = decoded
		}
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}
