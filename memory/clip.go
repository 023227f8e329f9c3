package memory

import "unicode/utf8"

// Clip is the beginning of a text, at most n bytes, in whole characters.
func Clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
