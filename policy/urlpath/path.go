// Package urlpath turns the path of a request into the one form that rules are compared
// with, and refuses a path that two servers could read differently.
package urlpath

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"sallyport/policy/pathvariants"
)

// maxPath bounds a request's path in bytes.
const maxPath = 8 << 10

var errPath = errors.New("ambiguous path")

// Normalize turns the path of a request, as it stands on the wire and
// without its query, into the form that rules are compared with: percent-decoded
// (RFC 3986, section 2.1), runs of slashes made one.
//
// Servers disagree about what some paths mean: one resolves "..", decodes "%2f",
// turns "\" round or cuts ";x" off, the next does not. A path that two servers
// could read differently gives an error, and the request must be refused: two
// slashes at its beginning, which a URL parser takes for a host; dot segments, also
// those that are there once white space is trimmed, "?" or "#" cut or full-width
// letters folded; semicolons and backslashes, encoded or not, and what looks like a slash;
// segments of white space; double encodings,
// control bytes, a query or a fragment, what is not UTF-8, and what is longer than
// 8 KiB. Clients resolve dot segments before they send (section 5.2.4), so that only
// the hostile and the broken are turned away.
//
// Encoded slashes are the exception, since npm, GitLab and Google Cloud Storage
// have names with slashes in a segment: they stay, as %2F, and the path has as many
// readings as package pathvariants finds. So has one with an encoded "?" or "#". A policy
// decides about each of them. An encoded slash beside another slash is refused, and
// so are more than three segments that hold one.
func Normalize(raw string) (string, error) {
	path, _, err := Canonical(raw)
	return path, err
}

// Canonical is Normalize, and returns besides how the path is sent, so that
// the server reads what was decided about: with letters, digits, "-", ".", "_" and
// "~" decoded, what no URL can hold encoded, hexadecimal digits in upper case (RFC
// 3986, section 6.2.2) and runs of slashes made one. A reserved character stays encoded or
// not, as it was: servers tell the two apart.
func Canonical(raw string) (path, sent string, err error) {
	if len(raw) > maxPath {
		return "", "", fmt.Errorf("%w: longer than %d bytes", errPath, maxPath)
	}
	if raw == "" || raw[0] != '/' {
		return "", "", fmt.Errorf("%w: does not begin with a slash", errPath)
	}
	if strings.HasPrefix(raw, "//") {
		return "", "", fmt.Errorf("%w: two slashes at its beginning, after which some servers read a host", errPath)
	}
	if strings.ContainsAny(raw, "?#") {
		return "", "", fmt.Errorf("%w: a query or a fragment", errPath)
	}
	if canonical(raw) && CheckDecoded(raw) == nil {
		return raw, raw, nil
	}
	out := make([]byte, 0, len(raw)) // decoded, slashes too
	wire := make([]byte, 0, len(raw)+8)
	var encoded []int // where of out
	for i := 0; i < len(raw); i++ {
		c := raw[i]
		last := len(out) - 1
		if c == '%' {
			if i+2 >= len(raw) || !isHex(raw[i+1]) || !isHex(raw[i+2]) {
				return "", "", fmt.Errorf("%w: a %% without two hexadecimal digits", errPath)
			}
			c = unhex(raw[i+1])<<4 | unhex(raw[i+2])
			i += 2
			if c == '/' {
				if out[last] == '/' {
					return "", "", errSlashes
				}
				encoded = append(encoded, len(out))
			}
			if inPath[c] == unreserved {
				wire = append(wire, c)
			} else {
				wire = appendEncoded(wire, c)
			}
		} else {
			if c == '/' && last >= 0 && out[last] == '/' {
				if len(encoded) > 0 && encoded[len(encoded)-1] == last {
					return "", "", errSlashes
				}
				continue
			}
			if inPath[c] == 0 {
				wire = appendEncoded(wire, c)
			} else {
				wire = append(wire, c)
			}
		}
		out = append(out, c)
	}
	if len(wire) > maxPath {
		return "", "", fmt.Errorf("%w: longer than %d bytes once it is encoded", errPath, maxPath)
	}
	if err := CheckDecoded(string(out)); err != nil {
		return "", "", err
	}
	if len(encoded) == 0 {
		return string(out), string(wire), nil
	}
	var b strings.Builder
	from := 0
	for _, at := range encoded {
		b.Write(out[from:at])
		b.WriteString(pathvariants.Slash)
		from = at + 1
	}
	b.Write(out[from:])
	if pathvariants.Of(b.String()) == nil {
		return "", "", errVariants
	}
	return b.String(), string(wire), nil
}

// The characters that may stand in a path (RFC 3986, section 3.3).
const (
	unreserved = 1 + iota
	reserved   // the others
)

var inPath = func() (t [256]byte) {
	for _, c := range "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~" {
		t[c] = unreserved
	}
	for _, c := range "/!$&'()*+,;=:@" {
		t[c] = reserved
	}
	return t
}()

// canonical tells of a path that it is sent as it is, and means what it says.
func canonical(raw string) bool {
	for i := range len(raw) {
		if inPath[raw[i]] == 0 || raw[i] == '/' && i > 0 && raw[i-1] == '/' {
			return false
		}
	}
	return true
}

func appendEncoded(b []byte, c byte) []byte {
	const digits = "0123456789ABCDEF"
	return append(b, '%', digits[c>>4], digits[c&0xf])
}

var (
	errSlashes  = fmt.Errorf("%w: an encoded slash beside a slash", errPath)
	errVariants = fmt.Errorf("%w: encoded slashes in more than %d segments", errPath, pathvariants.Segments)
)

// CheckNormalized says why a path is none that Normalize returns.
func CheckNormalized(path string) error {
	decoded := path
	if pathvariants.Several(path) {
		if pathvariants.Of(path) == nil {
			return errVariants
		}
		decoded = pathvariants.Decoded(path)
	}
	if path == "" || path[0] != '/' || len(path) > maxPath || strings.Contains(decoded, "//") {
		return errors.New("the path is not normalised")
	}
	return CheckDecoded(decoded) // which has every segment that some reading has
}

// CheckDecoded says what about a decoded path could be read in two ways.
func CheckDecoded(path string) error {
	if !utf8.ValidString(path) {
		return fmt.Errorf("%w: not UTF-8", errPath)
	}
	odd := false
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
		case c == ' ' || c == '+' || c == '?' || c == '#' || c >= utf8.RuneSelf:
			odd = true
		}
	}
	if odd {
		return foldedPath(path)
	}
	return nil
}

// slashLike are taken for a slash or a backslash by Unicode's NFKC or by the best fit of
// some code page of Windows.
const slashLike = "\uff0f\u2044\u2215\uff3c\ufe68\u2216\u00a5\u20a9"

// foldedPath says whether a path has a dot segment, another number of segments, or is
// encoded a second time, to a server that trims white space, cuts at "?", "#" or ";", leaves
// out what is not seen, or takes a full-width letter for the one of ASCII before it looks.
func foldedPath(path string) error {
	if strings.ContainsAny(path, slashLike) {
		return fmt.Errorf("%w: what looks like a slash or a backslash", errPath)
	}
	for segment := range strings.SplitSeq(path, "/") {
		folded := foldSegment(segment)
		if folded == "" && segment != "" {
			return fmt.Errorf("%w: a segment of white space, or of what is not seen", errPath)
		}
		if strings.ContainsAny(segment, "\uff05\ufe6a") {
			for i := range len(folded) {
				if folded[i] == '%' && i+2 < len(folded) && isHex(folded[i+1]) && isHex(folded[i+2]) {
					return fmt.Errorf("%w: encoded twice, by a full-width percent sign", errPath)
				}
			}
		}
		if i := strings.IndexAny(folded, "?#;"); i >= 0 {
			folded = folded[:i]
		}
		if folded = strings.ReplaceAll(folded, "+", ""); folded == "." || folded == ".." { // + is a space in a form
			return fmt.Errorf("%w: a dot segment to a server that trims, cuts or folds", errPath)
		}
	}
	return nil
}

// foldSegment leaves out white space and what is not seen, and writes what looks like a
// character of a path's syntax as that.
func foldSegment(segment string) string {
	var b strings.Builder
	for _, r := range segment {
		switch r {
		case '\u2024', '\ufe52', '\u3002', '\uff61':
			b.WriteByte('.')
		case '\u2025':
			b.WriteString("..")
		case '\u2026', '\ufe19':
			b.WriteString("...")
		case '\ufe56':
			b.WriteByte('?')
		case '\ufe5f':
			b.WriteByte('#')
		case '\ufe54', '\u037e':
			b.WriteByte(';')
		case '\ufe6a':
			b.WriteByte('%')
		default:
			switch {
			case unicode.IsSpace(r), unicode.In(r, unicode.Cf, unicode.Z, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector),
				0x80 <= r && r < 0xa0:
			case 0xff01 <= r && r <= 0xff5e:
				b.WriteRune(r - 0xff01 + '!')
			default:
				b.WriteRune(r)
			}
		}
	}
	return b.String()
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
