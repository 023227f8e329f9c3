package learn

import (
	"strings"
)

// PathShape is a path with * in place of each segment that is likely to be another in
// the next request: numbers, UUIDs, hexadecimal digests, long tokens. The rest after the
// eighth segment is **.
func PathShape(path string) string {
	segments := strings.Split(strings.TrimPrefix(path, "/"), "/")
	const most = 8
	deep := len(segments) > most
	segments = segments[:min(len(segments), most)]
	changed := deep
	for i, s := range segments {
		if varies(s) {
			segments[i], changed = "*", true
		}
	}
	if !changed {
		return path
	}
	shape := "/" + strings.Join(segments, "/")
	if deep {
		shape += "/**"
	}
	return shape
}

// varies tells whether a segment of a path is an identifier rather than a word.
func varies(s string) bool {
	switch {
	case s == "":
		return false
	case strings.ContainsAny(s, "*%?#"):
		return true // no glob can spell it
	case strings.Trim(s, "0123456789") == "":
		return true
	case isUUID(s):
		return true
	}
	digits := 0
	for i := range len(s) {
		if '0' <= s[i] && s[i] <= '9' {
			digits++
		}
	}
	if digits > 0 && len(s) >= 7 && hexadecimal(s) {
		return true // an abbreviated commit, or longer
	}
	return len(s) >= 20 && isToken(s, digits)
}

// isShard tells whether a segment is the beginning of a digest of which a segment
// soon after it is the rest, or all: /packages/b2/da/b2da5f…, objects/4b/825dc6….
func isShard(s string, after []string) bool {
	if len(s) != 2 || !hexadecimal(s) {
		return false
	}
	for _, next := range after[:min(len(after), 2)] {
		if len(next) >= 30 && hexadecimal(next) {
			return true
		}
	}
	return false
}

func hexadecimal(s string) bool { return strings.Trim(s, "0123456789abcdefABCDEF") == "" }

// isToken tells whether a long segment is of the alphabets of base64 (RFC 4648)
// and has more digits, or letter cases, than a name has.
func isToken(s string, digits int) bool {
	upper, lower := false, false
	for i := range len(s) {
		switch c := s[i]; {
		case 'A' <= c && c <= 'Z':
			upper = true
		case 'a' <= c && c <= 'z':
			lower = true
		case '0' <= c && c <= '9', c == '-', c == '_', c == '=', c == '+':
		default:
			return false
		}
	}
	return digits >= 4 || digits >= 2 && upper && lower
}

// isUUID tells whether s is written as RFC 9562 (4) does it.
func isUUID(s string) bool {
	if len(s) != 36 {
		return false
	}
	for i := range len(s) {
		if i == 8 || i == 13 || i == 18 || i == 23 {
			if s[i] != '-' {
				return false
			}
			continue
		}
		if !hexadecimal(s[i : i+1]) {
			return false
		}
	}
	return true
}
