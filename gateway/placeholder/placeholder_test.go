package placeholder_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"testing/iotest"

	"sallyport/gateway/placeholder"
	"sallyport/internal/test/must"
	"sallyport/policy"
)

var key = []byte("a key of some length")

// held is the placeholder of a credential for sandbox s1.
func held(t testing.TB, credential, like string) placeholder.Held {
	t.Helper()
	shape, err := policy.Placeholder{Like: like}.Shape(credential)
	must.OK(t, err)
	return placeholder.Derive(key, "s1", credential, shape)
}

func TestDerive(t *testing.T) {
	for like, want := range map[string]string{
		"":                               `^sallyport:k:[A-Za-z0-9]{32}$`,
		"sk-proj-":                       `^sk-proj-[A-Za-z0-9]{40}$`,
		"sk-ant-api03-[A-Za-z0-9_-]{95}": `^sk-ant-api03-[A-Za-z0-9_-]{95}$`,
		"[0-9a-f]{32}":                   `^[0-9a-f]{32}$`,
		"ghp_[A-Za-z0-9]{36}":            `^ghp_[A-Za-z0-9]{36}$`,
	} {
		h := held(t, "k", like)
		if !regexp.MustCompile(want).MatchString(h.Text) {
			t.Errorf("like %q is %q", like, h.Text)
		}
		shape, _ := policy.Placeholder{Like: like}.Shape("k")
		seen := map[string]bool{h.Text: true}
		for _, other := range []placeholder.Held{
			placeholder.Derive(key, "s2", "k", shape), placeholder.Derive(key, "s1", "k2", shape), placeholder.Derive([]byte("other"), "s1", "k", shape),
		} {
			if seen[other.Text] {
				t.Errorf("%q is that of something else too", other.Text)
			}
			seen[other.Text] = true
		}
		if again := held(t, "k", like); again != h {
			t.Errorf("%q is another the next time: %q", h.Text, again.Text)
		}
	}
	for _, bad := range []string{"[0-9]{32}", "a:b", "a[a-z]{20}", "[a-z]+", "[a-z]{30}x", "[^a]{60}", "[é]{60}", "[a-z]{600}", "[a-z"} {
		if s, err := (policy.Placeholder{Like: bad}).Shape("k"); err == nil {
			t.Errorf("like %q is taken: %+v", bad, s)
		}
	}
}

// encoders spell the characters of a placeholder in a kind of text.
var encoders = map[placeholder.Kind]func(c byte, r *rand.Rand) string{
	placeholder.Raw: func(c byte, _ *rand.Rand) string { return string(c) },
	placeholder.Form: func(c byte, r *rand.Rand) string {
		return []string{string(c), fmt.Sprintf("%%%02x", c), fmt.Sprintf("%%%02X", c)}[r.IntN(3)]
	},
	placeholder.JSON: func(c byte, r *rand.Rand) string {
		return []string{string(c), fmt.Sprintf(`\u%04x`, c), fmt.Sprintf(`\u%04X`, c)}[r.IntN(3)]
	},
}

// reference replaces placeholders in a text that it has whole.
func reference(text string, k placeholder.Kind, all []placeholder.Held) string {
	type unit struct {
		c    byte
		text string
	}
	var units []unit
	escape := regexp.MustCompile(`^$`)
	switch k {
	case placeholder.Form:
		escape = regexp.MustCompile(`^%[0-9a-fA-F]{2}`)
	case placeholder.JSON:
		escape = regexp.MustCompile(`^\\u00[0-9a-fA-F]{2}`)
	}
	for text != "" {
		n, c := 1, text[0]
		if e := escape.FindString(text); e != "" {
			n = len(e)
			_, _ = fmt.Sscanf(e[n-2:], "%x", &c)
		} else if k == placeholder.JSON && c == '\\' && len(text) > 1 {
			n, c = 2, 0
		}
		units, text = append(units, unit{c, text[:n]}), text[n:]
	}
	var plain []byte
	for _, u := range units {
		plain = append(plain, u.c)
	}
	var out strings.Builder
next:
	for i := 0; i < len(units); i++ {
		for _, h := range all {
			if bytes.HasPrefix(plain[i:], []byte(h.Text)) {
				out.WriteString("<" + h.Credential + ">")
				i += len(h.Text) - 1
				continue next
			}
		}
		out.WriteString(units[i].text)
	}
	return out.String()
}

func instead(name string) ([]byte, error) { return []byte("<" + name + ">"), nil }

// passed is what a text becomes that comes in pieces.
func passed(t testing.TB, set *placeholder.Set, k placeholder.Kind, pieces ...string) string {
	t.Helper()
	var out strings.Builder
	s := set.Stream(k, instead)
	for i, p := range pieces {
		s.Feed([]byte(p), i == len(pieces)-1)
		for {
			b, err := s.Next()
			must.OK(t, err)
			if b == nil {
				break
			}
			out.Write(b)
		}
	}
	return out.String()
}

// A placeholder is replaced wherever the text is cut.
func TestEveryBoundary(t *testing.T) {
	a, b := held(t, "a", ""), held(t, "b", "sk-")
	set := placeholder.New([]placeholder.Held{a, b})
	r := rand.New(rand.NewPCG(1, 2))
	for kind, encode := range encoders {
		var text strings.Builder
		for _, h := range []placeholder.Held{a, b, a} {
			text.WriteString(`{"s": "sallyportsk-`)
			for _, c := range []byte(h.Text) {
				text.WriteString(encode(c, r))
			}
			text.WriteString(`\n"}, `)
		}
		whole := text.String()
		want := reference(whole, kind, []placeholder.Held{a, b})
		if strings.Count(want, "<") != 3 {
			t.Fatalf("the reference finds no three: %s", want)
		}
		for i := range whole {
			if got := passed(t, set, kind, whole[:i], whole[i:]); got != want {
				t.Fatalf("kind %d, cut at %d: %q, want %q", kind, i, got, want)
			}
		}
		if got := passed(t, set, kind, strings.Split(whole, "")...); got != want {
			t.Errorf("kind %d, byte by byte: %q", kind, got)
		}
		got, err := io.ReadAll(placeholder.NewReader(set.Stream(kind, instead), io.NopCloser(iotest.OneByteReader(strings.NewReader(whole)))))
		if must.OK(t, err); string(got) != want {
			t.Errorf("kind %d, read: %q", kind, got)
		}
	}
}

// Where a placeholder may not leave, its end does not, and the public text at most and what
// follows it in the same piece.
func TestBrokenOff(t *testing.T) {
	h := held(t, "a", "sk-proj-")
	set := placeholder.New([]placeholder.Held{h})
	text := "some text before it sk-proj-x " + h.Text + " and after"
	end := strings.Index(text, h.Text) + len(h.Text)
	for size := 1; size < len(text); size++ {
		left := 0
		s := set.Stream(placeholder.Raw, nil)
		var err error
		for at := 0; at < len(text) && err == nil; at += size {
			s.Feed([]byte(text[at:min(at+size, len(text))]), false)
			for {
				var b []byte
				if b, err = s.Next(); b == nil {
					break
				}
				if left += len(b); !strings.HasPrefix(text[left-len(b):], string(b)) {
					t.Fatalf("pieces of %d: %q is not of the text", size, b)
				}
			}
		}
		var found *placeholder.FoundError
		if !errors.As(err, &found) || found.Credential != "a" {
			t.Fatalf("pieces of %d: %v", size, err)
		}
		if left > end-len(h.Text)+len("sk-proj-") {
			t.Errorf("pieces of %d: %d bytes of the placeholder left", size, left-(end-len(h.Text)))
		}
	}
}

// Bytes that begin no placeholder leave at once.
func TestNothingElseIsHeldBack(t *testing.T) {
	set := placeholder.New([]placeholder.Held{held(t, "a", "")})
	s := set.Stream(placeholder.Raw, nil)
	for _, p := range []string{"a message that ends with s", "a", "llypor", "x", "sallyport:a:not one\n"} {
		s.Feed([]byte(p), false)
		if b, err := s.Next(); err != nil || string(b) != p {
			t.Errorf("of %q left %q, %v", p, b, err)
		}
	}
}

func TestSpelling(t *testing.T) {
	h := held(t, "a", "")
	set := placeholder.New([]placeholder.Held{h})
	for kind, text := range map[placeholder.Kind]string{
		placeholder.Form: url.Values{"client secret": {h.Text}}.Encode(),
		placeholder.JSON: func() string { b, _ := json.Marshal(map[string]string{"k": "é\n" + h.Text}); return string(b) }(),
	} {
		if got := passed(t, set, kind, text); !strings.Contains(got, "<a>") {
			t.Errorf("%q is %q", text, got)
		}
	}
	// A backslash that is escaped itself begins no escape.
	for _, text := range []string{`\\u0073` + h.Text[1:], `\` + h.Text} {
		if got := passed(t, set, placeholder.JSON, text); got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
	wrong := []byte(h.Text)
	wrong[len(wrong)-1] ^= 1
	if got := passed(t, set, placeholder.Raw, string(wrong)); got != string(wrong) {
		t.Error("another one is replaced")
	}
}

func FuzzStream(f *testing.F) {
	a, b, c := held(f, "a", ""), held(f, "b", "sk-"), held(f, "c", "[0-9a-f]{32}")
	all := []placeholder.Held{a, b, c}
	set := placeholder.New(all)
	for seed := range uint64(50) {
		f.Add(seed, byte(seed), []byte(`"\`))
	}
	f.Add(uint64(37), byte(2), []byte("0000\\")) // an escape is cut in two
	f.Fuzz(func(t *testing.T, seed uint64, kind byte, noise []byte) {
		k := placeholder.Kind(kind % 3)
		r := rand.New(rand.NewPCG(seed, 1))
		var text strings.Builder
		for range r.IntN(12) {
			switch h := all[r.IntN(3)]; r.IntN(6) {
			case 0, 1, 2:
				part := h.Text
				if r.IntN(3) == 0 {
					part = part[:r.IntN(len(part))]
				}
				for _, c := range []byte(part) {
					text.WriteString(encoders[k](c, r))
				}
			case 3:
				text.Write(noise)
			case 4:
				text.WriteString([]string{`\`, `%`, `\\`, `\u00`, `%7`, "s", "sallyport", `\u0073`}[r.IntN(8)])
			case 5:
				text.WriteString(strings.Repeat(string(noise), r.IntN(40)))
			}
		}
		whole := text.String()
		want := reference(whole, k, all)
		var pieces []string
		for rest := whole; rest != ""; {
			n := 1 + r.IntN(min(len(rest), 1+r.IntN(400)))
			pieces, rest = append(pieces, rest[:n]), rest[n:]
		}
		if got := passed(t, set, k, append(pieces, "")...); got != want {
			t.Errorf("kind %d: %q in %d pieces is\n%q, want\n%q", k, whole, len(pieces), got, want)
		}
		if got := passed(t, set, k, whole); got != want {
			t.Errorf("kind %d: %q is\n%q, want\n%q", k, whole, got, want)
		}
	})
}

func BenchmarkReader(b *testing.B) {
	set := placeholder.New([]placeholder.Held{held(b, "a", ""), held(b, "b", "sk-proj-"), held(b, "c", "sk-ant-api03-[A-Za-z0-9_-]{95}")})
	random := make([]byte, 1<<20)
	for i := range random {
		random[i] = byte(rand.Uint32())
	}
	prose := bytes.Repeat([]byte(`{"role": "user", "content": "Say hello to the sailors in the port.\n"}, `), 1<<14)
	for _, c := range []struct {
		name string
		text []byte
		kind placeholder.Kind
	}{{"octets", random, placeholder.Raw}, {"text", prose, placeholder.Raw}, {"json", prose, placeholder.JSON}, {"escaped", append([]byte(`\u00e9`), prose...), placeholder.JSON}, {"form", prose, placeholder.Form}} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(int64(len(c.text)))
			b.ReportAllocs()
			buf := make([]byte, 32<<10)
			for b.Loop() {
				r := placeholder.NewReader(set.Stream(c.kind, nil), io.NopCloser(bytes.NewReader(c.text)))
				_, _ = io.CopyBuffer(io.Discard, struct{ io.Reader }{r}, buf)
			}
		})
	}
}
