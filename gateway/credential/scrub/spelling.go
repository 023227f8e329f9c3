package scrub

import (
	"encoding/base64"
	"encoding/hex"
	"strings"
)

// pattern is one form of a secret to look for. Each of its characters may
// besides be escaped, in any of the ways that [readings] knows.
type pattern struct {
	text  string
	fold  bool // letters are the same in either case
	lines bool // from its wrap-th character on lines may end within it
	span  int  // how long an occurrence may be
	known known
}

// wrap is how many digits of base64 or hexadecimal come before the end of a
// line for the rest to be looked for on the next.
const wrap = 4

// stretch is how many times as long as a value an occurrence of it may be, in
// whatever form. It leaves room for any escape of every character, and of the
// digits that stand for it for those that are usual, and bounds how many ends of
// lines there can be between them.
const stretch = 20

// minLine is the length in bytes from which a line of a value with several is a
// value of its own: a text may end between two lines.
const minLine = 16

// lines returns the long lines of a value that has several.
func lines(value string) (all []string) {
	if !strings.Contains(value, "\n") {
		return nil
	}
	for line := range strings.Lines(value) {
		// The first and the last of a PEM file are no secret.
		if line = strings.TrimSpace(line); len(line) >= minLine && !strings.HasPrefix(line, "-----") {
			all = append(all, line)
		}
	}
	return all
}

// spellings returns the forms in which a value can come back in a response,
// some of them more than once:
//
//   - as it is, and with + for each space (application/x-www-form-urlencoded)
//   - hexadecimal, in either case of digits
//   - base64 (RFC 4648, standard and URL alphabet) within a text that has 0, 1
//     or 2 bytes before the value modulo 3: those digits that the value alone
//     determines
//
// The last two also broken into lines. Of a line that ends within the first
// digits of the value, fewer than wrap, these stay. No occurrence is longer than
// span.
func spellings(value string, span int, k known) []pattern {
	all := []pattern{{text: value, span: span, known: k}}
	if strings.Contains(value, " ") {
		all = append(all, pattern{text: strings.ReplaceAll(value, " ", "+"), span: span, known: k})
	}
	wrapped := func(text string, fold bool, k known) {
		p := pattern{text: text, fold: fold, lines: len(text) >= 6*wrap, span: span, known: k}
		all = append(all, p)
		if p.lines {
			p.text, p.known.head = text[wrap-1:], max(0, k.head-(wrap-1))
			all = append(all, p)
		}
	}
	wrapped(hex.EncodeToString([]byte(value)), true, known{2 * k.head, 2 * k.tail})
	for skip := range 3 {
		digits := known{firstDigit(skip+k.head) - firstDigit(skip), digitsOf(k.tail)}
		for _, alphabet := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			wrapped(interior(alphabet, value, skip), false, digits)
		}
	}
	return all
}

// public returns how many bytes at the end of a value everybody knows: of a PEM file
// its last line, also in base64.
func public(value string) int {
	text := strings.TrimSpace(value)
	if at := strings.LastIndex(text, "-----END "); at >= 0 && strings.HasSuffix(text, "-----") {
		return len(value) - at
	}
	text = strings.TrimRight(text, "=")
	if decoded, err := base64.RawStdEncoding.DecodeString(text); err == nil && strings.Contains(text, "LS0t") {
		return len(value) - len(text) + digitsOf(public(string(decoded)))
	}
	return 0
}

// digitsOf is how many digits of base64 at the end of a text some bytes there have a
// part in, the end of a line included.
func digitsOf(n int) int {
	if n == 0 {
		return 0
	}
	return (8*n+5)/6 + 2
}

// interior returns the digits that value determines in the base64 of any text
// in which it comes after skip bytes (modulo 3).
func interior(enc *base64.Encoding, value string, skip int) string {
	text := enc.EncodeToString(append(make([]byte, skip), value...))
	bits := 8 * (skip + len(value))
	return text[firstDigit(skip) : bits/6]
}
