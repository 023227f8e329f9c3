package credential

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"html"
	"strings"
	"unicode/utf16"
)

// spellings returns the forms in which a value can come back in a response,
// some of them more than once:
//
//   - as it is
//   - base64 (RFC 4648, standard and URL alphabet) within a text that has 0, 1
//     or 2 bytes before the value modulo 3: those digits that the value alone
//     determines. In the standard alphabet also with / written \/, and with +
//     and / percent-encoded
//   - hexadecimal, upper and lower case
//   - percent-encoded with either case of digits, as a form value
//     (application/x-www-form-urlencoded), a path segment and encodeURIComponent
//     write it, and with every byte encoded
//   - as JSON string content: what must be escaped (RFC 8259), and besides / (as
//     PHP does), <, > and & (Go), = and ' (Gson), all beyond ASCII (Python)
//   - HTML-escaped
func spellings(value string) []string {
	digits := hex.EncodeToString([]byte(value))
	escaped := html.EscapeString(value)
	all := []string{value, digits, strings.ToUpper(digits), escaped, strings.ReplaceAll(escaped, "&#34;", "&quot;")}

	for skip := range 3 {
		std := interior(base64.StdEncoding, value, skip)
		all = append(all, std, interior(base64.URLEncoding, value, skip), strings.ReplaceAll(std, "/", `\/`))
		for _, format := range []string{"%%%02x", "%%%02X"} {
			all = append(all, percent(std, alphanumeric, format))
		}
	}
	for _, keep := range []string{"", alphanumeric + "-_.~", alphanumeric + "-_.~$&+:=@", alphanumeric + "-_.~!'()*", alphanumeric + "-_.*"} {
		for _, format := range []string{"%%%02x", "%%%02X"} {
			encoded := percent(value, keep, format)
			all = append(all, encoded)
			if keep != "" {
				all = append(all, strings.ReplaceAll(encoded, "%20", "+"))
			}
		}
	}
	for _, also := range []string{"", "/", "<>&", "<>&='", "/<>&"} {
		for _, format := range []string{`\u%04x`, `\u%04X`} {
			all = append(all, quoted(value, also, format, false), quoted(value, also, format, true))
		}
	}
	return all
}

const alphanumeric = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"

// interior returns the digits that value determines in the base64 of any text
// in which it comes after skip bytes (modulo 3).
func interior(enc *base64.Encoding, value string, skip int) string {
	text := enc.WithPadding(base64.NoPadding).EncodeToString(append(make([]byte, skip), value...))
	bits := 8 * (skip + len(value))
	return text[(8*skip+5)/6 : bits/6]
}

// percent encodes the bytes that are not in keep.
func percent(value, keep, format string) string {
	var b strings.Builder
	for _, c := range []byte(value) {
		if strings.IndexByte(keep, c) >= 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, format, c)
		}
	}
	return b.String()
}

// quoted returns value as the content of a JSON string that escapes the
// characters in also too, a solidus as \/ and the rest by number.
func quoted(value, also, format string, ascii bool) string {
	var b strings.Builder
	for _, r := range value {
		switch short := strings.IndexRune("\b\f\n\r\t\"\\", r); {
		case short >= 0:
			b.WriteByte('\\')
			b.WriteByte(`bfnrt"\`[short])
		case r == '/' && strings.ContainsRune(also, '/'):
			b.WriteString(`\/`)
		case r < ' ' || strings.ContainsRune(also, r) || ascii && r > '~' && r <= 0xFFFF:
			fmt.Fprintf(&b, format, r)
		case ascii && r > 0xFFFF:
			hi, lo := utf16.EncodeRune(r)
			fmt.Fprintf(&b, format+format, hi, lo)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}
