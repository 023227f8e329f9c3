// Package terminal makes text that a sandbox chose fit for an operator's
// terminal: file names, paths and host names may hold escape sequences, line
// breaks, or marks that turn the reading direction around.
package terminal

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// Escape returns s with every rune that is not a letter, mark, number,
// punctuation, symbol or the ASCII space written as in a Go string literal, and
// with every backslash doubled, so that two different texts never look the
// same. Control characters, line and paragraph separators, bidirectional
// controls, zero-width characters and invalid UTF-8 are all escaped.
func Escape(s string) string { return escape(s, false) }

// Word is Escape for text that stands among other fields on one line: spaces
// are escaped too, and the empty text is "-".
func Word(s string) string {
	if s == "" {
		return "-"
	}
	return escape(s, true)
}

// Text is Escape for our own text of several lines with parts that are not ours, such as
// an error: line feeds, tabs and backslashes stay.
func Text(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == '\n' || r == '\t' || r == '\\' {
			b.WriteRune(r)
		} else {
			b.WriteString(escape(s[i:i+n], false))
		}
		i += n
	}
	return b.String()
}

func escape(s string, space bool) string {
	clean := true
	for i := 0; i < len(s) && clean; i++ {
		clean = s[i] > ' ' && s[i] < utf8.RuneSelf-1 && s[i] != '\\' || s[i] == ' ' && !space
	}
	if clean {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			b.WriteString(`\x`)
			b.WriteByte("0123456789abcdef"[s[i]>>4])
			b.WriteByte("0123456789abcdef"[s[i]&15])
		case r == '"':
			b.WriteByte('"') // quoting would escape it
		case r == ' ' && space:
			b.WriteString(`\x20`)
		default:
			q := strconv.Quote(string(r))
			b.WriteString(q[1 : len(q)-1])
		}
		i += n
	}
	return b.String()
}
