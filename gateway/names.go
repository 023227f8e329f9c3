package gateway

import (
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Bounds of what one request can write into the audit. Policy sees it all.
const (
	maxAuditPath  = 8 << 10 // bytes, as much as policy takes
	maxAuditNames = 128
	maxAuditName  = 256 // bytes
)

// queryKeys returns the decoded keys of a query, sorted and without repeats.
// Servers differ on whether a semicolon separates, so it does here too: policy
// sees every key that any of them could.
func queryKeys(raw string) []string {
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

// clip shortens s to n bytes and says by how many.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "… (" + strconv.Itoa(len(s)-n) + " more bytes)"
}

// clipAll bounds a list of names and says how many were left out.
func clipAll(names []string) []string {
	long := func(s string) bool { return len(s) > maxAuditName }
	if len(names) <= maxAuditNames && !slices.ContainsFunc(names, long) {
		return names
	}
	kept := slices.Clone(names[:min(len(names), maxAuditNames)])
	for i, s := range kept {
		kept[i] = clip(s, maxAuditName)
	}
	if n := len(names) - len(kept); n > 0 {
		kept = append(kept, "… ("+strconv.Itoa(n)+" more)")
	}
	return kept
}
