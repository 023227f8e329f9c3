package scrub_test

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"sallyport/gateway/credential/scrub"
)

// How much a search does is the same for a text full of parts of the value and for
// one full of parts of another: time tells none of them.
func TestWorkTellsNoPart(t *testing.T) {
	const alphabet = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 11))
		random := func(n int) string {
			b := make([]byte, n)
			for i := range b {
				b[i] = alphabet[rnd.IntN(len(alphabet))]
			}
			return string(b)
		}
		n := scrub.MinLength + rnd.IntN(60)
		one, two := random(n), random(n)
		form := []func(string) string{
			func(s string) string { return s },
			func(s string) string { return hex.EncodeToString([]byte(s)) },
			func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) },
		}[rnd.IntN(3)]
		// Both have their parts at the same places.
		var a, b strings.Builder
		for a.Len() < 16<<10 {
			x, y := form(one), form(two)
			size := 3 + rnd.IntN(scrub.MinLength-3)
			at := rnd.IntN(len(x) - size + 1)
			if rnd.IntN(2) == 0 {
				at = len(x) - size
			}
			between := "~" + random(rnd.IntN(3)) + "~"
			a.WriteString(x[at:at+size] + between)
			b.WriteString(y[at:at+size] + between)
		}
		s := scrubber(one, "Bearer "+one)
		windows, compared := scrub.Work(s, []byte(a.String()))
		others, never := scrub.Work(s, []byte(b.String()))
		if windows != others || windows[0] < a.Len()/25 || compared != 0 || never != 0 {
			t.Errorf("%q: %v and %d compared; %v and %d for another value's parts", one, windows, compared, others, never)
		}
		if _, compared := scrub.Work(s, []byte(a.String()+one)); compared == 0 {
			t.Errorf("%q: not compared where it is", one)
		}
	}
}

// alike returns another value that differs from one in each byte, but not in which of
// its bytes an escape can be made of.
func alike(rnd *rand.Rand, value string) string {
	other := []byte(value)
	for i, c := range other {
		for _, class := range []string{"abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "0123456789", `%\&;`, "\xc3\xe9\xfc"} {
			if strings.IndexByte(class, c) >= 0 {
				for other[i] == c {
					other[i] = class[rnd.IntN(len(class))]
				}
			}
		}
	}
	return string(other)
}

// The same text takes a search for a value that it has many parts of, in escapes and
// beside them, the same work as one for another value: of whatever length, and with
// characters in it that escapes are made of.
func TestEscapesTellNoPart(t *testing.T) {
	alphabets := []string{
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789",
		`abcdefghijkABCDEFGHIJK0123456789%\&;`,
		"abcdefghijkABCDEFGHIJK0123456789\xc3\xe9\xfc",
	}
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 12))
		alphabet := alphabets[seed%3]
		value := make([]byte, scrub.MinLength+rnd.IntN(50))
		for i := range value {
			value[i] = alphabet[rnd.IntN(len(alphabet))]
		}
		one := string(value)
		two := alike(rnd, one)
		forms := []string{one, hex.EncodeToString(value), base64.StdEncoding.EncodeToString(value), base64.StdEncoding.EncodeToString([]byte("x" + one))}
		var text strings.Builder
		for text.Len() < 8<<10 {
			form := forms[rnd.IntN(len(forms))]
			part := form[:rnd.IntN(scrub.MinLength)]
			if len(one) >= 16 {
				part = form[:rnd.IntN(12)]
			}
			if rnd.IntN(2) == 0 {
				at := rnd.IntN(len(form) - scrub.MinLength + 2)
				part = form[at : at+scrub.MinLength-1]
			}
			format := []string{"%%%02x", `\u%04x`, `\\x%02x`, "&#%d;", "&amp;#x%x;", "%c"}[rnd.IntN(6)]
			some := rnd.IntN(4)
			for i, c := range []byte(part) {
				if i%4 <= some && c < 0x80 {
					fmt.Fprintf(&text, format, c)
				} else {
					text.WriteByte(c)
				}
			}
			if alphabet == alphabets[1] {
				text.WriteByte('~') // what follows could be the last of it
			}
			text.WriteString([]string{"~", "\n", `\n\n`, `\/`, "%20", "&#10;", "&lt;", "\r\n", strings.Repeat(`\n`, 40)}[rnd.IntN(9)] + "~")
		}
		work, hits := scrub.Work(scrubber(one, "Bearer "+one), []byte(text.String()))
		other, _ := scrub.Work(scrubber(two, "Bearer "+two), []byte(text.String()))
		if work != other || hits != 0 {
			t.Errorf("seed %d, %q: %v, and %v for %q, of which no part is there", seed, one, work, other, two)
		}
		// The whole is found beside the parts.
		s := scrubber(one)
		if !s.In(text.String()+each("%%%02x", one)) || !s.In(text.String()+each(`\x%02x`, forms[1])) {
			t.Errorf("seed %d: %q is not found", seed, one)
		}
	}
}

// The last line of a PEM file is public: with it before them, the bytes before are not
// guessed one by one.
func TestWorkTellsNoneBeforeAPublicEnd(t *testing.T) {
	const alphabet = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	rnd := rand.New(rand.NewPCG(1, 13))
	lines := "-----BEGIN RSA PRIVATE KEY-----"
	for i := range 64 * 4 {
		if i%64 == 0 {
			lines += "\n"
		}
		lines += string(alphabet[rnd.IntN(len(alphabet))])
	}
	for name, key := range map[string]string{
		"lines":  lines + "\n-----END RSA PRIVATE KEY-----\n",
		"spaces": strings.ReplaceAll(lines, "\n", " ") + " -----END RSA PRIVATE KEY-----",
		"base64": base64.StdEncoding.EncodeToString([]byte(lines + "\n-----END RSA PRIVATE KEY-----\n")),
	} {
		s := scrubber(key)
		value := strings.TrimSpace(key)
		for form, text := range map[string]string{
			"as it is": value, "hexadecimal": hex.EncodeToString([]byte(value)), "base64": base64.StdEncoding.EncodeToString([]byte(value)),
			"in JSON": strings.ReplaceAll(value, "\n", `\n`), "escaped": each(`\u%04x`, value),
		} {
			public := len("\n-----END RSA PRIVATE KEY-----")
			unit := len(text) / len(value)
			if name == "base64" {
				public = public*4/3 + 4
			}
			if form == "base64" {
				public = public*4/3 + 4
			}
			for more := range 8 {
				part := text[len(text)-(public+more)*unit:]
				if _, hits := scrub.Work(s, []byte("~"+part+"~")); hits != 0 {
					t.Errorf("%s, %s: %d windows of the value are in %q", name, form, hits, part)
				}
			}
			if _, hits := scrub.Work(s, []byte(text)); hits == 0 || !s.In(text) {
				t.Errorf("%s, %s: not found", name, form)
			}
		}
	}
}

// Two digits of hexadecimal are one byte: less than twelve of a secret make no window in
// any form of it, of a short one less than nine: 16 random bytes that are digits themselves
// are not guessed in parts.
func TestNoFewBytesMakeAWindow(t *testing.T) {
	for seed := range uint64(100) {
		rnd := rand.New(rand.NewPCG(seed, 14))
		random := make([]byte, 16)
		for i := range random {
			random[i] = byte(rnd.Uint32())
		}
		secret := hex.EncodeToString(random)[:16+rnd.IntN(17)]
		most := 11
		if len(secret) < 28 {
			most = 8 // windows have 12 digits of base64 where a line's rest is shorter than 32
		}
		s := scrubber(secret, "Bearer "+secret)
		for from := range len(secret) - most {
			part := secret[from : from+most]
			for form, text := range map[string]string{
				"as it is": part, "hexadecimal": hex.EncodeToString([]byte(part)), "escaped": each("%%%02x", hex.EncodeToString([]byte(part))),
				"base64": base64.StdEncoding.EncodeToString([]byte(strings.Repeat("x", from%3) + part)),
			} {
				for at := range 24 {
					if _, hits := scrub.Work(s, []byte(strings.Repeat("~", at)+text+"~")); hits != 0 {
						t.Fatalf("%d bytes of %d in %s make a window", most, len(secret), form)
					}
				}
			}
		}
	}
}
