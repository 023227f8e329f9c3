package policy

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"sallyport/policy/reading"
)

// maxPath bounds a request's path in bytes.
const maxPath = 8 << 10

var errPath = errors.New("ambiguous path")

// NormalizePath turns the path of a request, as it stands on the wire and
// without its query, into the form that rules are compared with: percent-decoded
// (RFC 3986, section 2.1), runs of slashes made one.
//
// Servers disagree about what some paths mean: one resolves "..", decodes "%2f",
// turns "\" round or cuts ";x" off, the next does not. A path that two servers
// could read differently gives an error, and the request must be refused: dot
// segments and semicolons and backslashes, encoded or not, double encodings,
// control bytes, a query or a fragment, what is not UTF-8, and what is longer than
// 8 KiB. Clients resolve dot segments before they send (section 5.2.4), so that only
// the hostile and the broken are turned away.
//
// Encoded slashes are the exception, since npm, GitLab and Google Cloud Storage
// have names with slashes in a segment: they stay, as %2F, and the path has as many
// readings as package reading finds. A policy decides about each of them. An encoded
// slash beside another slash is refused, and so are more than three segments that
// hold one.
func NormalizePath(raw string) (string, error) {
	if len(raw) > maxPath {
		return "", fmt.Errorf("%w: longer than %d bytes", errPath, maxPath)
	}
	if raw == "" || raw[0] != '/' {
		return "", fmt.Errorf("%w: does not begin with a slash", errPath)
	}
	if strings.ContainsAny(raw, "?#") {
		return "", fmt.Errorf("%w: a query or a fragment", errPath)
	}
	if strings.IndexByte(raw, '%') < 0 && plainPath(raw) == nil && !strings.Contains(raw, "//") {
		return raw, nil
	}
	out := make([]byte, 0, len(raw)) // decoded, slashes too
	var encoded []int                // where of it
	for i := 0; i < len(raw); i++ {
		c := raw[i]
		last := len(out) - 1
		if c == '%' {
			if i+2 >= len(raw) || !isHex(raw[i+1]) || !isHex(raw[i+2]) {
				return "", fmt.Errorf("%w: a %% without two hexadecimal digits", errPath)
			}
			c = unhex(raw[i+1])<<4 | unhex(raw[i+2])
			i += 2
			if c == '/' {
				if out[last] == '/' {
					return "", errSlashes
				}
				encoded = append(encoded, len(out))
			}
		} else if c == '/' && last >= 0 && out[last] == '/' {
			if len(encoded) > 0 && encoded[len(encoded)-1] == last {
				return "", errSlashes
			}
			continue
		}
		out = append(out, c)
	}
	if err := plainPath(string(out)); err != nil {
		return "", err
	}
	if len(encoded) == 0 {
		return string(out), nil
	}
	var b strings.Builder
	from := 0
	for _, at := range encoded {
		b.Write(out[from:at])
		b.WriteString(reading.Slash)
		from = at + 1
	}
	b.Write(out[from:])
	if reading.Of(b.String()) == nil {
		return "", errReadings
	}
	return b.String(), nil
}

var (
	errSlashes  = fmt.Errorf("%w: an encoded slash beside a slash", errPath)
	errReadings = fmt.Errorf("%w: encoded slashes in more than %d segments", errPath, reading.Segments)
)

// normalised says why a path is none that NormalizePath returns.
func normalised(path string) error {
	decoded := path
	if reading.Several(path) {
		if reading.Of(path) == nil {
			return errReadings
		}
		decoded = reading.Decoded(path)
	}
	if path == "" || path[0] != '/' || len(path) > maxPath || strings.Contains(decoded, "//") {
		return errors.New("the path is not normalised")
	}
	return plainPath(decoded) // which has every segment that some reading has
}

// plainPath says what about a decoded path could be read in two ways.
func plainPath(path string) error {
	if !utf8.ValidString(path) {
		return fmt.Errorf("%w: not UTF-8", errPath)
	}
	for i := range len(path) {
		switch c := path[i]; {
		case c < 0x20 || c == 0x7f:
			return fmt.Errorf("%w: a control byte", errPath)
		case c == '\\':
			return fmt.Errorf("%w: a backslash", errPath)
		case c == ';':
			return fmt.Errorf("%w: a semicolon", errPath)
		case c == '%' && i+2 < len(path) && isHex(path[i+1]) && isHex(path[i+2]):
			return fmt.Errorf("%w: encoded twice", errPath)
		case c == '/' && dotSegment(path[i+1:]):
			return fmt.Errorf("%w: a dot segment", errPath)
		}
	}
	return nil
}

// dotSegment reports whether the path's first segment is "." or "..".
func dotSegment(path string) bool {
	segment, _, _ := strings.Cut(path[:min(len(path), 3)], "/")
	return segment == "." || segment == ".."
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

func unhex(c byte) byte {
	if c <= '9' {
		return c - '0'
	}
	return c | 0x20 - 'a' + 10
}

// checkGlob says why no normalised path can match a rule's glob.
func checkGlob(glob string) error {
	switch {
	case glob == "":
		return errors.New("is empty; leave paths out to mean every path")
	case len(glob) > 1024:
		return errors.New("is longer than 1024 bytes")
	case glob[0] != '/' && !strings.HasPrefix(glob, "**"):
		return fmt.Errorf("%q can never match; write %q", glob, "/"+glob)
	case strings.ContainsAny(glob, "?#"):
		return fmt.Errorf("%q can never match, since the query and the fragment are no part of a path; write the path alone", glob)
	case strings.Contains(glob, "//"):
		return fmt.Errorf("%q can never match: doubled slashes are made one; write %q", glob, strings.ReplaceAll(glob, "//", "/"))
	case strings.Contains(glob, "%2f"):
		return fmt.Errorf("%q can never match: an encoded slash is in upper case; write %q", glob, strings.ReplaceAll(glob, "%2f", reading.Slash))
	case strings.Count(glob, "%") > strings.Count(glob, reading.Slash):
		return fmt.Errorf("%q can never match: paths are compared decoded, but for %s; write the character itself", glob, reading.Slash)
	case strings.Contains(reading.Decoded(glob), "//"):
		return fmt.Errorf("%q can never match: an encoded slash beside a slash is refused before any rule", glob)
	}
	if err := plainPath(reading.Decoded(glob)); err != nil {
		return fmt.Errorf("%q can never match: %w, which is refused before any rule; write the path as a server resolves it", glob, err)
	}
	return nil
}
