package http1_test

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"sallyport/gateway/http1"
)

// wire is a connection whose other end says what it was told to, in pieces, and
// then nothing more.
type wire struct {
	net.Conn // none
	say      string
	piece    int
	heard    bytes.Buffer
}

func (w *wire) Read(p []byte) (int, error) {
	if w.say == "" {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), w.piece)], w.say)
	w.say = w.say[n:]
	return n, nil
}

func (w *wire) Write(p []byte) (int, error)      { return w.heard.Write(p) }
func (w *wire) Close() error                     { return nil }
func (w *wire) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (w *wire) SetDeadline(time.Time) error      { return nil }
func (w *wire) SetReadDeadline(time.Time) error  { return nil }
func (w *wire) SetWriteDeadline(time.Time) error { return nil }

var streams = []string{
	get,
	get + get,
	lines("POST /a HTTP/1.1", "Host: h", "Content-Length: 3") + "abc" + get,
	lines("POST /a HTTP/1.1", "Host: h", "Transfer-Encoding: chunked", "Trailer: A") + "3;x\r\nabc\r\n0\r\nA: b\r\n\r\n" + get,
	lines("POST /a HTTP/1.1", "Host: h", "Content-Length: 3", "Expect: 100-continue") + "abc" + get,
	lines("GET /a HTTP/1.0", "Connection: keep-alive", "Pragma: no-cache") + lines("GET http://h/b?c=d HTTP/1.1", "host:\th ", "Connection: x, close") + get,
	lines("CONNECT h:443 HTTP/1.1", "Content-Length: 0") + get,
	lines("GET /a HTTP/1.1", "Host: h", " folded") + get,
	lines("POST /a HTTP/1.1", "Host: h", "Content-Length: 3", "Transfer-Encoding: chunked") + "0\r\n\r\n" + get,
	lines("POST /a HTTP/1.1", "Host: h", "Transfer-Encoding: chunked") + "0\r\nA: b\n\nGET /evil HTTP/1.1\r\nHost: h\r\n\r\n",
	lines("POST /a HTTP/1.1", "Host: h", "Transfer-Encoding: chunked") + "ffffffffffffffff\r\nabc\r\n0\r\n\r\n" + get,
	"\r\n" + get,
	"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
}

// FuzzServe compares what handlers see of a stream of bytes with a second
// reading of it, whether they read the bodies or leave them.
func FuzzServe(f *testing.F) {
	for i, s := range streams {
		f.Add([]byte(s), uint8(0), i%2 == 0)
		f.Add([]byte(s), uint8(1), true)
	}
	f.Fuzz(func(t *testing.T, raw []byte, piece uint8, read bool) {
		want, refused := reference(string(raw))
		if !read {
			for i := range want {
				if len(want[i].Header["Expect"]) > 0 && want[i].Version == "HTTP/1.1" && len(want[i].Body) > 0 {
					want, refused = want[:i+1], false // ends the connection
					break
				}
			}
		}
		var got []asked
		w := &wire{say: string(raw), piece: int(piece)}
		if piece == 0 {
			w.piece = len(raw) + 1
		}
		(&http1.Server{MaxHead: 1 << 20}).ServeConn(context.Background(), w, func(_ context.Context, w http.ResponseWriter, r *http.Request) {
			a := asked{Method: r.Method, Target: r.RequestURI, Version: r.Proto, Header: maps.Clone(r.Header)}
			if read {
				b, err := io.ReadAll(r.Body)
				a.Body, a.Whole = string(b), err == nil
				if a.Whole {
					a.Trailer = maps.Clone(r.Trailer)
					maps.DeleteFunc(a.Trailer, func(_ string, v []string) bool { return len(v) == 0 })
				}
			}
			got = append(got, a)
			w.WriteHeader(http.StatusForbidden) // no answer that opens a tunnel
		})
		if !read {
			for i := range want {
				want[i].Body, want[i].Trailer, want[i].Whole = "", nil, false
			}
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("of %q: want - got +\n%s", raw, diff)
		}
		// Each of them has one answer, and so has what was refused.
		out, answers := bufio.NewReader(&w.heard), 0
		for {
			method := "GET"
			if answers < len(got) {
				method = got[answers].Method
			}
			resp, err := http.ReadResponse(out, &http.Request{Method: method})
			if err != nil {
				break
			}
			if _, err := io.Copy(io.Discard, resp.Body); err != nil {
				t.Fatalf("answer to %q: %v", raw, err)
			}
			if resp.StatusCode != http.StatusContinue {
				answers++
			}
		}
		if answers < len(got) || answers > len(got)+1 || refused && answers != len(got)+1 {
			t.Fatalf("%d answers to %d requests of %q, refused %v", answers, len(got), raw, refused)
		}
	})
}

// peer is an upstream that says one thing to each request.
type peer struct {
	wire
	next string
	past bool // the read deadline is
}

// NetConn marks a connection with buffers of its own, as TLS has.
func (p *peer) NetConn() net.Conn { return p }

func (p *peer) Write(b []byte) (int, error) {
	p.say, p.next = p.say+p.next, ""
	return len(b), nil
}

func (p *peer) Read(b []byte) (int, error) {
	if p.say == "" && p.past {
		return 0, os.ErrDeadlineExceeded
	}
	return p.wire.Read(b)
}

func (p *peer) SetReadDeadline(t time.Time) error {
	p.past = !t.IsZero() && t.Before(time.Now())
	return nil
}

// said is what a response comes down to.
type said struct {
	Status  int
	Header  http.Header
	Trailer http.Header
	Body    string
	Broken  bool
}

func hear(resp *http.Response) said {
	b, err := io.ReadAll(resp.Body)
	return said{resp.StatusCode, resp.Header, resp.Trailer, string(b), err != nil}
}

// alone reads the response in s, and tells whether it leaves the connection in
// a state for another.
func alone(s, method string) (*said, bool) {
	in := bufio.NewReader(strings.NewReader(s))
	for range 32 {
		resp, err := http.ReadResponse(in, &http.Request{Method: method})
		if err != nil || resp.ProtoMajor != 1 || resp.StatusCode < 100 {
			return nil, false
		}
		if resp.StatusCode < 200 && resp.StatusCode != http.StatusSwitchingProtocols {
			continue
		}
		got := hear(resp)
		_, err = in.Peek(1)
		return &got, err == io.EOF && !got.Broken && !resp.Close && resp.ProtoMinor > 0
	}
	return nil, false
}

// FuzzResponse has an upstream answer two requests with what it likes. Nothing
// of the first answer may become part of the second.
func FuzzResponse(f *testing.F) {
	const ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
	for _, s := range []string{
		ok,
		ok + ok,
		"HTTP/1.1 204 No Content\r\n\r\n",
		"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n",
		"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" + ok,
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: A\r\n\r\n3\r\nabc\r\n0\r\nA: b\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
		"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
		"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok",
		"HTTP/1.1 200 OK\r\n\r\nto the end",
		"HTTP/1.1 200 OK\nContent-Length: 2\n\nok",
		"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n" + strings.Repeat("a", 5000) + ok,
		"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nok",
		"HTTP/2.0 200 OK\r\n\r\n",
		"HTTP/1.1 007 x\r\n\r\n",
	} {
		f.Add([]byte(s), []byte(ok), uint8(0), false)
		f.Add([]byte(s), []byte(s), uint8(3), true)
	}
	f.Fuzz(func(t *testing.T, first, second []byte, piece uint8, head bool) {
		method := "GET"
		if head {
			method = "HEAD"
		}
		p := &peer{next: string(first)}
		if p.piece = int(piece); piece == 0 {
			p.piece = len(first) + len(second) + 1
		}
		var reusable bool
		c := http1.NewClientConn(p, http1.ClientOptions{Done: func(_ *http1.ClientConn, ok bool) { reusable = ok }})
		carry := func(what []byte) *said {
			resp, err := c.RoundTrip(&http.Request{Method: method, Host: "h", URL: target}, nil)
			if err != nil {
				return nil
			}
			defer resp.Body.Close()
			if resp.StatusCode == http.StatusSwitchingProtocols {
				// The rest is a stream: alone takes it for no body.
				return &said{resp.StatusCode, resp.Header, resp.Trailer, "", false}
			}
			got := hear(resp)
			return &got
		}
		got := carry(first)
		want, again := alone(string(first), method)
		if want != nil && want.Status == http.StatusSwitchingProtocols {
			again = false
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("first: want - got +\n%s", diff)
		}
		if reused := reusable && c.Alive(); reused != again {
			t.Fatalf("reusable %v, want %v after %q", reused, again, first)
		}
		if !again {
			return
		}
		p.next = string(second)
		got = carry(second)
		want, _ = alone(string(second), method)
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("second: want - got +\n%s", diff)
		}
	})
}
