package scrub_test

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"testing"

	"sallyport/gateway/credential/scrub"
)

// Everybody knows the text before a secret, as "Bearer " is. A search of that text followed
// by a part of the secret takes no longer than without the part.
func TestWorkTellsNoneAfterWhatIsKnown(t *testing.T) {
	const (
		token    = "a8KqT3mWz0RbY5nLc7Hd"
		password = "Zp4vX9sUe2GkJ6wB"
	)
	values := func(all ...string) (list []scrub.Value) {
		for _, text := range all {
			list = append(list, scrub.Value{Text: text, Found: scrub.Found{Name: "key"}})
		}
		return list
	}
	basic := func(username string) []scrub.Value {
		pair := username + ":" + password
		coded := base64.StdEncoding.EncodeToString([]byte(pair))
		return values(password, pair, coded, "Basic "+coded)
	}
	cases := map[string]struct {
		values        []scrub.Value
		known, secret string
	}{
		"bearer":             {values(token, "Bearer "+token), "Bearer ", token},
		"header":             {values(token, "Token token="+token), "Token token=", token},
		"basic":              {basic("alice@example.com"), "alice@example.com:", password},
		"basic, of a key":    {basic("x-access-token"), "x-access-token:", password},
		"basic, a short one": {basic("git"), "git:", password},
	}
	forms := map[string]struct {
		form func(string) string
		most int // bytes of a secret that make no window
	}{
		"as it is":    {func(s string) string { return s }, 11},
		"hexadecimal": {func(s string) string { return hex.EncodeToString([]byte(s)) }, 5},
		"base64":      {func(s string) string { return base64.RawStdEncoding.EncodeToString([]byte(s)) }, 7},
		"base64 of it after a byte": {func(s string) string {
			return base64.RawStdEncoding.EncodeToString([]byte("x" + s))
		}, 7},
		"escaped": {func(s string) string { return each("%%%02x", s) }, 11},
	}
	for name, c := range cases {
		s := scrub.New(c.values)
		for form, f := range forms {
			for n := range f.most + 1 {
				part := f.form(c.known + c.secret[:n])
				for at := range 24 { // where windows are looked up
					if _, hits := scrub.Work(s, []byte(fmt.Sprintf("%*s%s~", at, "~", part))); hits != 0 {
						t.Errorf("%s, %s: %d bytes of the secret make %d windows", name, form, n, hits)
						break
					}
				}
			}
			if text := f.form(c.known + c.secret); !s.In(text) {
				t.Errorf("%s, %s: not found", name, form)
			}
		}
	}
}

// A short secret behind what is known is found across the end of a line.
func TestShortAfterWhatIsKnownInLines(t *testing.T) {
	const password = "hunter22"
	pair := "alice@example.com:" + password
	coded := base64.StdEncoding.EncodeToString([]byte(pair))
	digits := hex.EncodeToString([]byte(pair))
	s := scrubber(password, pair, coded)
	for _, text := range []string{coded, digits} {
		for at := 4; at < len(text); at++ {
			if broken := text[:at] + "\n" + text[at:]; !s.In(broken) {
				t.Errorf("%q is not found", broken)
			}
		}
	}
}
