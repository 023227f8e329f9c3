package scrub_test

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"html"
	"math/rand/v2"
	"strings"

	"sallyport/gateway/credential/scrub"
)

// speller writes a text in ways that say the same.
type speller struct{ *rand.Rand }

func newSpeller(seed uint64) speller { return speller{rand.New(rand.NewPCG(seed, 2))} }

func (s speller) secret() string {
	alphabet := []string{"abcdefgh0123XYZ-_", `\"/&%+<>'a1 =`, "ab", `\\n`, "%25a", "&amp;#;", "A\n\r\t b"}[s.IntN(7)]
	for {
		text := make([]byte, scrub.MinLength+s.IntN(36))
		for i := range text {
			text[i] = alphabet[s.IntN(len(alphabet))]
		}
		if text := strings.TrimSpace(string(text)); len(text) >= scrub.MinLength {
			return text
		}
	}
}

// filler has the beginnings of escapes and of the secret in it.
func (s speller) filler(secret string) (text []byte) {
	for range s.IntN(20) {
		text = append(text, []string{"\n", `\n`, "%25", "&amp;", `\`, `\\`, "x", "%", "&", "\r", `\u00`, "25", "amp;", secret[:1+s.IntN(len(secret)-1)]}[s.IntN(14)]...)
	}
	return text
}

// body has a secret in some spellings, or parts of it, between other text.
func (s speller) body(secret string, filler []byte) (body []byte) {
	for range 1 + s.IntN(4) {
		v := secret
		switch s.IntN(5) {
		case 0:
			v = hex.EncodeToString([]byte(v))
		case 1, 2:
			alphabet := []*base64.Encoding{base64.StdEncoding, base64.RawURLEncoding}[s.IntN(2)]
			v = alphabet.EncodeToString([]byte(strings.Repeat("x", s.IntN(3)) + v))
			if s.IntN(2) == 0 {
				at := s.IntN(len(v))
				v = v[:at] + []string{"\n", "\r\n", `\n`, `\r\n`, "%0A", "&#10;"}[s.IntN(6)] + v[at:]
			}
		}
		v = s.escape(v)
		if s.IntN(4) == 0 && len(v) > 0 {
			v = v[:s.IntN(len(v))]
		}
		body = append(body, v...)
		if n := len(filler); n > 0 {
			body = append(body, filler[s.IntN(n):]...)
		}
	}
	return body
}

// escape escapes none, some or all of the characters.
func (s speller) escape(text string) string {
	some := []int{0, 0, 1, 5, 100}[s.IntN(5)]
	style := s.IntN(5)
	var b strings.Builder
	for _, c := range []byte(text) {
		if s.IntN(100) >= some*20 {
			b.WriteByte(c)
			continue
		}
		if some == 1 {
			style = s.IntN(5)
		}
		switch style {
		case 0:
			fmt.Fprintf(&b, []string{"%%%02x", "%%%02X", "%%25%02x", "%%2525%02x"}[s.IntN(4)], c)
		case 1:
			fmt.Fprintf(&b, []string{`\u%04x`, `\u%04X`, `\\u%04x`, `\\\\u%04x`, `\x%02x`}[s.IntN(5)], c)
		case 2:
			fmt.Fprintf(&b, []string{"&#%d;", "&#x%x;", "&#x%04X;", "&amp;#%d;", "&amp;amp;#%d;", "&#%04d;"}[s.IntN(6)], c)
		case 3:
			b.WriteString(html.EscapeString(string(c)))
		case 4:
			b.WriteString(`\\\`[:1+s.IntN(3)] + string(c))
		}
	}
	return b.String()
}
