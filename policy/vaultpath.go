package policy

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

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
