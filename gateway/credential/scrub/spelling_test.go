package scrub_test

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"net/url"
	"strings"
	"testing"
	"testing/iotest"

	"sallyport/gateway/credential/scrub"
	"sallyport/internal/test/must"
)

// each writes every byte of a text in a format.
func each(format, text string) string {
	var b strings.Builder
	for _, c := range []byte(text) {
		fmt.Fprintf(&b, format, c)
	}
	return b.String()
}

// every other byte of a text is written in a format.
func other(format, text string) string {
	var b strings.Builder
	for i, c := range []byte(text) {
		if i%2 == 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, format, c)
		}
	}
	return b.String()
}

func quoted(t *testing.T, text string) string {
	t.Helper()
	q, err := json.Marshal(text)
	must.OK(t, err)
	return string(q[1 : len(q)-1])
}

func TestScrubSpellings(t *testing.T) {
	const (
		key   = `sk-Ab+9/z?"q<&ü='€~x y\😀`
		plain = "sk-live_0123456789abcdefXYZ"
	)
	tests := []struct{ name, secret, form string }{
		{"as it is", key, key},
		{"hexadecimal", key, hex.EncodeToString([]byte(key))},
		{"hexadecimal in upper case", key, strings.ToUpper(hex.EncodeToString([]byte(key)))},
		{"hexadecimal in mixed case", plain, strings.NewReplacer("6c", "6C", "5f", "5F").Replace(hex.EncodeToString([]byte(plain)))},
		{"percent, form", key, url.QueryEscape(key)},
		{"percent, path", key, url.PathEscape(key)},
		{"percent, encodeURIComponent", key, "sk-Ab%2B9%2Fz%3F%22q%3C%26%C3%BC%3D'%E2%82%AC~x%20y%5C%F0%9F%98%80"},
		{"percent in lower case", key, "sk-Ab%2b9%2fz%3f%22q%3c%26%c3%bc%3d'%e2%82%ac~x%20y%5c%f0%9f%98%80"},
		{"percent in full", plain, each("%%%02X", plain)},
		{"percent in full, lower case", key, each("%%%02x", key)},
		{"percent in part", plain, other("%%%02x", plain)},
		{"percent twice", key, url.QueryEscape(url.QueryEscape(key))},
		{"percent thrice", key, url.PathEscape(url.PathEscape(url.PathEscape(key)))},
		{"JSON of Go", key, quoted(t, key)},
		{"JSON, no more than it must be", key, `sk-Ab+9/z?\"q<&ü='€~x y\\😀`},
		{"JSON of Python", key, `sk-Ab+9/z?\"q<&\u00fc='\u20ac~x y\\\ud83d\ude00`},
		{"JSON of PHP", key, `sk-Ab+9\/z?\"q<&\u00fc='\u20ac~x y\\\uD83D\uDE00`},
		{"JSON of Gson", key, `sk-Ab+9/z?\"q\u003c\u0026ü\u003d\u0027€~x y\\😀`},
		{"JSON in full", plain, each(`\u%04x`, plain)},
		{"JSON in full, upper case", plain, each(`\u%04X`, plain)},
		{"JSON in part", plain, other(`\u%04x`, plain)},
		{"JSON in JSON", key, quoted(t, quoted(t, key))},
		{"JSON of Python in JSON", key, `sk-Ab+9/z?\\\"q<&\\u00fc='\\u20ac~x y\\\\\\ud83d\\ude00`},
		{"JSON in JSON in JSON", key, quoted(t, quoted(t, quoted(t, key)))},
		{"JavaScript", plain, each(`\x%02x`, plain)},
		{"shell", key, `sk-Ab\+9/z\?\"q\<\&ü=\'€~x\ y\\😀`},
		{"HTML", key, html.EscapeString(key)},
		{"HTML of PHP", key, `sk-Ab+9/z?&quot;q&lt;&amp;ü=&#039;€~x y\😀`},
		{"XML", key, `sk-Ab+9/z?&quot;q&lt;&amp;&#xFC;=&apos;&#x20ac;~x y\&#x1F600;`},
		{"HTML in full", plain, each("&#%d;", plain)},
		{"HTML in full, hexadecimal", plain, each("&#x%X;", plain)},
		{"HTML in part", plain, other("&#%d;", plain)},
		{"HTML in HTML", key, html.EscapeString(html.EscapeString(key))},
		{"ends of lines in JSON", "-----BEGIN KEY-----\nMIIEvQIBADANBg\nkqhkiG\n", `-----BEGIN KEY-----\nMIIEvQIBADANBg\nkqhkiG`},
		{"ends of lines by CRLF", "-----BEGIN KEY-----\nMIIEvQIBADANBg\nkqhkiG\n", "-----BEGIN KEY-----\r\nMIIEvQIBADANBg\r\nkqhkiG"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := scrubber(test.secret)
			body := "before " + test.form + " after"
			want := "before " + stars(len(test.form)) + " after"
			if got, hits := scrubbed(t, s, strings.NewReader(body)); got != want || hits != 1 {
				t.Errorf("%q became %q, %d hits", body, got, hits)
			}
			if strings.Contains(body, "\n") {
				return // each line may be a text by itself: see TestScrubLines
			}
			if got, hits := scrubbed(t, s, iotest.OneByteReader(strings.NewReader(body))); got != want || hits != 1 {
				t.Errorf("byte by byte %q became %q, %d hits", body, got, hits)
			}
		})
	}
}

// In base64 the bytes around a secret share a digit with it, and a few digits before the end
// of a line are not taken for it. The rest must tell no more of two secrets than that.
func TestScrubBase64(t *testing.T) {
	wrap := func(end string, width int) func(string) string {
		return func(text string) string {
			var lines []string
			for ; len(text) > width; text = text[width:] {
				lines = append(lines, text[:width])
			}
			return strings.Join(append(lines, text), end)
		}
	}
	forms := []struct {
		name string
		form func(string) string
		left int // bytes on either side
	}{
		{"as it is", func(s string) string { return s }, 1},
		{"percent-encoded", url.QueryEscape, 3},
		{"in JSON of PHP", strings.NewReplacer("/", `\/`).Replace, 2},
		{"in JSON, by number", strings.NewReplacer("+", `\u002b`, "=", `\u003d`).Replace, 6},
		{"in HTML", strings.NewReplacer("+", "&#43;", "/", "&#x2F;").Replace, 6},
		{"lines of 76, as MIME has", wrap("\r\n", 76), 4 + 2},
		{"lines of 64, as PEM has", wrap("\n", 64), 4 + 1},
		{"lines of 60 in JSON", wrap(`\n`, 60), 4 + 2},
		{"lines of 60 in JSON in JSON", wrap(`\\n`, 60), 4 + 3},
		{"lines of 19 in a form", wrap("%0D%0A", 19), 4 + 6},
	}
	secrets := []string{`sk-live_0123456789?>?>?>abcdefXYZ`, `~~~~zzzz!@#$%^&*()ZYXWVUTSRQponml`}
	scrubbers := []*scrub.Scrubber{scrubber(secrets[0]), scrubber(secrets[1])}
	for alphabet, enc := range map[string]*base64.Encoding{"standard": base64.StdEncoding, "URL": base64.URLEncoding} {
		for _, f := range forms {
			t.Run(alphabet+" "+f.name, func(t *testing.T) {
				for before := range 80 {
					for after := range 3 {
						var heads, tails []string
						for i, secret := range secrets {
							text := f.form(enc.EncodeToString([]byte(strings.Repeat("u", before) + secret + strings.Repeat(":", after))))
							got, hits := scrubbed(t, scrubbers[i], iotest.HalfReader(strings.NewReader(text)))
							if hits != 1 || len(got) != len(text) {
								t.Fatalf("%d before, %d after: %d hits in %s: %s", before, after, hits, text, got)
							}
							head, rest, _ := strings.Cut(got, "*")
							heads, tails = append(heads, head), append(tails, strings.TrimLeft(rest, "*"))
							if strings.Contains(tails[len(tails)-1], "*") {
								t.Fatalf("%d before, %d after: a gap in %s", before, after, got)
							}
						}
						same := 0
						for same < min(len(heads[0]), len(heads[1])) && heads[0][same] == heads[1][same] {
							same++
						}
						if left := max(len(heads[0]), len(heads[1])) - same; left > f.left {
							t.Errorf("%d before, %d after: %q, %q", before, after, heads[0], heads[1])
						}
						same = 0
						for same < min(len(tails[0]), len(tails[1])) && tails[0][len(tails[0])-1-same] == tails[1][len(tails[1])-1-same] {
							same++
						}
						if left := max(len(tails[0]), len(tails[1])) - same; left > f.left {
							t.Errorf("%d before, %d after: %q, %q", before, after, tails[0], tails[1])
						}
					}
				}
			})
		}
	}
}

func TestScrubHexInLines(t *testing.T) {
	const secret = "sk-live_0123456789abcdefXYZ"
	for before := range 30 {
		digits := hex.EncodeToString([]byte(strings.Repeat("u", before) + secret + ":"))
		text := digits
		if len(text) > 60 {
			text = text[:60] + "\n" + text[60:]
		}
		got, hits := scrubbed(t, scrubber(secret), strings.NewReader(text))
		left := strings.NewReplacer("75", "", "3a", "", "*", "", "\n", "").Replace(got)
		if hits != 1 || len(left) > 3 {
			t.Errorf("%d before: %d hits, %q", before, hits, got)
		}
	}
}
