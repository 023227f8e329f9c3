package scrub_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/iotest"

	"sallyport/gateway/credential/scrub"
	"sallyport/internal/test/must"
)

func scrubber(values ...string) *scrub.Scrubber {
	list := make([]scrub.Value, len(values))
	for i, v := range values {
		list[i].Text = v
	}
	return scrub.New(list)
}

// inHeader scrubs a header and counts.
func inHeader(s *scrub.Scrubber, h http.Header) (hits int) {
	s.Header(h, func(scrub.Found) { hits++ })
	return hits
}

func scrubbed(t testing.TB, s *scrub.Scrubber, body io.Reader) (string, int) {
	t.Helper()
	hits := 0
	got, err := io.ReadAll(s.Reader(io.NopCloser(body), func(scrub.Found) { hits++ }))
	must.OK(t, err)
	return string(got), hits
}

func stars(n int) string { return strings.Repeat("*", n) }

func TestScrubText(t *testing.T) {
	tests := []struct {
		name, body, want string
		secrets          []string
		hits             int
	}{
		{"none", "nothing here", "nothing here", []string{"sk-12345678"}, 0},
		{"no secrets", "sk-12345678", "sk-12345678", nil, 0},
		{"whole", "sk-12345678", stars(11), []string{"sk-12345678"}, 1},
		{"twice in a row", "sk-12345678sk-12345678", stars(22), []string{"sk-12345678"}, 2},
		{"overlapping itself", "abcabcabcabc", stars(12), []string{"abcabcabc"}, 1},
		{"overlapping another", "x12345678abcdefghy", "x" + stars(16) + "y", []string{"12345678abcd", "5678abcdefgh"}, 1},
		{"one within another", "12345678abcdefgh", stars(16), []string{"345678ab", "12345678abcdefgh"}, 1},
		{"begun only", "sk-1234567", "sk-1234567", []string{"sk-12345678"}, 0},
		{"begun twice", "sk-sk-12345678", "sk-" + stars(11), []string{"sk-12345678"}, 1},
		{"shorter than the minimum", "hunter2", "hunter2", []string{"hunter2"}, 0},
		{"of the minimum", "hunter22", stars(8), []string{"hunter22"}, 1},
		{"longer than a window", strings.Repeat("0123456789", 60), stars(600), []string{strings.Repeat("0123456789", 60)}, 1},
		{"binary", "\x00\xff\xfe\x80\x00\x01\x02\x03", stars(8), []string{"\x00\xff\xfe\x80\x00\x01\x02\x03"}, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := scrubber(tt.secrets...)
			for name, body := range map[string]io.Reader{
				"whole":        strings.NewReader(tt.body),
				"byte by byte": iotest.OneByteReader(strings.NewReader(tt.body)),
				"data and EOF": iotest.DataErrReader(strings.NewReader(tt.body)),
			} {
				if got, hits := scrubbed(t, s, body); got != tt.want || hits != tt.hits {
					t.Errorf("%s: %q, %d hits, want %q, %d", name, got, hits, tt.want, tt.hits)
				}
			}
			h := http.Header{"X-Echo": {tt.body, "other"}}
			if hits := inHeader(s, h); hits != tt.hits || h["X-Echo"][0] != tt.want || h["X-Echo"][1] != "other" {
				t.Errorf("header: %q, %d hits", h, hits)
			}
		})
	}
}

// A header's name is lost in case, but for that it can hold a secret too.
func TestScrubHeaderNames(t *testing.T) {
	const key = "sk-Proj-0123456789abcdef"
	h := http.Header{}
	for _, name := range []string{key, "X-" + key + "-Y", hex.EncodeToString([]byte(key)), "X-" + base64.RawURLEncoding.EncodeToString([]byte("ab"+key))} {
		h.Set(name, "1")
	}
	h.Set("X-Sk-Proj-0123456789abcde", "1")
	if hits := inHeader(scrubber(key), h); hits != 4 || len(h) != 1 {
		t.Errorf("%d hits, left %v", hits, h)
	}
}

// A stream keeps flowing by lines. Of what has no line's end yet the same number of
// bytes waits, whatever it says.
func TestScrubStreams(t *testing.T) {
	in, out := io.Pipe()
	broken := errors.New("connection reset")
	long := strings.Repeat("x. y. ", 200)
	go func() {
		// Each write ends when it was read.
		for _, text := range []string{"data: one\n\n", "data: s", "k-123456", "78\n", "sk-1234x", "\r\nsk-12", long, "\n" + long[:230]} {
			out.Write([]byte(text))
		}
		out.CloseWithError(broken)
	}()
	body := scrubber("sk-12345678").Reader(in, nil)
	buf := make([]byte, 8192)
	for _, want := range []string{"data: one\n\n", "data: " + stars(11) + "\n", "sk-1234x\r\n", "sk-12" + long[:980], long[980:] + "\n" + long[:10]} {
		n, err := body.Read(buf)
		if err != nil || string(buf[:n]) != want {
			t.Fatalf("Read = %q, %v, want %q", buf[:n], err, want)
		}
	}
	// The tail is lost.
	if n, err := body.Read(buf); n != 0 || err != broken {
		t.Errorf("at the end: %q, %v, want %v", buf[:n], err, broken)
	}
}

// A secret broken into lines is found wherever they come apart, and so are the lines of a
// value that has some.
func TestScrubLines(t *testing.T) {
	const secret = "ghp_0123456789abcdefghijklmnopqrstuvwxyz"
	key := "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0\nBAQEFAASCBKcwggSjAgEAAo\n-----END KEY-----"
	s := scrubber(secret, key)
	coded := base64.StdEncoding.EncodeToString([]byte(`{"authorization": "Bearer ` + secret + `", "more": "` + strings.Repeat("x", 100) + `"}`))
	for _, end := range []string{"\n", "\r\n"} {
		for width := 40; width <= 80; width += 4 {
			var body, want strings.Builder
			clean, _ := scrubbed(t, s, strings.NewReader(coded))
			for at := 0; at < len(coded); at += width {
				to := min(at+width, len(coded))
				body.WriteString(coded[at:to] + end)
				want.WriteString(clean[at:to] + end)
			}
			got, hits := scrubbed(t, s, iotest.OneByteReader(strings.NewReader(body.String())))
			if strings.ReplaceAll(got, end, "") != strings.ReplaceAll(want.String(), end, "") && hits == 0 || strings.Count(got, "*") < strings.Count(clean, "*") {
				t.Errorf("lines of %d: %q", width, got)
			}
		}
		got, _ := scrubbed(t, s, iotest.OneByteReader(strings.NewReader(strings.ReplaceAll("key:\n"+key+"\n", "\n", end))))
		if strings.Contains(got, "MIIE") || strings.Contains(got, "AAo") || !strings.HasPrefix(got, "key:"+end+"-----BEGIN") {
			t.Errorf("%q", got)
		}
	}
}

// A value of short lines alone is found also where its lines come one by one.
func TestShortLines(t *testing.T) {
	const value = "pin 1234\nword abcd\nend"
	s := scrubber(value)
	got, hits := scrubbed(t, s, iotest.OneByteReader(strings.NewReader("it is:\n"+value+"\nthat was it\n")))
	if want := "it is:\n" + strings.Repeat("*", len(value)) + "\nthat was it\n"; got != want || hits != 1 {
		t.Errorf("got %q and %d hits", got, hits)
	}
}

// FuzzScrub cuts a body that echoes a secret in many forms at random places: the
// result is that of the whole, as long as the body, and holds no secret.
func FuzzScrub(f *testing.F) {
	f.Add("sk-12345678", "abcabcabcabc", uint64(1), []byte(" and "))
	f.Add("aaaaaaaaaa", "aaaaaaaab", uint64(2), []byte("a"))
	f.Add("12345678", strings.Repeat("\xe3", 700), uint64(150), []byte("\xe4")) // of 2,049, took minutes
	f.Add(`pass"wörd/+&`, "\x00\x01\x02\x03\x04\x05\x06\x07", uint64(3), []byte("%2"))
	f.Fuzz(func(t *testing.T, a, b string, seed uint64, filler []byte) {
		if len(a) < scrub.MinLength || len(b) < scrub.MinLength || len(a)+len(b)+len(filler) > 1024 || strings.Trim(a, "*") == "" || strings.Trim(b, "*") == "" {
			t.Skip("no secret of a length that is tried")
		}
		rnd := rand.New(rand.NewPCG(seed, 1))
		var body []byte
		for range 12 {
			v := []string{a, b}[rnd.IntN(2)]
			switch rnd.IntN(6) {
			case 0:
				v = base64.StdEncoding.EncodeToString([]byte(strings.Repeat("x", rnd.IntN(3)) + v))
			case 1:
				v = hex.EncodeToString([]byte(v))
			case 2:
				v = url.QueryEscape(v)
			case 3:
				v = v[:rnd.IntN(len(v))]
			}
			body = append(append(body, v...), filler...)
		}
		s := scrubber(a, b)
		want, wantHits := scrubbed(t, s, bytes.NewReader(body))
		got, hits := scrubbed(t, s, &cutter{body, rnd})
		if (got != want || hits != wantHits) && !bytes.ContainsRune(body, '\n') { // a text by itself
			t.Errorf("in chunks %q, %d hits; whole %q, %d hits", got, hits, want, wantHits)
		}
		if len(got) != len(body) {
			t.Errorf("%d bytes became %d", len(body), len(got))
		}
		for i := range got {
			if got[i] != body[i] && got[i] != '*' {
				t.Fatalf("byte %d became %q", i, got[i])
			}
		}
		for _, v := range []string{a, b} {
			// An asterisk in a secret can stand where one was written.
			if strings.Contains(v, "*") {
				continue
			}
			for name, form := range map[string]string{"raw": v, "hex": hex.EncodeToString([]byte(v)), "query": url.QueryEscape(v), "base64": base64.RawStdEncoding.EncodeToString([]byte(v))} {
				if strings.Contains(got, form) {
					t.Errorf("%s of a secret survives in %q", name, got)
				}
			}
		}
	})
}

// cutter reads a body in pieces of random length.
type cutter struct {
	rest []byte
	rnd  *rand.Rand
}

func newCutter(body []byte, seed uint64) *cutter {
	return &cutter{body, rand.New(rand.NewPCG(seed, 3))}
}

func (c *cutter) Read(p []byte) (int, error) {
	if len(c.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p, c.rest[:1+c.rnd.IntN(min(len(c.rest), 40))])
	c.rest = c.rest[n:]
	return n, nil
}

// The body must be longer than one read for the buffer's edges to be met.
func TestScrubLongBody(t *testing.T) {
	const secret = "sk-proj-0123456789abcdef"
	s := scrubber(secret, strings.Repeat("longer than all others ", 100))
	for _, at := range []int{0, 1, 32<<10 - 25, 32<<10 - 24, 32<<10 - 12, 32<<10 - 1, 32 << 10, 64<<10 - 3, 100_000} {
		body := bytes.Repeat([]byte{'k'}, 150_000)
		copy(body[at:], secret)
		want := bytes.Repeat([]byte{'k'}, 150_000)
		copy(want[at:], stars(len(secret)))
		if got, hits := scrubbed(t, s, bytes.NewReader(body)); got != string(want) || hits != 1 {
			t.Errorf("secret at %d: %d hits", at, hits)
		}
	}
}

// A text is searched in four parts at a time: the seams must not show.
func TestScrubAtEveryPlace(t *testing.T) {
	const secret = "sk-proj-0123456789abcdef"
	s := scrubber(secret)
	for at := range 2000 - len(secret) {
		body := bytes.Repeat([]byte("ab-0"), 500)
		copy(body[at:], secret)
		want := bytes.Clone(body)
		copy(want[at:], stars(len(secret)))
		got := make([]byte, 8192)
		n, err := s.Reader(io.NopCloser(bytes.NewReader(body)), nil).Read(got)
		if err != nil || !bytes.HasPrefix(want, got[:n]) || n != len(body)-20*len(secret) {
			t.Fatalf("secret at %d: %v, %q", at, err, got[:n])
		}
	}
}
