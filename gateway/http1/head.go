package http1

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// Reasons for which a head is refused. A RefusedError has one.
var (
	errTooLarge   = errors.New("the request's head is too large")
	errMalformed  = errors.New("the request is not HTTP/1.1")
	errVersion    = errors.New("the request is of another version of HTTP than 1.0 and 1.1")
	errLine       = errors.New("a line of the request's head has a bare CR or LF or a control character in it")
	errFold       = errors.New("a line of the request's head is folded, or there is white space before a name or its colon")
	errName       = errors.New("the request has a header whose name is not a token")
	errHost       = errors.New("the request needs exactly one Host header")
	errLength     = errors.New("the request has a Content-Length that is not one plain number")
	errCoding     = errors.New("the request has a Transfer-Encoding that is not chunked alone, or more than one")
	errOldCoding  = errors.New("the request is of HTTP/1.0, which has no Transfer-Encoding, and has one")
	errBoth       = errors.New("the request has both a Content-Length and a Transfer-Encoding")
	errExpect     = errors.New("the request expects something else than 100-continue")
	errTarget     = errors.New("the request's target is not a path, a URL with a host and without fragment or, for CONNECT, host:port")
	errOtherHost  = errors.New("the request's target names another host than its Host header")
	errContent    = errors.New("the request is a CONNECT with a body")
	errSlow       = errors.New("the request's head took too long")
	errPriorKnown = errors.New("the request begins HTTP/2 on a connection of HTTP/1.1")
)

// RefusedError is a request whose head was refused before the handler saw it.
type RefusedError struct {
	Status int // what the client is told
	Err    error
}

func (e *RefusedError) Error() string { return e.Err.Error() }
func (e *RefusedError) Unwrap() error { return e.Err }

func refused(status int, err error) *RefusedError { return &RefusedError{status, err} }

// headReader reads heads whole before they are parsed, which bounds and checks
// them in one place.
type headReader struct {
	*bufio.Reader
	src    io.Reader
	max    int    // bytes of a head
	budget Budget // for large ones; nil counts nothing
}

// await returns the bytes of the next head without consuming them: up to where find
// says that it ends, which is given what has come and how much of that it has seen before.
// more is called once, before waiting for the rest of a head that has begun.
func (h *headReader) await(more func(), find func(b []byte, seen int) (end int, err error)) ([]byte, error) {
	if _, err := h.Peek(1); err != nil {
		return nil, err
	}
	for searched := 0; ; {
		b, _ := h.Peek(h.Buffered())
		end, err := find(b, searched)
		switch {
		case err != nil:
			return nil, err
		case end > h.max:
			return nil, ErrFields
		case end > 0:
			return b[:end], nil
		}
		searched = len(b)
		switch {
		case len(b) >= h.max:
			return nil, ErrFields
		case len(b) == h.Size():
			if err := h.grow(); err != nil {
				return nil, err
			}
		}
		if more != nil {
			more()
			more = nil
		}
		if _, err := h.Peek(len(b) + 1); err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
	}
}

var headEnd = []byte("\r\n\r\n")

// requestEnd finds the end of a request's head.
func requestEnd(b []byte, seen int) (end int, err error) {
	// The end may lie across what has been searched.
	if i := bytes.Index(b[max(seen-3, 0):], headEnd); i >= 0 {
		return max(seen-3, 0) + i + len(headEnd), nil
	}
	return 0, plausible(b, seen)
}

// grow makes room for a large head.
func (h *headReader) grow() error {
	size := min(4*h.Size(), max(h.max, 4*minRead))
	if err := take(h.budget, int64(size)); err != nil {
		return err
	}
	h.refill(size)
	return nil
}

// refill puts what has been read into a buffer of another size, as far as it fits.
func (h *headReader) refill(size int) {
	b, _ := h.Peek(h.Buffered())
	h.Reader = bufio.NewReaderSize(io.MultiReader(bytes.NewReader(bytes.Clone(b)), h.src), size)
}

// shrink gives that room up once all of it has been read: idle connections are
// many.
func (h *headReader) shrink() {
	if h.Size() > minRead && h.Buffered() == 0 {
		h.Reader = bufio.NewReaderSize(h.src, minRead)
	}
}

const minRead = 4 << 10

// plausible finds out early what will never become a head: it would be waited
// for until the client loses patience. b has been looked at up to from.
func plausible(b []byte, from int) error {
	for from < len(b) {
		i := bytes.IndexByte(b[from:], '\n')
		if i < 0 {
			break
		}
		if i += from; i == 0 || b[i-1] != '\r' {
			return refused(http.StatusBadRequest, errLine)
		}
		from = i + 1
	}
	return nil
}

// octets of a head: what may be in a field's name, and what may be in its value
// and in the request line (RFC 9110, section 5.5; a tab only in values).
const (
	inName = 1 << iota
	inValue
)

var octets = func() (t [256]byte) {
	for c := range t {
		if c >= ' ' && c != 0x7f || c == '\t' {
			t[c] |= inValue
		}
	}
	for c := '0'; c <= '9'; c++ {
		t[c] |= inName
	}
	for c := 'a'; c <= 'z'; c++ {
		t[c] |= inName
		t[c-'a'+'A'] |= inName
	}
	for _, c := range "!#$%&'*+-.^_`|~" {
		t[c] |= inName
	}
	return t
}()

// check reads a head strictly. A head that it lets pass reads alike to
// net/http and to any upstream. It returns about how much memory the head takes once it is parsed.
func check(head []byte) (cost int64, err error) {
	fields, keys, err := count(head)
	if err != nil {
		return 0, err
	}
	return Cost(len(head), fields, keys), nil
}

func count(head []byte) (fields, keys int, err error) {
	line, rest, ok := cutLine(head)
	if !ok || bytes.IndexByte(line, '\t') >= 0 {
		return 0, 0, refused(http.StatusBadRequest, errLine)
	}
	last := bytes.LastIndexByte(line, ' ')
	switch version := string(line[last+1:]); version {
	case "HTTP/1.1", "HTTP/1.0":
	case "HTTP/2.0":
		return 0, 0, refused(http.StatusHTTPVersionNotSupported, errPriorKnown)
	default:
		if len(version) == len("HTTP/1.1") && version[:5] == "HTTP/" {
			return 0, 0, refused(http.StatusHTTPVersionNotSupported, errVersion)
		}
		return 0, 0, refused(http.StatusBadRequest, errMalformed)
	}
	method, target, _ := bytes.Cut(line[:max(last, 0)], space)
	switch {
	case len(method) == 0 || len(target) == 0 || bytes.IndexByte(target, ' ') >= 0:
		return 0, 0, refused(http.StatusBadRequest, errMalformed)
	case bytes.IndexByte(line, '#') >= 0:
		return 0, 0, refused(http.StatusBadRequest, errTarget) // some servers end the target there
	}
	old := line[len(line)-1] == '0'
	tunnel := bytes.HasPrefix(line, connect)
	var hosts, lengths, codings int
	var content bool
	keys = bytes.Count(target, and) + bytes.Count(target, semicolon)
	trailers := 0
	for ; ; fields++ {
		if line, rest, ok = cutLine(rest); !ok {
			return 0, 0, refused(http.StatusBadRequest, errLine)
		}
		if len(line) == 0 {
			break
		}
		if fields == MaxFields {
			return 0, 0, refused(http.StatusRequestHeaderFieldsTooLarge, errTooLarge)
		}
		name, value, err := cutField(line)
		if err != nil {
			return 0, 0, refused(http.StatusBadRequest, err)
		}
		switch len(name) {
		case len("trailer"):
			if equal(name, "trailer") {
				trailers += 1 + bytes.Count(value, comma)
			}
		case len("host"):
			if equal(name, "host") {
				hosts++
			}
		case len("expect"):
			if equal(name, "expect") && !equal(value, "100-continue") {
				return 0, 0, refused(http.StatusExpectationFailed, errExpect)
			}
		case len("content-length"):
			if equal(name, "content-length") {
				if lengths++; lengths > 1 || !number(value) {
					return 0, 0, refused(http.StatusBadRequest, errLength)
				}
				content = content || value[0] != '0'
			}
		case len("transfer-encoding"):
			if equal(name, "transfer-encoding") {
				if old { // its framing is faulty (RFC 9112, section 6.1)
					return 0, 0, refused(http.StatusBadRequest, errOldCoding)
				}
				if codings++; codings > 1 || !equal(value, "chunked") {
					return 0, 0, refused(http.StatusNotImplemented, errCoding)
				}
				content = true
			}
		}
	}
	switch {
	case trailers > MaxTrailers:
		return 0, 0, refused(http.StatusRequestHeaderFieldsTooLarge, errTooLarge)
	case lengths > 0 && codings > 0:
		return 0, 0, refused(http.StatusBadRequest, errBoth)
	case hosts > 1 || hosts == 0 && !old && !tunnel:
		return 0, 0, refused(http.StatusBadRequest, errHost)
	case tunnel && content:
		return 0, 0, refused(http.StatusBadRequest, errContent) // or the tunnel's first bytes?
	}
	return fields, keys, nil
}

// otherHost tells of a checked head whether its Host is another than that of the
// target, which is a URL: some servers go by the one, some by the other (RFC 9112,
// section 3.2.2).
func otherHost(head []byte, target *url.URL) bool {
	_, rest, _ := cutLine(head)
	for {
		line, after, _ := cutLine(rest)
		if len(line) == 0 {
			return false // HTTP/1.0
		}
		if name, value, _ := cutField(line); equal(name, "host") {
			return plainHost(target.Scheme, string(value)) != plainHost(target.Scheme, target.Host)
		}
		rest = after
	}
}

// plainHost is a host and port in lower case without a final dot and without the
// scheme's own port.
func plainHost(scheme, s string) string {
	s = strings.ToLower(s)
	host, port := s, ""
	if i := strings.LastIndexByte(s, ':'); i >= 0 && !strings.HasSuffix(s, "]") {
		host, port = s[:i], s[i:]
	}
	if scheme == "https" && port == ":443" || scheme == "http" && port == ":80" {
		port = ""
	}
	return strings.TrimSuffix(host, ".") + port
}

var (
	space     = []byte(" ")
	comma     = []byte(",")
	and       = []byte("&")
	semicolon = []byte(";")
	// connect has its host in the request line.
	connect = []byte(http.MethodConnect + " ")
)

// cutLine takes one line off, which is free of control characters.
func cutLine(b []byte) (line, rest []byte, ok bool) {
	i := bytes.IndexByte(b, '\n')
	if i < 1 || b[i-1] != '\r' {
		return nil, nil, false
	}
	line, rest = b[:i-1], b[i+1:]
	for _, c := range line {
		if octets[c]&inValue == 0 {
			return nil, nil, false
		}
	}
	return line, rest, true
}

// cutField splits a field's line (RFC 9112, section 5).
func cutField(line []byte) (name, value []byte, err error) {
	n := 0
	for n < len(line) && octets[line[n]]&inName != 0 {
		n++
	}
	switch {
	case n == len(line) || n == 0 && line[0] == ':':
		return nil, nil, errName
	case line[n] == ' ' || line[n] == '\t':
		return nil, nil, errFold
	case line[n] != ':':
		return nil, nil, errName
	}
	return line[:n], bytes.Trim(line[n+1:], " \t"), nil
}

// equal ignores case; lower is ASCII in lower case.
func equal(b []byte, lower string) bool {
	if len(b) != len(lower) {
		return false
	}
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}

// number tells whether b is what a Content-Length may be: servers differ on
// signs, lists and leading zeros.
func number(b []byte) bool {
	if len(b) == 0 || len(b) > 1 && b[0] == '0' {
		return false
	}
	for _, c := range b {
		if c < '0' || c > '9' {
			return false
		}
	}
	_, err := strconv.ParseInt(string(b), 10, 64)
	return err == nil
}
