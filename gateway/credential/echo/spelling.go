package echo

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
func spellings(value string, span int) []pattern {
	all := []pattern{{text: value, span: span}, {text: strings.ReplaceAll(value, " ", "+"), span: span}}
	wrapped := func(text string, fold bool) {
		if len(text) < 6*wrap {
			all = append(all, pattern{text: text, fold: fold, span: span})
			return
		}
		all = append(all, pattern{text, fold, true, span}, pattern{text[wrap-1:], fold, true, span})
	}
	wrapped(hex.EncodeToString([]byte(value)), true)
	for skip := range 3 {
		for _, alphabet := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			wrapped(interior(alphabet, value, skip), false)
		}
	}
	return all
}

// interior returns the digits that value determines in the base64 of any text
// in which it comes after skip bytes (modulo 3).
func interior(enc *base64.Encoding, value string, skip int) string {
	text := enc.EncodeToString(append(make([]byte, skip), value...))
	bits := 8 * (skip + len(value))
	return text[(8*skip+5)/6 : bits/6]
}
