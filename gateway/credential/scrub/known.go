package scrub

import (
	"encoding/base64"
	"strings"
)

// known is how many bytes at either end of a value others may know: of a PEM file its
// last line, and what a secret was put behind or before, as "Bearer " is and a username.
type known struct{ head, tail int }

// knownOf finds those bytes. A value that holds another one of the same name, as it is or
// in base64, is secret in that part only.
func knownOf(text string, of Value, values []Value) known {
	k := known{tail: public(text)}
	if from, to := secretIn(text, of, values); to-from >= MinLength {
		k.head, k.tail = from, max(k.tail, len(text)-to)
	}
	return k
}

// secretIn returns where in a text that is secret which others of its values hold too, all
// of it if none does.
func secretIn(text string, of Value, values []Value) (from, to int) {
	longest := ""
	for _, v := range values {
		value := strings.TrimSpace(v.Text)
		if v.Name == of.Name && !v.Public && len(value) >= MinLength && len(value) < len(text) && len(value) > len(longest) && strings.Contains(text, value) {
			longest = value
		}
	}
	if longest != "" {
		at := strings.LastIndex(text, longest)
		from, to = secretIn(longest, of, values)
		return at + from, at + to
	}
	if decoded, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(text, "=")); err == nil {
		if from, to = secretIn(string(decoded), of, values); to-from < len(decoded) {
			return firstDigit(from), 8 * to / 6
		}
	}
	return 0, len(text)
}

// firstDigit is the first of base64 that nothing before a byte has a part in.
func firstDigit(at int) int { return (8*at + 5) / 6 }
