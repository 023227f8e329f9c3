package bypass

import (
	"fmt"
	"strings"
	"time"
)

const smuggled = "GET /admin HTTP/1.1\r\nHost: api.example.test\r\n\r\n"

// post is a request whose framing is the case's own.
func post(framing, rest string) visit {
	return ask("POST /v1/x HTTP/1.1\r\nHost: api.example.test\r\n" + framing + "\r\n" + rest)
}

// chunked is a POST with this body, in the chunked coding or what passes for it.
func chunked(body string) visit { return post("Transfer-Encoding: chunked\r\n", body) }

var (
	legalLength = attempt{legal: post("Content-Length: 5\r\n", "hello"), legalSaw: `POST api.example.test /v1/x ours "hello"`}
	legalChunks = attempt{legal: chunked("2\r\nhe\r\n3;a=b\r\nllo\r\n0\r\n\r\n"), legalSaw: `POST api.example.test /v1/x ours "hello"`}
)

// badForm is a head that is refused before it is parsed, and ends the
// connection: what follows it is never a request.
func badForm(name string, v visit, like attempt) attempt {
	return attempt{name: name, sent: v, want: "400 closed", log: "deny request-form", legal: like.legal, legalSaw: like.legalSaw}
}

// badChunks is found out in the body, of a request that was allowed: it never
// looks whole to the upstream, and nothing after it is a request.
func badChunks(name, body string) attempt {
	return attempt{name: name, sent: chunked(body), want: "502 closed", log: "allow api", broken: true, legal: legalChunks.legal, legalSaw: legalChunks.legalSaw}
}

func status(a attempt, want string) attempt { a.want = want; return a }

// Where a request ends, and whether another one begins, has one reading.
var framings = []attempt{
	badForm("two lengths", post("Content-Length: 5\r\nContent-Length: 5\r\n", "hello"), legalLength),
	badForm("two lengths that differ", post("Content-Length: 0\r\nContent-Length: 46\r\n", smuggled), legalLength),
	badForm("a list of lengths", post("Content-Length: 5, 5\r\n", "hello"), legalLength),
	badForm("a length with a sign", post("Content-Length: +5\r\n", "hello"), legalLength),
	badForm("a negative length", post("Content-Length: -5\r\n", "hello"), legalLength),
	badForm("a length with a zero before it", post("Content-Length: 05\r\n", "hello"), legalLength),
	badForm("a hexadecimal length", post("Content-Length: 0x5\r\n", "hello"), legalLength),
	badForm("a length beyond 64 bits", post("Content-Length: 18446744073709551621\r\n", "hello"), legalLength),
	badForm("an empty length", post("Content-Length: \r\n", smuggled), legalLength),
	badForm("a length with a space in it", post("Content-Length: 5 0\r\n", "hello"), legalLength),
	badForm("length and chunks", post("Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"+smuggled), legalChunks),
	badForm("chunks and length", post("Transfer-Encoding: chunked\r\nContent-Length: 51\r\n", "0\r\n\r\n"+smuggled), legalChunks),
	status(badForm("chunked twice", post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"), legalChunks), "501 closed"),
	status(badForm("chunked and identity", post("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", "0\r\n\r\n"+smuggled), legalChunks), "501 closed"),
	status(badForm("chunked, identity", post("Transfer-Encoding: chunked, identity\r\n", "0\r\n\r\n"+smuggled), legalChunks), "501 closed"),
	status(badForm("gzip, chunked", post("Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n"), legalChunks), "501 closed"),
	status(badForm("xchunked", post("Transfer-Encoding: xchunked\r\n", "0\r\n\r\n"+smuggled), legalChunks), "501 closed"),
	status(badForm("chunked with a parameter", post("Transfer-Encoding: chunked;q=1\r\n", "0\r\n\r\n"+smuggled), legalChunks), "501 closed"),
	status(badForm("chunked in quotes", post("Transfer-Encoding: \"chunked\"\r\n", "0\r\n\r\n"+smuggled), legalChunks), "501 closed"),
	status(badForm("an empty coding", post("Transfer-Encoding: \r\n", "0\r\n\r\n"+smuggled), legalChunks), "501 closed"),
	badForm("chunked after a vertical tab", post("Transfer-Encoding: \vchunked\r\n", "0\r\n\r\n"+smuggled), legalChunks),
	badForm("chunked after a NUL", post("Transfer-Encoding: \x00chunked\r\n", "0\r\n\r\n"+smuggled), legalChunks),
	badForm("chunked with a space before the colon", post("Transfer-Encoding : chunked\r\n", "0\r\n\r\n"+smuggled), legalChunks),
	badForm("chunked with a space before the name", post("X-A: b\r\n Transfer-Encoding: chunked\r\n", "0\r\n\r\n"+smuggled), legalChunks),
	status(badForm("chunked in a folded line", post("Transfer-Encoding:\r\n chunked\r\n", "0\r\n\r\n"+smuggled), legalChunks), "501 closed"),
	badForm("chunked behind a bare LF", post("X-A: b\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"+smuggled), legalChunks),
	badForm("chunked behind a bare CR", post("X-A: b\rTransfer-Encoding: chunked\r\n", "0\r\n\r\n"+smuggled), legalChunks),
	badForm("chunked in HTTP/1.0", ask("POST /v1/x HTTP/1.0\r\nHost: api.example.test\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"+smuggled), legalChunks),
	// With a name of its own the header is another one, and the body has no length.
	{name: "chunked with an underscore in the name", sent: post("Transfer_Encoding: chunked\r\n", ""), want: "200", log: "allow api",
		saw: []string{"POST api.example.test /v1/x ours"}, legal: legalChunks.legal, legalSaw: legalChunks.legalSaw},

	badForm("an obs-fold", ask("GET /v1/x HTTP/1.1\r\nHost: api.example.test\r\nX-A: b\r\n c\r\n\r\n"), attempt{}),
	badForm("an obs-fold with a tab, of Host", ask("GET /v1/x HTTP/1.1\r\nHost: api.example.test\r\n\t.denied.example.test\r\n\r\n"), attempt{}),
	badForm("lines that end with LF", ask("GET /v1/x HTTP/1.1\nHost: api.example.test\n\n"), attempt{}),
	badForm("a head that ends with LF", ask("GET /v1/x HTTP/1.1\r\nHost: api.example.test\r\n\n"+smuggled), attempt{}),
	badForm("a bare CR in a value", ask(get(api, "/v1/x", "X-A: b\rX-B: c")), attempt{}),
	badForm("a bare CR in the request line", ask("GET /v1/x\rHTTP/1.1\r\nHost: api.example.test\r\n\r\n"), attempt{}),
	badForm("a NUL in a value", ask(get(api, "/v1/x", "X-A: b\x00c")), attempt{}),
	badForm("a NUL in the target", ask(get(api, "/v1/x\x00/admin")), attempt{}),
	badForm("a space in a name", ask(get(api, "/v1/x", "X A: b")), attempt{}),
	badForm("a line without a colon", ask(get(api, "/v1/x", "X-A")), attempt{}),
	badForm("an empty name", ask(get(api, "/v1/x", ": b")), attempt{}),
	badForm("a name in parentheses", ask(get(api, "/v1/x", "(X-A): b")), attempt{}),
	badForm("a space in the target", ask(get(api, "/v1/x /admin")), attempt{}),
	badForm("two spaces in the request line", ask("GET  /v1/x HTTP/1.1\r\nHost: api.example.test\r\n\r\n"), attempt{}),
	badForm("a tab in the request line", ask("GET\t/v1/x HTTP/1.1\r\nHost: api.example.test\r\n\r\n").with(Handshake{Name: api}), attempt{}),
	badForm("an empty line before the request", ask("\r\n"+get(api, "/v1/x")), attempt{}),
	badForm("HTTP/0.9", ask("GET /admin\r\n\r\n"), attempt{}),
	status(badForm("HTTP/1.2", ask("GET /v1/x HTTP/1.2\r\nHost: api.example.test\r\n\r\n"), attempt{}), "505 closed"),
	status(badForm("HTTP/2.0 in one line", ask("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), attempt{}), "505 closed"),
	status(badForm("an expectation of something else", ask(get(api, "/v1/x", "Expect: 200-ok")), attempt{}), "417 closed"),

	badChunks("a size with a space after it", "5 \r\nhello\r\n0\r\n\r\n"),
	badChunks("a size with a space before it", " 5\r\nhello\r\n0\r\n\r\n"),
	badChunks("a size with a sign", "+5\r\nhello\r\n0\r\n\r\n"),
	badChunks("a size with 0x", "0x5\r\nhello\r\n0\r\n\r\n"),
	badChunks("a size with an underscore", "0_5\r\nhello\r\n0\r\n\r\n"),
	badChunks("a size beyond 64 bits", "10000000000000005\r\nhello\r\n0\r\n\r\n"),
	badChunks("an empty size", "\r\nhello\r\n0\r\n\r\n"),
	badChunks("a size that ends with LF", "5\nhello\r\n0\r\n\r\n"),
	badChunks("an extension with a bare LF", "5;a\nhello\r\n0\r\n\r\n"),
	badChunks("an extension with a bare CR", "5;a\rb\r\nhello\r\n0\r\n\r\n"),
	badChunks("an extension without end", "5;"+strings.Repeat("a", 4096)+"\r\nhello\r\n0\r\n\r\n"),
	badChunks("a chunk that is longer than its size", "3\r\nhello\r\n0\r\n\r\n"),
	badChunks("a chunk that ends with LF", "5\r\nhello\n0\r\n\r\n"),
	badChunks("trailers that end with LF", "5\r\nhello\r\n0\r\nX-A: b\n\n"+smuggled),
	badChunks("a Content-Length in the trailers", "5\r\nhello\r\n0\r\nContent-Length: 46\r\n\r\n"+smuggled),
	badChunks("a Host in the trailers", "5\r\nhello\r\n0\r\nHost: denied.example.test\r\n\r\n"),

	{name: "an oversized header", sent: ask(get(api, "/v1/x", "X-A: "+strings.Repeat("a", 200<<10))), want: "431 closed", log: "deny request-form",
		legal: ask(get(api, "/v1/x", "X-A: "+strings.Repeat("a", 32<<10))), legalSaw: sawX},
	{name: "too many headers", sent: ask(get(api, "/v1/x", many(1001)...)), want: "431 closed", log: "deny request-form",
		legal: ask(get(api, "/v1/x", many(400)...)), legalSaw: sawX},
	{name: "headers without end", sent: endless("GET /v1/x HTTP/1.1\r\nHost: api.example.test\r\n", "X-A: "+strings.Repeat("a", 1000)+"\r\n"),
		want: "431 closed", log: "deny request-form"},
	{name: "one header without end", sent: endless("GET /v1/x HTTP/1.1\r\nHost: api.example.test\r\nX-A: ", strings.Repeat("a", 1000)),
		want: "431 closed", log: "deny request-form"},
	{name: "a request line without end", sent: endless("GET /v1/", strings.Repeat("a", 1000)), want: "431 closed", log: "deny request-form"},

	{name: "pipelined behind a denial", sent: ask(get(api, "/admin"), get(api, "/v1/x")), want: "403 200", log: "deny api, allow api", saw: []string{sawX}},
	{name: "a denial pipelined behind what is allowed", sent: ask(get(api, "/v1/x"), get(api, "/admin")), want: "200 403", log: "allow api, deny api", saw: []string{sawX}},
	{name: "pipelined behind a denied host", sent: ask(get(denied, "/v1/x"), get(api, "/v1/x")), want: "421 closed", log: "deny host"},
	{name: "pipelined behind a malformed request", sent: ask(get(api, "/v1/x", "X A: b"), get(api, "/v1/x")), want: "400 closed", log: "deny request-form"},
	{name: "another host pipelined behind what is allowed", sent: ask(get(api, "/v1/x"), get(denied, "/v1/x")), want: "200 421", log: "allow api, deny host", saw: []string{sawX}},
	{name: "a request in the body of a denied one", sent: ask(request("POST", api, "/admin", get(api, "/v1/x"))), want: "403", log: "deny api"},
	{name: "a request in the body of an allowed one", sent: ask(request("POST", api, "/v1/x", smuggled)), want: "200", log: "allow api",
		saw: []string{fmt.Sprintf("POST api.example.test /v1/x ours %q", smuggled)}},
	{name: "a request in the body of a GET", sent: ask(request("GET", api, "/v1/x", smuggled)), want: "200", log: "allow api",
		saw: []string{fmt.Sprintf("GET api.example.test /v1/x ours %q", smuggled)}},
	{name: "a request behind a body that ended", sent: ask(request("POST", api, "/v1/x", "hello"), smuggled), want: "200 403", log: "allow api, deny api",
		saw: []string{`POST api.example.test /v1/x ours "hello"`}},
	{name: "a request behind the last chunk", sent: ask("POST /v1/x HTTP/1.1\r\nHost: api.example.test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", smuggled),
		want: "200 403", log: "allow api, deny api", saw: []string{`POST api.example.test /v1/x ours "hello"`}},
	{name: "chunks in the body of a length", sent: ask(request("POST", api, "/v1/x", "0\r\n\r\n"+smuggled)), want: "200", log: "allow api",
		saw: []string{fmt.Sprintf("POST api.example.test /v1/x ours %q", "0\r\n\r\n"+smuggled)}},

	{name: "an upgrade to h2c", sent: ask(get(other, "/v1/x", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__")).at(other + ":80").bare(),
		want: "200", log: "allow other", saw: []string{"GET other.example.test /v1/x none"}},
	{name: "an upgrade to h2c inside of TLS", sent: ask(get(api, "/v1/x", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__")),
		want: "200", log: "allow api", saw: []string{sawX}},
	{name: "an upgrade to anything", sent: ask(get(api, "/v1/x", "Connection: Upgrade", "Upgrade: exfil/1")), want: "200", log: "allow api", saw: []string{sawX}},
	{name: "a WebSocket at a denied path", sent: ask(upgrade("/admin")), want: "403", log: "deny api",
		legal: ask(upgrade("/v1/websocket")), legalSaw: "GET api.example.test /v1/websocket ours Upgrade:websocket", legalWant: "101"},
	{name: "a WebSocket to a denied host", sent: ask(strings.Replace(upgrade("/v1/websocket"), api, denied, 1)), want: "421", log: "deny host"},
	{name: "a request behind a WebSocket that the upstream refused", sent: ask(upgrade("/v1/x"), smuggled), want: "200 403", log: "allow api, deny api",
		saw: []string{sawX + " Upgrade:websocket"}},
}

func upgrade(path string) string {
	return get(api, path, "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==")
}

func many(n int) (headers []string) {
	for i := range n {
		headers = append(headers, fmt.Sprintf("X-%d: a", i))
	}
	return headers
}

// endless is a head of 300 KB that does not end.
func endless(head, more string) visit {
	v := ask(head + strings.Repeat(more, 300<<10/len(more)))
	v.limit = 30 * time.Second
	return v
}
