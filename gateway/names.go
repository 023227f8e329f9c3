package gateway

import (
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"sallyport/gateway/form"
)

// Bounds of what one request can write into the audit. Policy sees it all.
const (
	maxAuditPath   = 8 << 10 // bytes, as much as policy takes
	maxAuditNames  = 128
	maxAuditName   = 256 // bytes
	maxAuditMethod = 64  // bytes
)

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

// cut lists the fields of an event that hold less than was decided on. What is
// not UTF-8 is replaced in the log, which is less too.
func cut(path, method string, names form.Names) (fields []string) {
	if len(path) > maxAuditPath {
		fields = append(fields, "path")
	}
	if len(method) > maxAuditMethod {
		fields = append(fields, "method")
	}
	less := func(names []string) bool {
		return len(names) > maxAuditNames || slices.ContainsFunc(names, func(s string) bool { return len(s) > maxAuditName || !utf8.ValidString(s) })
	}
	if less(names.Headers) {
		fields = append(fields, "header_names")
	}
	if less(names.Query) {
		fields = append(fields, "query_keys")
	}
	return fields
}
