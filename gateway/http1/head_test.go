package http1_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"sallyport/gateway/http1"
)

// TestHeads has what no two servers read alike, each beside what is nearly the
// same and legal.
func TestHeads(t *testing.T) {
	field := func(f string) string { return lines("GET / HTTP/1.1", "Host: h", f) }
	line := func(l string) string { return lines(l, "Host: h") }
	post := func(f ...string) string { return lines(append([]string{"POST / HTTP/1.1", "Host: h"}, f...)...) }
	for _, tt := range []struct {
		name    string
		refused string
		status  int
		legal   string
	}{
		{"bare LF after the request line", "GET / HTTP/1.1\nHost: h\r\n\r\n", 400, line("GET / HTTP/1.1")},
		{"bare LF after a field", "GET / HTTP/1.1\r\nHost: h\nA: b\r\n\r\n", 400, field("A: b")},
		{"bare LF at the end", "GET / HTTP/1.1\r\nHost: h\r\n\n", 400, line("GET / HTTP/1.1")},
		{"nothing but bare LF", "GET / HTTP/1.1\nHost: h\n\n", 400, line("GET / HTTP/1.1")},
		{"bare CR in a value", field("A: b\rc"), 400, field("A: b c")},
		{"CR CR LF", field("A: b\r"), 400, field("A: b")},
		{"bare CR in the request line", line("GET /a\rb HTTP/1.1"), 400, line("GET /ab HTTP/1.1")},
		{"NUL in a value", field("A: b\x00c"), 400, field("A: b\tc")},
		{"NUL in a name", field("A\x00: b"), 400, field("A0: b")},
		{"control character in a value", field("A: \x1f"), 400, field("A: \x20")},
		{"DEL in a value", field("A: \x7f"), 400, field("A: \x80\xff")},
		{"control character in the target", line("GET /\x01 HTTP/1.1"), 400, line("GET /%01 HTTP/1.1")},
		{"folded line", field("A: b\r\n c"), 400, field("A: b c")},
		{"folded line with a tab", field("A: b\r\n\tc"), 400, field("A: b\tc")},
		{"first line folded", lines("GET / HTTP/1.1", " Host: h"), 400, line("GET / HTTP/1.1")},
		{"space before the colon", field("A : b"), 400, field("A: b")},
		{"tab before the colon", field("A\t: b"), 400, field("A:\tb")},
		{"hidden length", post("Content-Length : 3") + "abc", 400, post("Content-Length: 3") + "abc"},
		{"empty name", field(": b"), 400, field("A: b")},
		{"no colon", field("A"), 400, field("A:")},
		{"name that is no token", field("A(b): c"), 400, field("A!#$%&'*+-.^_`|~9: c")},
		{"name beyond ASCII", field("\xc3\x84: c"), 400, field("A: \xc3\x84")},
		{"two hosts", field("Host: other"), 400, field("X-Host: other")},
		{"the same host twice", field("host: h"), 400, field("hosts: h")},
		{"no host", lines("GET / HTTP/1.1", "A: b"), 400, lines("GET / HTTP/1.0", "A: b")},
		{"two hosts of 1.0", lines("GET / HTTP/1.0", "Host: h", "Host: h"), 400, lines("GET / HTTP/1.0", "Host: h")},
		{"two hosts for CONNECT", lines("CONNECT h:443 HTTP/1.1", "Host: a", "Host: b"), 400, lines("CONNECT h:443 HTTP/1.1", "Host: a")},
		{"a URL and another Host", lines("GET https://h/ HTTP/1.1", "Host: other"), 421, lines("GET https://h/ HTTP/1.1", "Host: H.:443")},
		{"a URL and another port", lines("GET http://h:80/ HTTP/1.1", "Host: h:443"), 421, lines("GET http://h:80/ HTTP/1.1", "Host: h")},
		{"a URL and an empty Host", lines("GET http://h/ HTTP/1.1", "Host:"), 421, lines("GET http://h/ HTTP/1.0")},
		{"a URL with an empty host", lines("GET https:///p HTTP/1.1", "Host: h"), 400, lines("GET https://h/p HTTP/1.1", "Host: h")},
		{"a URL with a port for a host", lines("GET https://:443/p HTTP/1.1", "Host: :443"), 400, lines("GET https://h:443/p HTTP/1.1", "Host: h:443")},
		{"a URL without a host", lines("GET https:/p HTTP/1.1", "Host: h"), 400, lines("GET /p HTTP/1.1", "Host: h")},
		{"CONNECT in lower case without host", lines("connect h:443 HTTP/1.1"), 400, lines("CONNECT h:443 HTTP/1.1")},
		{"CONNECT to a path", lines("CONNECT /h:443 HTTP/1.1", "Host: h:443"), 400, lines("CONNECT h:443 HTTP/1.1", "Host: h:443")},
		{"CONNECT to a host and path", lines("CONNECT h:443/x HTTP/1.1", "Host: h:443"), 400, lines("CONNECT [::1]:443 HTTP/1.1")},
		{"CONNECT with user information", lines("CONNECT u@h:443 HTTP/1.1"), 400, lines("CONNECT h:443 HTTP/1.1")},
		{"CONNECT with a length", lines("CONNECT h:443 HTTP/1.1", "Content-Length: 3"), 400, lines("CONNECT h:443 HTTP/1.1", "Content-Length: 0")},
		{"CONNECT in chunks", lines("CONNECT h:443 HTTP/1.1", "Transfer-Encoding: chunked"), 400, lines("CONNECT h:443 HTTP/1.1")},
		{"two lengths", post("Content-Length: 3", "Content-Length: 4") + "abcd", 400, post("Content-Length: 3") + "abc"},
		{"the same length twice", post("Content-Length: 3", "Content-Length: 3") + "abc", 400, post("Content-Length: 3", "Content_Length: 4") + "abc"},
		{"list of lengths", post("Content-Length: 3, 3") + "abc", 400, post("Content-Length: 3") + "abc"},
		{"length with plus", post("Content-Length: +3") + "abc", 400, post("Content-Length: 3 ") + "abc"},
		{"length below zero", post("Content-Length: -1"), 400, post("Content-Length: 0")},
		{"length with leading zero", post("Content-Length: 03") + "abc", 400, post("Content-Length:\t3") + "abc"},
		{"length in hexadecimal", post("Content-Length: 0x3") + "abc", 400, post("Content-Length: 3") + "abc"},
		{"length with underscore", post("Content-Length: 1_0") + "0123456789", 400, post("Content-Length: 10") + "0123456789"},
		{"empty length", post("Content-Length:"), 400, post("Content-Lengt:")},
		{"length beyond 63 bits", post("Content-Length: 9223372036854775808"), 400, post("Content-Length: 1") + "a"},
		{"length that overflows", post("Content-Length: 18446744073709551619") + "abc", 400, post("Content-Length: 3") + "abc"},
		{"length and coding", post("Content-Length: 3", "Transfer-Encoding: chunked") + "0\r\n\r\n", 400, post("Transfer-Encoding: chunked") + "0\r\n\r\n"},
		{"coding and length", post("Transfer-Encoding: chunked", "Content-Length: 5") + "0\r\n\r\n", 400, post("Content-Length: 5") + "0\r\n\r\n"},
		{"coding other than chunked", post("Transfer-Encoding: gzip"), 501, post("Transfer-Encoding: CHUNKED") + "0\r\n\r\n"},
		{"coding before chunked", post("Transfer-Encoding: gzip, chunked") + "0\r\n\r\n", 501, post("Transfer-Encoding: chunked") + "0\r\n\r\n"},
		{"two codings", post("Transfer-Encoding: chunked", "Transfer-Encoding: chunked") + "0\r\n\r\n", 501, post("Transfer-Encoding: chunked") + "0\r\n\r\n"},
		{"chunked twice", post("Transfer-Encoding: chunked, chunked") + "0\r\n\r\n", 501, post("Transfer-Encoding:chunked") + "0\r\n\r\n"},
		{"chunked in an empty list", post("Transfer-Encoding: ,chunked") + "0\r\n\r\n", 501, post("Transfer-Encoding: \t chunked \t") + "0\r\n\r\n"},
		{"chunked with a parameter", post("Transfer-Encoding: chunked;a=b") + "0\r\n\r\n", 501, post("TE: chunked;a=b")},
		{"quoted chunked", post(`Transfer-Encoding: "chunked"`), 501, post("Transfer-Encoding: Chunked") + "0\r\n\r\n"},
		{"xchunked", post("Transfer-Encoding: xchunked"), 501, post("Transfer-Encodings: xchunked")},
		{"chunked after a vertical tab", post("Transfer-Encoding: \x0bchunked"), 400, post("Transfer-Encoding: chunked") + "0\r\n\r\n"},
		{"chunked after a no-break space", post("Transfer-Encoding: \xa0chunked"), 501, post("Transfer-Encoding: chunked") + "0\r\n\r\n"},
		{"empty coding", post("Transfer-Encoding:"), 501, post("TE:")},
		{"identity", post("Transfer-Encoding: identity"), 501, post("Accept-Encoding: identity")},
		{"coding in 1.0", lines("POST / HTTP/1.0", "Transfer-Encoding: chunked") + "0\r\n\r\n", 400, lines("POST / HTTP/1.0", "Content-Length: 3") + "abc"},
		{"trailer that is none", post("Transfer-Encoding: chunked", "Trailer: Content-Length") + "0\r\n\r\n", 400, post("Transfer-Encoding: chunked", "Trailer: A") + "0\r\n\r\n"},
		{"HTTP/0.9", "GET /\r\n\r\n", 400, "GET / HTTP/1.0\r\n\r\n"},
		{"HTTP/1.2", line("GET / HTTP/1.2"), 505, line("GET / HTTP/1.1")},
		{"HTTP/1.01", line("GET / HTTP/1.01"), 400, line("GET / HTTP/1.0")},
		{"HTTP/3.0", line("GET / HTTP/3.0"), 505, line("GET / HTTP/1.0")},
		{"the preface of HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, line("PRI * HTTP/1.1")},
		{"http/1.1", line("GET / http/1.1"), 400, line("GET / HTTP/1.1")},
		{"HTTP/1,1", line("GET / HTTP/1,1"), 505, line("GET / HTTP/1.1")},
		{"two spaces before the target", line("GET  / HTTP/1.1"), 400, line("GET / HTTP/1.1")},
		{"two spaces before the version", line("GET /  HTTP/1.1"), 400, line("GET / HTTP/1.1")},
		{"space in the target", line("GET /a b HTTP/1.1"), 400, line("GET /a%20b HTTP/1.1")},
		{"space after the version", line("GET / HTTP/1.1 "), 400, line("GET / HTTP/1.1")},
		{"space before the method", line(" GET / HTTP/1.1"), 400, line("GET / HTTP/1.1")},
		{"tab in the request line", line("GET\t/ HTTP/1.1"), 400, line("GET / HTTP/1.1")},
		{"tab before the version", line("GET / \tHTTP/1.1"), 400, line("GET / HTTP/1.1")},
		{"CONNECT to nothing", "CONNECT  HTTP/1.0\r\n\r\n", 400, "CONNECT h:1 HTTP/1.0\r\n\r\n"},
		{"no target", line("GET HTTP/1.1"), 400, line("GET / HTTP/1.1")},
		{"method that is no token", line("GE(T / HTTP/1.1"), 400, line("GE-T / HTTP/1.1")},
		{"fragment", line("GET /a#b HTTP/1.1"), 400, line("GET /a%23b HTTP/1.1")},
		{"opaque target", line("GET http:a HTTP/1.1"), 400, line("GET http://h HTTP/1.1")},
		{"relative target", line("GET a HTTP/1.1"), 400, line("GET * HTTP/1.1")},
		{"bad escape in the target", line("GET /%zz HTTP/1.1"), 400, line("GET /%aa HTTP/1.1")},
		{"leading CRLF", "\r\n" + get, 400, get},
		{"leading LF", "\n" + get, 400, get},
		{"empty head", "\r\n\r\n", 400, get},
		{"TLS where there is none", "\x16\x03\x01\x00\xa5\x01\x00\r\n\r\n", 400, get},
		{"expectation other than 100-continue", post("Expect: 200-ok"), 417, post("Expect: 100-Continue")},
		{"two expectations", post("Expect: 100-continue, x"), 417, post("Expected: x")},
		{"empty expectation", post("Expect:"), 417, post("X-Expect:")},
		{"one field too many", post(strings.Split(strings.TrimSuffix(strings.Repeat("A:\n", 1000), "\n"), "\n")...), 431,
			post(strings.Split(strings.TrimSuffix(strings.Repeat("A:\n", 999), "\n"), "\n")...)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			called := make(chan struct{}, 1)
			h := func(ctx context.Context, w http.ResponseWriter, r *http.Request) {
				called <- struct{}{}
				_, _ = io.Copy(io.Discard, r.Body)
			}
			c := serve(t, &http1.Server{}, h)
			c.send(tt.refused)
			got := c.read("GET")
			if got.StatusCode != tt.status || !got.Close || got.body == "" {
				t.Errorf("refused one: got %v", got)
			}
			c.closed()
			c.Close()
			c.ended()
			if len(called) > 0 {
				t.Error("the handler saw a request that has to be refused")
			}

			c = serve(t, &http1.Server{}, h)
			c.send(tt.legal)
			if got := c.read("GET"); got.StatusCode != 200 || len(called) != 1 {
				t.Errorf("legal one: got %v", got)
			}
		})
	}
}

// TestRefuse shows that whoever serves may answer in its own words.
func TestRefuse(t *testing.T) {
	t.Parallel()
	s := &http1.Server{Refuse: func(_ context.Context, w http.ResponseWriter, _ *http.Request, err *http1.RefusedError) {
		w.Header().Set("X-Why", err.Error())
		w.WriteHeader(err.Status)
		_, _ = io.WriteString(w, "no")
	}}
	c := serve(t, s, hello)
	c.send(get + "GET / HTTP/1.1\r\nHost: h\r\n x\r\n\r\n" + get)
	if got := c.receive("GET"); got != "200 (7) GET /a " {
		t.Errorf("the request before: got %s", got)
	}
	got := c.read("GET")
	if got.String() != "400 (2) no close" || !strings.Contains(got.Header.Get("X-Why"), "folded") {
		t.Errorf("got %v with %v", got, got.Header)
	}
	c.closed() // what comes after a head that has no reading has none either
}

func TestHeadSize(t *testing.T) {
	t.Parallel()
	head := func(size int) string {
		const frame = "GET / HTTP/1.1\r\nHost: h\r\nA: \r\n\r\n"
		return "GET / HTTP/1.1\r\nHost: h\r\nA: " + strings.Repeat("a", size-len(frame)) + "\r\n\r\n"
	}
	for _, tt := range []struct {
		name      string
		max, size int
		ok        bool
	}{
		{"at the default", 0, 128 << 10, true},
		{"one more", 0, 128<<10 + 1, false},
		{"at a small limit", 100, 100, true},
		{"one more than that", 100, 101, false},
		{"at the first buffer", 64 << 10, 4 << 10, true},
		{"beyond the first buffer", 64 << 10, 4<<10 + 1, true},
		{"at the second", 64 << 10, 16 << 10, true},
		{"beyond the second", 64 << 10, 16<<10 + 1, true},
		{"odd limit", 5000, 5000, true},
		{"odd limit and one", 5000, 5001, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := serve(t, &http1.Server{MaxHead: tt.max}, hello)
			c.send(head(tt.size))
			want := "200 (6) GET / "
			if !tt.ok {
				want = "431"
			}
			if got := c.receive("GET"); !strings.HasPrefix(got, want) {
				t.Fatalf("got %s", got)
			}
			if !tt.ok {
				c.closed()
				return
			}
			// The larger buffer does not eat the request after it.
			c.send(head(90) + head(tt.size) + get)
			for _, want := range []string{"200 (6) GET / ", "200 (6) GET / ", "200 (7) GET /a "} {
				if got := c.receive("GET"); got != want {
					t.Errorf("got %s, want %s", got, want)
				}
			}
		})
	}
	t.Run("endless", func(t *testing.T) {
		c := serve(t, &http1.Server{}, hello)
		go func() {
			line := []byte("A: " + strings.Repeat("a", 1000) + "\r\n")
			_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: h\r\n")
			for range 100_000 {
				if _, err := c.Write(line); err != nil {
					return
				}
			}
		}()
		if got := c.read("GET"); got.StatusCode != 431 {
			t.Errorf("got %v", got)
		}
		c.Close()
		c.ended()
	})
}

func TestHeadInPieces(t *testing.T) {
	t.Parallel()
	c := serve(t, &http1.Server{}, hello)
	for _, raw := range []string{
		lines("POST /b HTTP/1.1", "Host: h", "Content-Length: 3") + "abc",
		lines("POST /c HTTP/1.1", "Host: h", "Transfer-Encoding: chunked") + "3\r\nabc\r\n0\r\nA: b\r\n\r\n",
	} {
		for i := range len(raw) {
			c.send(raw[i : i+1])
			time.Sleep(100 * time.Microsecond) // a segment of its own
		}
		if got := c.receive("POST"); !strings.HasSuffix(got, " abc") {
			t.Errorf("got %s", got)
		}
	}
}

func TestSlowHead(t *testing.T) {
	s := &http1.Server{HeadTimeout: time.Second, IdleTimeout: time.Minute}
	for _, tt := range []struct{ name, sent, want string }{
		{"in the request line", "GET / HT", "408"},
		{"before the last LF", "GET / HTTP/1.1\r\nHost: h\r\n\r", "408"},
		{"after another request", get + "G", "408"},
		{"nothing on a new connection", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			start := time.Now()
			c := serve(t, s, hello)
			c.send(tt.sent)
			if strings.HasPrefix(tt.sent, get) {
				c.receive("GET")
			}
			got, _ := c.rest()
			if !strings.HasPrefix(got, strings.TrimSpace("HTTP/1.1 "+tt.want)) && tt.want != "" || tt.want == "" && got != "" {
				t.Errorf("got %q", got)
			}
			if d := time.Since(start); d < time.Second || d > patience/2 {
				t.Errorf("after %v", d)
			}
		})
	}
	t.Run("each byte in time", func(t *testing.T) {
		t.Parallel()
		c := serve(t, s, hello)
		go func() {
			for range 1000 {
				if _, err := io.WriteString(c, "A"); err != nil {
					return
				}
				time.Sleep(20 * time.Millisecond)
			}
		}()
		if got := c.read("GET"); got.StatusCode != 408 {
			t.Errorf("got %v", got)
		}
		c.Close()
		c.ended()
	})
	t.Run("body may be slower", func(t *testing.T) {
		t.Parallel()
		c := serve(t, s, hello)
		c.send(lines("POST /b HTTP/1.1", "Host: h", "Content-Length: 3") + "a")
		time.Sleep(1500 * time.Millisecond)
		c.send("bc")
		if got := c.receive("POST"); got != "200 (11) POST /b abc" {
			t.Errorf("got %s", got)
		}
	})
}
