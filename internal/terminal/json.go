package terminal

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// JSON returns an encoder to w that writes every rune that a terminal may act on as
// \uXXXX (RFC 8259, section 7), also those that JSON allows unescaped: U+007F, the C1
// controls and bidirectional controls. A reader of the JSON gets the same text.
func JSON(w io.Writer) *json.Encoder { return json.NewEncoder(plain{w}) }

type plain struct{ io.Writer }

// Write takes whole values, as an Encoder gives them: outside of strings they are
// ASCII.
func (p plain) Write(text []byte) (int, error) {
	clean := true
	for _, c := range text {
		clean = clean && c < utf8.RuneSelf-1
	}
	if clean {
		return p.Writer.Write(text)
	}
	var b strings.Builder
	for _, r := range string(text) {
		switch {
		case r < utf8.RuneSelf-1 || strconv.IsPrint(r):
			b.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	if _, err := io.WriteString(p.Writer, b.String()); err != nil {
		return 0, err
	}
	return len(text), nil
}
