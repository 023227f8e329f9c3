package scrub_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"sallyport/gateway/credential/scrub"
)

const later = "sk-later-9876543210-and-much-longer-than-the-other-one"

// turning gives a text in pieces and calls turn before one of them.
type turning struct {
	text string
	size int
	at   int // where turn is called
	turn func()
	read int
}

func (r *turning) Read(p []byte) (int, error) {
	if r.read == len(r.text) {
		return 0, io.EOF
	}
	end := min(r.read+r.size, len(r.text))
	if r.read < r.at {
		end = min(end, r.at)
	}
	if r.read == r.at {
		r.turn()
	}
	n := copy(p, r.text[r.read:end])
	r.read += n
	return n, nil
}

// Values that come while something is read are found from where they can first
// be, and those of before all the while, across the change too.
func TestUseAmidst(t *testing.T) {
	before := strings.Repeat("x ", 40) + token + " " + token[:20]
	after := token[20:] + " " + later + strings.Repeat(" y", 3000) + later[:30] + " " + token + later
	want := strings.Repeat("x ", 40) + stars(len(token)) + " " + stars(len(token)) + " " + stars(len(later)) + strings.Repeat(" y", 3000) +
		later[:30] + " " + stars(len(token)+len(later))
	kinds := map[string]struct {
		wrap func(string) string // what the text is in
		read func(*scrub.Scrubber, io.Reader, func(scrub.Found)) io.Reader
	}{
		"body": {func(s string) string { return s }, func(s *scrub.Scrubber, r io.Reader, hit func(scrub.Found)) io.Reader {
			return s.Reader(io.NopCloser(r), hit)
		}},
		"frame": {func(s string) string { return string(frame{0x81, s}.bytes()) }, func(s *scrub.Scrubber, r io.Reader, hit func(scrub.Found)) io.Reader {
			return s.Frames(r, hit, nil)
		}},
		"message": {func(s string) string { return string(message{0, s}.bytes()) }, func(s *scrub.Scrubber, r io.Reader, hit func(scrub.Found)) io.Reader {
			resp := &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"application/grpc"}}, Body: io.NopCloser(r)}
			s.Pass(resp, hit, nil)
			return resp.Body
		}},
	}
	for name, kind := range kinds {
		for _, size := range []int{1, 3, 50, 100_000} {
			text := kind.wrap(before + after)
			s := new(scrub.Scrubber)
			s.Use(scrubber(token))
			in := &turning{text: text, size: size, at: len(text) - len(after), turn: func() {
				s.Use(scrub.New([]scrub.Value{{Text: token, Found: scrub.Found{Name: "a"}}, {Text: later, Found: scrub.Found{Name: "b"}}}))
			}}
			var found []string
			got, err := io.ReadAll(kind.read(s, in, func(f scrub.Found) { found = append(found, f.Name) }))
			if err != nil || string(got) != kind.wrap(want) {
				t.Errorf("%s by %d: %v\n%.200q\n%.200q", name, size, err, got, kind.wrap(want))
			}
			if names := strings.Join(found, ","); names != "a,a,b,a,b" { // what is undecided is searched for the new ones
				t.Errorf("%s by %d: found %s", name, size, names)
			}
		}
	}
}

// A frame whose length was promised when shorter values were looked for cannot hold
// back as much as longer ones need, whatever it says.
func TestUseAmidstFragment(t *testing.T) {
	const escape = `%73` // of the value's first character, and so on: undecided for long
	text := strings.Repeat("x", 5000) + strings.Repeat(escape, 1) + "k-later-"
	in := string(frame{0x01, text}.bytes()) + string(frame{0x80, later[9:]}.bytes())
	s := new(scrub.Scrubber)
	got, err := io.ReadAll(s.Frames(&turning{text: in, size: 1000, at: 2000, turn: func() { s.Use(scrubber(later)) }}, nil, nil))
	if !errors.Is(err, scrub.ErrHidden) || bytes.Contains(got, []byte("%73k")) {
		t.Errorf("%v, %.50q … %q", err, got, got[len(got)-20:])
	}
	// Between frames, and in a message's last, nothing is in the way.
	in = string(frame{0x01, text}.bytes()) + string(frame{0x80, later[9:]}.bytes())
	s = scrubber(later)
	if got, err := io.ReadAll(s.Frames(strings.NewReader(in), nil, nil)); err != nil || bytes.Contains(got, []byte("later")) {
		t.Errorf("%v, %q", err, got[len(got)-80:])
	}
}

// A body that cannot be decoded is passed, searched as it is.
func TestPass(t *testing.T) {
	pack := func(s string) string {
		var b strings.Builder
		z := gzip.NewWriter(&b)
		_, _ = io.WriteString(z, s)
		_ = z.Close()
		return b.String()
	}
	big := strings.Repeat("0", 5<<20)
	msg := func(flags byte, s string) string { return string(message{flags, s}.bytes()) }
	grpc := func(coding ...string) http.Header {
		return http.Header{"Content-Type": {"application/grpc"}, "Grpc-Encoding": coding}
	}
	tests := []struct {
		name       string
		status     int
		header     http.Header
		body, want string
		keeps      string // header
	}{
		{"coded", 200, http.Header{"Content-Encoding": {"gzip"}}, pack("a" + token), "a" + stars(len(token)), ""},
		{"in no known coding", 200, http.Header{"Content-Encoding": {"rot13"}}, "a" + token, "a" + stars(len(token)), "Content-Encoding"},
		{"part", 206, http.Header{}, "a" + token, "a" + stars(len(token)), ""},
		{"part of what is coded", 206, http.Header{"Content-Encoding": {"gzip"}}, pack("a")[3:] + token, pack("a")[3:] + stars(len(token)), "Content-Encoding"},
		{"messages", 200, grpc("gzip"), msg(0, token) + msg(1, pack(token)), msg(0, stars(len(token))) + msg(0, stars(len(token))), "Grpc-Encoding"},
		{"message of unknown flags", 200, grpc("gzip"), msg(0x40, token) + msg(0, token), msg(0x40, stars(len(token))) + msg(0, stars(len(token))), "Grpc-Encoding"},
		{"messages in no known coding", 200, grpc("rot13"), msg(1, token), msg(1, stars(len(token))), "Grpc-Encoding"},
		{"compressed, nobody says how", 200, grpc(), msg(1, token), msg(1, stars(len(token))), ""},
		{"compressed, but not so", 200, grpc("gzip"), msg(1, token), msg(1, stars(len(token))), "Grpc-Encoding"},
		{"a message that becomes too long", 200, grpc("gzip"), msg(1, pack(big)), msg(1, pack(big)), "Grpc-Encoding"},
		{"a long message", 200, grpc("gzip"), msg(1, big+token), msg(1, big+stars(len(token))), "Grpc-Encoding"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := &http.Response{StatusCode: tt.status, Header: tt.header.Clone(), Body: io.NopCloser(strings.NewReader(tt.body))}
			scrubber(token).Pass(r, nil, nil)
			got, err := io.ReadAll(r.Body)
			if err != nil || string(got) != tt.want {
				t.Errorf("%v, %.80q, want %.80q", err, got, tt.want)
			}
			if tt.keeps != "" && r.Header.Get(tt.keeps) == "" {
				t.Errorf("%s has gone", tt.keeps)
			}
		})
	}
}

// Where nothing is looked for a coding stays, but that of events.
func TestPassIdle(t *testing.T) {
	for kind, stays := range map[string]bool{"application/json": true, "text/event-stream; charset=utf-8": false} {
		r := &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {kind}, "Content-Encoding": {"gzip"}}, Body: io.NopCloser(strings.NewReader(""))}
		new(scrub.Scrubber).Pass(r, nil, nil)
		if got := r.Header.Get("Content-Encoding") != ""; got != stays {
			t.Errorf("%s: coding stays %v, want %v", kind, got, stays)
		}
	}
	r := &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"application/grpc"}, "Grpc-Encoding": {"gzip"}}, Body: io.NopCloser(strings.NewReader("\x01\x00\x00\x00\x01?"))}
	new(scrub.Scrubber).Pass(r, nil, nil)
	if got, err := io.ReadAll(r.Body); err != nil || string(got) != "\x01\x00\x00\x00\x01?" {
		t.Errorf("%q, %v", got, err)
	}
}
