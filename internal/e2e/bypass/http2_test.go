package bypass

import (
	"fmt"
	"strings"
	"time"

	"golang.org/x/net/http2"
)

var (
	legalStream = stream(field{":path", "/v1/legal"})
	legalBody   = streamWith("hello", field{":method", "POST"}, field{"content-length", "5"})
)

// malformed is a stream that is reset: no request comes of it.
func malformed(name string, fields ...field) attempt {
	return attempt{name: name, sent: stream(fields...), want: "reset", legal: legalStream, legalSaw: legalSaw}
}

// refused is a request that is answered for its form.
func refused(name, want, log string, fields ...field) attempt {
	return attempt{name: name, sent: stream(fields...), want: want, log: log, legal: legalStream, legalSaw: legalSaw}
}

// body is a request with one, for an upstream of HTTP/1.1.
func body(name, content, want, log string, fields ...field) attempt {
	return attempt{name: name, sent: streamWith(content, append([]field{{":method", "POST"}}, fields...)...), want: want, log: log, broken: true,
		legal: legalBody, legalSaw: `POST api.example.test /v1/x ours "hello"`}
}

// The sandbox speaks HTTP/2, the upstream HTTP/1.1.
var http2s = []attempt{
	refused(":authority of another allowed host", "421", "deny host", field{":authority", other}),
	refused(":authority of a denied host", "421", "deny host", field{":authority", denied}),
	refused(":authority with another port", "421", "deny host", field{":authority", api + ":8443"}),
	refused(":authority percent-encoded", "400", "deny host", field{":authority", "denied%2eexample.test"}),
	refused("Host of a denied host alone", "421", "deny host", field{":authority", ""}, field{"host", denied}),
	malformed("Host that is not :authority", field{"host", denied}),
	malformed(":authority that is not Host", field{":authority", denied}, field{"host", api}),
	malformed("two Hosts", field{"host", api}, field{"host", api}),
	malformed("user information in :authority", field{":authority", "denied.example.test@api.example.test"}),
	malformed("a path in :authority", field{":authority", "api.example.test/v1"}),
	malformed("a line break in :authority", field{":authority", "api.example.test\r\nX-Smuggled: y"}),
	malformed("an absolute :path", field{":path", "https://denied.example.test/"}),
	malformed("another request in :path", field{":path", "/v1/x HTTP/1.1\r\nX-Smuggled: y\r\n\r\nGET /admin"}),
	malformed("no :path", field{":path", ""}),
	refused("a space in :path", "400", "deny request-target", field{":path", "/v1/x HTTP/1.1"}),
	refused("a fragment in :path", "400", "deny request-target", field{":path", "/v1/x#/../admin"}),
	refused("two dots in :path", "400", "deny path", field{":path", "/v1/../admin"}),
	refused("an encoded slash in :path", "400", "deny path", field{":path", "/v1/..%2fadmin"}),
	refused("an encoded slash in the prefix's place in :path", "403", "deny api", field{":path", "/v1%2fx"}),
	refused("an encoded slash in a denied prefix in :path", "403", "deny api-keys", field{":path", "/v1/admin%2fkeys"}),
	refused("a denied path", "403", "deny api", field{":path", "/admin"}),
	refused(":scheme http", "421", "deny scheme", field{":scheme", "http"}),
	malformed("no :scheme", field{":scheme", ""}),
	malformed("another request in :method", field{":method", "GET /v1/x HTTP/1.1\r\nX-Smuggled: y\r\n\r\nGET"}),
	refused("a space in :method", "400", "deny method", field{":method", "GET /v1/y"}),
	refused("CONNECT", "405", "deny nested-connect", field{":method", "CONNECT"}, field{":scheme", ""}, field{":path", ""}, field{":authority", denied + ":443"}),
	refused("CONNECT for UDP", "405", "deny nested-connect", field{":method", "CONNECT"}, field{":protocol", "connect-udp"}),
	refused("a WebSocket at a denied path", "403", "deny api", field{":method", "CONNECT"}, field{":protocol", "websocket"}, field{":path", "/admin"}),
	refused(":protocol with GET", "400", "deny pseudo-header", field{":protocol", "websocket"}),
	malformed("an unknown pseudo-header", field{":x", "y"}),
	malformed("a pseudo-header twice", field{"x-a", "b"}, field{":x-path", "/admin"}),
	malformed("a pseudo-header after a header", field{"x-a", "y"}, field{":status", "200"}),
	malformed("upper case in a name", field{"X-Smuggled", "y"}),
	malformed("a CR in a name", field{"x-a\rx-smuggled", "y"}),
	malformed("a line break in a name", field{"x-a: b\r\nx-smuggled", "y"}),
	malformed("a colon in a name", field{"x-smuggled: y", "z"}),
	malformed("a space in a name", field{"x a", "y"}),
	malformed("an empty name", field{"", "y"}),
	malformed("a line break in a value", field{"x-a", "y\r\nX-Smuggled: y"}),
	malformed("a bare LF in a value", field{"x-a", "y\nX-Smuggled: y"}),
	malformed("a bare CR in a value", field{"x-a", "y\rX-Smuggled: y"}),
	malformed("a NUL in a value", field{"x-a", "y\x00"}),
	refused("a space before a value", "400", "deny header", field{"x-a", " y"}),
	refused("Transfer-Encoding", "400", "", field{"transfer-encoding", "chunked"}),
	refused("Connection", "400", "", field{"connection", "authorization"}),
	refused("Upgrade", "400", "", field{"upgrade", "h2c"}),
	refused("an override", "403", "deny override-header", field{"x-original-url", "/admin"}),
	{name: "a credential of its own", sent: stream(field{"authorization", "Bearer mine"}, field{"x-api-key", "mine"}), want: "200", log: "allow api",
		saw: []string{sawX}, legal: legalStream, legalSaw: legalSaw},
	{name: "a cookie of its own, in crumbs", sent: stream(field{"cookie", "a=b"}, field{"cookie", "c=d"}), want: "200", log: "allow api",
		saw: []string{sawX}, legal: legalStream, legalSaw: legalSaw},

	{name: "a length that is shorter than the body", sent: overlong(), want: "reset", log: "allow api | deny -", broken: true,
		legal: legalBody, legalSaw: `POST api.example.test /v1/x ours "hello"`},
	body("a length without a number", "hello", "reset", "deny content-length", field{"content-length", "5, 5"}),
	body("a length with a sign", "hello", "reset", "deny content-length", field{"content-length", "+5"}),
	body("two lengths", "hello", "reset", "deny content-length", field{"content-length", "5"}, field{"content-length", "6"}),
	refused("a length without a number and without a body", "400", "deny content-length", field{"content-length", "5, 5"}),
	refused("a length of no body", "400", "deny content-length", field{"content-length", "5"}),
	{name: "a request in the body", sent: streamWith("0\r\n\r\n"+smuggled, field{":method", "POST"}), want: "200", log: "allow api",
		saw: []string{fmt.Sprintf("POST api.example.test /v1/x ours %q", "0\r\n\r\n"+smuggled)}, legal: legalBody, legalSaw: `POST api.example.test /v1/x ours "hello"`},

	{name: "a denied host beside an allowed one", sent: pair(field{":authority", denied}), want: "421 200", log: "deny host, allow api", saw: []string{legalSaw},
		legal: legalStream, legalSaw: legalSaw},
	{name: "coalesced with another allowed host", sent: pair(field{":authority", other}), want: "421 200", log: "deny host, allow api", saw: []string{legalSaw},
		legal: legalStream, legalSaw: legalSaw},
	{name: "without TLS, to a denied host", sent: stream(field{":scheme", "http"}, field{":authority", denied}).at(other + ":80").bare(), want: "421", log: "deny host"},
	{name: "without TLS, of the scheme https", sent: stream(field{":authority", other}).at(other + ":80").bare(), want: "200", log: "allow other",
		saw: []string{"GET other.example.test /v1/x none"}}, // the scheme is the connection's

	{name: "CONTINUATION without end", sent: continuations(200, 8000), want: "goaway closed", log: "deny opening", legal: legalStream, legalSaw: legalSaw},
	{name: "empty CONTINUATIONs", sent: continuations(20_000, 0), want: "silence", legal: legalStream, legalSaw: legalSaw},
	{name: "a header that is small on the wire only", sent: bomb(), want: "431", legal: legalStream, legalSaw: legalSaw},
	{name: "a frame in the middle of a head", sent: torn(), want: "goaway closed", log: "deny opening", legal: legalStream, legalSaw: legalSaw},
	{name: "a stream of the server's numbering", sent: even(), want: "goaway closed", log: "deny opening", legal: legalStream, legalSaw: legalSaw},
	{name: "a window beyond its size", sent: window(), want: "goaway closed", log: "deny opening", legal: legalStream, legalSaw: legalSaw},
}

// pair is a request with these fields, and a legal one on the same connection
// once that is answered.
func pair(fields ...field) visit {
	c := newClient()
	c.open(true, fill(fields))
	first := c.visit()
	c.Reset()
	c.open(true, fill([]field{{":path", "/v1/legal"}}))
	first.steps[0].Ends = 1
	first.steps = append(first.steps, c.visit().steps...)
	return first
}

// continuations begin a head that goes on and on.
func continuations(n, size int) visit {
	c := newClient()
	_ = c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: c.headers(fill(nil)), EndStream: true})
	for range n {
		var block []byte
		if size > 0 {
			block = c.headers([]field{{"x-a", strings.Repeat("a", size)}})
		}
		_ = c.WriteContinuation(1, false, block)
	}
	return c.visit()
}

// bomb names one long header of the table again and again (RFC 7541, section 7.3).
func bomb() visit {
	c := newClient()
	fields := fill(nil)
	for range 1000 {
		fields = append(fields, field{"x-a", strings.Repeat("a", 3000)})
	}
	block := c.headers(fields)
	_ = c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block, EndStream: true, EndHeaders: true})
	return c.visit()
}

// overlong begins a request with a length, and goes on beyond that once the
// request is under way.
func overlong() visit {
	c := newClient()
	id := c.open(false, fill([]field{{":method", "POST"}, {"content-length", "3"}}))
	v := c.visit()
	c.Reset()
	_ = c.WriteData(id, true, []byte("5\r\nhello"+smuggled))
	v.steps = append(sends(200*time.Millisecond, v.steps[0].Send...), c.visit().steps...)
	return v
}

// torn has a DATA frame between HEADERS and CONTINUATION.
func torn() visit {
	c := newClient()
	_ = c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: c.headers(fill(nil))})
	_ = c.WriteData(1, true, []byte(smuggled))
	_ = c.WriteContinuation(1, true, nil)
	return c.visit()
}

func even() visit {
	c := newClient()
	_ = c.WriteHeaders(http2.HeadersFrameParam{StreamID: 2, BlockFragment: c.headers(fill(nil)), EndStream: true, EndHeaders: true})
	return c.visit()
}

func window() visit {
	c := newClient()
	_ = c.WriteWindowUpdate(0, 1<<31-1)
	return c.visit()
}
