package policy

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/net/http/httpguts"
)

// maxReason bounds what a decision says, in bytes.
const maxReason = 500

// Clean makes text of a policy, which may quote a hostile request, fit for a
// header, a log line and a terminal.
func Clean(s string) string {
	if IsLabel(s) {
		return s
	}
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 || r >= 0x2028 && r <= 0x202e || r >= 0x2066 && r <= 0x2069 {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	if len(s) > maxReason {
		s = strings.ToValidUTF8(s[:maxReason], "") + "…"
	}
	return strings.TrimSpace(s)
}

func Quoted(s string) string {
	if IsToken(s) {
		return s
	}
	return strconv.Quote(s)
}

// IsToken reports whether s is an RFC 9110 token.
func IsToken(s string) bool { return httpguts.ValidHeaderFieldName(s) }

// IsLabel reports whether s can stand in a header, a log line and on a terminal.
func IsLabel(s string) bool {
	if s == "" || len(s) > 200 || s[0] == ' ' || s[len(s)-1] == ' ' {
		return false
	}
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// maxVaultPath bounds a path of Vault's, in bytes.
const maxVaultPath = 1024

// VaultPath reports whether a text is a path of names, as Vault's mounts, namespaces and
// secrets have: nothing in it leads elsewhere, begins another part of a URL, or is
// hidden.
func VaultPath(path string) bool {
	if len(path) > maxVaultPath || !utf8.ValidString(path) || strings.ContainsAny(path, `?#%\`) ||
		strings.ContainsFunc(path, func(c rune) bool { return unicode.Is(unicode.C, c) }) {
		return false
	}
	for part := range strings.SplitSeq(path, "/") {
		if part == "" || part == "." || part == ".." || strings.TrimSpace(part) != part {
			return false
		}
	}
	return true
}
