package scrub

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// spelled writes a text with some characters escaped, and with line ends in digits.
func spelled(rnd *rand.Rand, text string, lines bool) string {
	var b strings.Builder
	often := rnd.IntN(12)
	one := rnd.IntN(9)
	for i := range len(text) {
		c := text[i]
		if lines && i >= wrap && rnd.IntN(20) == 0 {
			b.WriteString([]string{"\n", "\r\n", `\n`, `\r\n`, `\\n`, "&#10;", "%0D%0A", "\n\n", "\n%0a"}[rnd.IntN(9)])
		}
		if often == 0 || rnd.IntN(often) > 0 {
			b.WriteByte(c)
			continue
		}
		how := one
		if rnd.IntN(8) == 0 {
			how = rnd.IntN(9)
		}
		switch how {
		case 0:
			fmt.Fprintf(&b, "%%%02x", c)
		case 1:
			fmt.Fprintf(&b, "%%25%02X", c)
		case 2:
			fmt.Fprintf(&b, "%%2525%02x", c)
		case 3:
			fmt.Fprintf(&b, `\u%04x`, c)
		case 4:
			fmt.Fprintf(&b, `\\\\x%02x`, c)
		case 5:
			fmt.Fprintf(&b, "&#%03d;", c)
		case 6:
			fmt.Fprintf(&b, "&amp;#x%x;", c)
		case 7:
			if alphanumeric(c) {
				b.WriteByte(c)
			} else {
				b.WriteString(`\` + string(c))
			}
		default:
			b.WriteString(map[byte]string{'<': "&lt;", '>': "&amp;gt;", '"': "&quot;", '\'': "&apos;"}[c])
			if !strings.ContainsRune(`<>"'`, rune(c)) {
				b.WriteByte(c)
			}
		}
	}
	return b.String()
}

// Windows find all that there is, as a search of everything for everything does.
func TestWindowsHideNothing(t *testing.T) {
	const alphabet = `abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/=-_ <"2525252525nnnuuuxx`
	found := 0
	for seed := range uint64(2000) {
		rnd := rand.New(rand.NewPCG(seed, 4))
		random := func(n int) string {
			b := make([]byte, n)
			for i := range b {
				b[i] = alphabet[rnd.IntN(len(alphabet))]
			}
			return string(b)
		}
		secret := random(MinLength + rnd.IntN(60))
		patterns := spellings(secret, stretch*len(secret), known{head: rnd.IntN(2) * rnd.IntN(len(secret)), tail: public(secret)})
		with := newIndex(patterns, make([]Found, len(patterns)))
		all := make([]uint16, len(patterns))
		for i := range all {
			all[i] = uint16(i)
		}
		without := newMatcher(patterns, all...)
		var text strings.Builder
		for range rnd.IntN(4) {
			text.WriteString(spelled(rnd, random(rnd.IntN(80)), rnd.IntN(2) == 0))
			text.WriteString([]string{"", "%", "%25", "%2525", `\`, `\\`, `\u`, `\ud83d`, `\x`, "&", "&#", "&amp;", "&amp", "\n", "\r\n", `\\\\\\\\\`}[rnd.IntN(16)])
			switch n := rnd.IntN(6); n {
			case 0, 1:
				text.WriteString(spelled(rnd, secret, false))
			case 2:
				text.WriteString(spelled(rnd, hex.EncodeToString([]byte(secret)), true))
			case 3:
				text.WriteString(secret)
			default:
				text.WriteString(spelled(rnd, base64.StdEncoding.EncodeToString([]byte(random(n-3)+secret+random(rnd.IntN(3)))), true))
			}
		}
		data := []byte(text.String())
		limit := 1 + rnd.IntN(len(data)+1)
		a, b := search{index: with}, search{index: with, data: data, limit: limit}
		a.run(data, limit)
		b.match(without, 0, len(data))
		order := func(a, b span) int { return 1e6*(a.from-b.from) + 1e3*(a.to-b.to) + int(a.pattern) - int(b.pattern) }
		slices.SortFunc(a.spans, order)
		slices.SortFunc(b.spans, order)
		a.spans = slices.Compact(a.spans)
		if found += len(b.spans); !slices.Equal(a.spans, b.spans) {
			t.Fatalf("seed %d, %q in %q: %v, without a gate %v", seed, secret, data, a.spans, b.spans)
		}
	}
	if found < 500 {
		t.Errorf("hardly any occurrence: %d", found)
	}
}

func each(format, text string) string {
	var b strings.Builder
	for _, c := range []byte(text) {
		fmt.Fprintf(&b, format, c)
	}
	return b.String()
}
