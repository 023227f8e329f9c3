package scrub_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"

	"sallyport/gateway/credential/scrub"
)

// spelled lists every way to write an ASCII character, as it is left out.
func spelled(c byte) (all []string) {
	lower, upper := fmt.Sprintf("%02x", c), fmt.Sprintf("%02X", c)
	for _, digits := range []string{lower, upper} {
		all = append(all, "%"+digits, "%25"+digits, "%2525"+digits)
	}
	var entities []string
	for width := range 8 {
		entities = append(entities, fmt.Sprintf("#%0*d;", width, c),
			fmt.Sprintf("#x%0*x;", width, c), fmt.Sprintf("#x%0*X;", width, c), fmt.Sprintf("#X%0*x;", width, c), fmt.Sprintf("#X%0*X;", width, c))
	}
	for name, of := range map[string]byte{"amp;": '&', "lt;": '<', "gt;": '>', "quot;": '"', "apos;": '\''} {
		if of == c {
			entities = append(entities, name)
		}
	}
	for _, e := range entities {
		all = append(all, "&"+e, "&amp;"+e, "&amp;amp;"+e)
	}
	escapes := []string{"u00" + lower, "u00" + upper, "x" + lower, "x" + upper}
	if at := strings.IndexByte("\b\f\n\r\t", c); at >= 0 {
		escapes = append(escapes, "bfnrt"[at:at+1])
	}
	if strings.IndexByte(" !\"#$%&'()*+,-./:;<=>?@[]^_`{|}~", c) >= 0 {
		escapes = append(escapes, string(c))
	}
	for run := 1; run <= 8; run++ {
		for _, e := range escapes {
			all = append(all, strings.Repeat(`\`, run)+e)
		}
	}
	switch c {
	case '\\':
		all = append(all, `\\`, `\\\\`, `\\\\\\\\`)
	case '\n':
		all = append(all, "\r\n")
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// spellings is spelled for all characters, by what they begin with, but as they
// are.
var spellings = func() (table [128]map[byte][]string) {
	for c := range table {
		table[c] = map[byte][]string{}
		for _, s := range spelled(byte(c)) {
			table[c][s[0]] = append(table[c][s[0]], s)
		}
	}
	return table
}()

type reference struct {
	text        string
	fold, lines bool
	longest     int // that an occurrence may be
}

// references are the forms of a secret, and of its long lines.
func references(secret string) (all []reference) {
	longest := 20 * len(secret)
	all = forms(strings.TrimSpace(secret), longest)
	if strings.Contains(secret, "\n") {
		for line := range strings.Lines(secret) {
			if line = strings.TrimSpace(line); len(line) >= 16 && !strings.HasPrefix(line, "-----") {
				all = append(all, forms(line, longest)...)
			}
		}
	}
	return all
}

func forms(secret string, longest int) (all []reference) {
	wrapped := func(text string, fold bool) {
		all = append(all, reference{text, fold, len(text) >= 24, longest})
		if len(text) >= 24 {
			all = append(all, reference{text[3:], fold, true, longest})
		}
	}
	all = append(all, reference{text: secret, longest: longest}, reference{text: strings.ReplaceAll(secret, " ", "+"), longest: longest})
	wrapped(hex.EncodeToString([]byte(secret)), true)
	for skip := range 3 {
		digits := base64.RawStdEncoding.EncodeToString([]byte(strings.Repeat("\x00", skip) + secret))
		digits = digits[[]int{0, 2, 3}[skip]:]
		if (skip+len(secret))%3 != 0 {
			digits = digits[:len(digits)-1] // it holds bits of what comes next
		}
		wrapped(digits, false)
		wrapped(strings.NewReplacer("+", "-", "/", "_").Replace(digits), false)
	}
	return all
}

// end returns where the longest occurrence ends that a text begins with, or 0:
// by trying everything.
func (r reference) end(text string) (end int) {
	text = text[:min(len(text), r.longest)]
	ends := map[int]bool{0: true} // of what has been followed so far
	for i := 0; len(ends) > 0; i++ {
		if r.lines && i >= 4 && i < len(r.text) {
			for more := true; more; {
				more = false
				for at := range ends {
					for _, to := range append(after(text, at, '\n'), after(text, at, '\r')...) {
						if to != at+1 || text[at] == '\n' {
							more = more || !ends[to]
							ends[to] = true
						}
					}
				}
			}
		}
		if i == len(r.text) {
			for at := range ends {
				end = max(end, at)
			}
			return end
		}
		next := map[int]bool{}
		for at := range ends {
			for _, c := range []byte{r.text[i], strings.ToUpper(r.text[i : i+1])[0]} {
				if c == r.text[i] || r.fold {
					for _, to := range after(text, at, c) {
						next[to] = true
					}
				}
			}
		}
		ends = next
	}
	return 0
}

// after returns where a character ends that begins at a place in a text, in any
// spelling.
func after(text string, at int, c byte) (ends []int) {
	if at == len(text) {
		return nil
	}
	if text[at] == c {
		ends = append(ends, at+1)
	}
	for _, s := range spellings[c][text[at]] {
		if strings.HasPrefix(text[at:], s) {
			ends = append(ends, at+len(s))
		}
	}
	return ends
}

// scrubSlowly is what a Scrubber does to a whole text, in the plainest way.
func scrubSlowly(text []byte, secrets ...string) (string, int) {
	clean := []byte(string(text))
	hits, covered := 0, 0
	var all []reference
	for _, s := range secrets {
		all = append(all, references(s)...)
	}
	for at := range text {
		end := 0
		for _, r := range all {
			if n := r.end(string(text[at:])); n > 0 {
				end = max(end, at+n)
			}
		}
		if end == 0 {
			continue
		}
		if at >= covered {
			hits++
		}
		covered = max(covered, end)
		copy(clean[at:end], strings.Repeat("*", end-at))
	}
	return string(clean), hits
}

// asSlowly compares what a Scrubber has made of a body in pieces with what
// scrubSlowly makes of the whole. Where the body has lines, each may have been
// a text by itself.
func asSlowly(got string, hits int, body []byte, secrets ...string) (want string, wantHits int, ok bool) {
	want, wantHits = scrubSlowly(body, secrets...)
	if !bytes.ContainsRune(body, '\n') {
		return want, wantHits, got == want && hits == wantHits
	}
	var least string
	for line := range bytes.Lines(body) {
		clean, _ := scrubSlowly(line, secrets...)
		least += clean
	}
	if len(got) != len(want) {
		return want, wantHits, false
	}
	for i := range got {
		if got[i] != want[i] && (got[i] != body[i] || least[i] != body[i]) {
			return want, wantHits, false
		}
	}
	return want, wantHits, true
}

// Secrets of characters that are also written in escapes are the hard ones.
func TestSpellingsAtRandom(t *testing.T) {
	found := 0
	for seed := range uint64(300) {
		s := newSpeller(seed)
		secret := s.secret()
		body := s.body(secret, s.filler(secret))
		got, hits := scrubbed(t, scrubber(secret), newCutter(body, seed))
		if want, wantHits, ok := asSlowly(got, hits, body, secret); !ok {
			t.Fatalf("secret %q, body %q:\n got %q, %d hits\nwant %q, %d hits", secret, body, got, hits, want, wantHits)
		}
		found += hits
	}
	if found < 250 {
		t.Errorf("no more than %d hits", found)
	}
}

// FuzzSpellings writes secrets in mixed spellings among other text, and compares
// what becomes of it, cut in pieces, with what scrubSlowly makes of the whole.
func FuzzSpellings(f *testing.F) {
	f.Add("sk-12345678", []byte("\x00\x01\x02 and more"), uint64(1))
	f.Add(`a"b&c/d\e<f>`, []byte(`\\\"&amp;%25`), uint64(2))
	f.Add("correct horse battery", []byte("+%20\r\n"), uint64(3))
	f.Add(`\\\\\\\\\\`, []byte(`\\\\\\\\\\\\\\\\`), uint64(4))
	f.Add("%%%%25%41&amp;", []byte(`%2525`), uint64(5))
	f.Add("-----BEGIN\nABCDEF\n", []byte("\r\n\\n"), uint64(6))
	f.Add("0123456789012345678901234567890123456789", []byte("MDEyMzQ1Njc4OTAxMjM0NTY3\nODkwMTIzNDU2Nzg5MDEyMzQ1Njc4OQ=="), uint64(7))
	f.Fuzz(func(t *testing.T, secret string, filler []byte, seed uint64) {
		trimmed := strings.TrimSpace(secret)
		if len(trimmed) < scrub.MinLength || len(secret) > 48 || len(filler) > 96 || strings.ContainsFunc(secret, func(r rune) bool { return r >= 0x80 }) {
			t.Skip("no secret of a length that is tried")
		}
		body := newSpeller(seed).body(trimmed, filler)
		got, hits := scrubbed(t, scrubber(secret), newCutter(body, seed))
		if want, wantHits, ok := asSlowly(got, hits, body, secret); !ok {
			t.Errorf("secret %q, body %q:\n got %q, %d hits\nwant %q, %d hits", secret, body, got, hits, want, wantHits)
		}
	})
}
