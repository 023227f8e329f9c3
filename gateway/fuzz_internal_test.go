package gateway

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"golang.org/x/net/http/httpguts"

	"sallyport/policy"
)

// named reads the name out of a ClientHello (RFC 8446, section 4.1.2, and RFC
// 6066, section 3) as whoever stands behind us might: it takes the first host
// name that it finds, and passes over what it does not know. ok says that the
// hello is there as a whole.
func named(records []byte) (name string, ok bool) {
	var said []byte
	for len(records) >= 5 {
		kind, size := records[0], int(binary.BigEndian.Uint16(records[3:]))
		if size > len(records)-5 {
			break
		}
		if kind == 22 {
			said = append(said, records[5:5+size]...)
		}
		records = records[5+size:]
	}
	// vector cuts what has its length before it, in width bytes.
	vector := func(from []byte, width int) (of, rest []byte, ok bool) {
		if len(from) < width {
			return nil, nil, false
		}
		size := 0
		for _, c := range from[:width] {
			size = size<<8 | int(c)
		}
		if from = from[width:]; size > len(from) {
			return nil, nil, false
		}
		return from[:size], from[size:], true
	}
	if len(said) == 0 || said[0] != 1 {
		return "", false
	}
	body, _, ok := vector(said[1:], 3)
	if !ok || len(body) < 34 {
		return "", false
	}
	body = body[34:]                       // version and random
	for _, width := range []int{1, 2, 1} { // session, cipher suites, compression
		if _, body, ok = vector(body, width); !ok {
			return "", false
		}
	}
	extensions, _, _ := vector(body, 2)
	for len(extensions) >= 2 {
		kind := binary.BigEndian.Uint16(extensions)
		of, rest, ok := vector(extensions[2:], 2)
		if !ok {
			return "", false
		}
		extensions = rest
		if kind != 0 {
			continue
		}
		for names, _, _ := vector(of, 2); len(names) > 0; {
			kind := names[0]
			if of, names, ok = vector(names[1:], 2); !ok {
				return "", false
			}
			if kind == 0 {
				return string(of), true
			}
		}
	}
	return "", true
}

func prefixed(width int, b []byte) []byte {
	size := binary.BigEndian.AppendUint32(nil, uint32(len(b)))
	return append(size[4-width:], b...)
}

// greet writes a ClientHello whose lengths fit: with a list of names, with another
// extension, in records of at most cut bytes, and with something between the first
// of them and the second.
func greet(list []byte, kind uint16, other []byte, cut uint8, between []byte) []byte {
	if len(list)+len(other) > 1<<14 {
		return nil
	}
	extensions := append([]byte{0, 0}, prefixed(2, list)...)
	extensions = append(binary.BigEndian.AppendUint16(extensions, kind), prefixed(2, other)...)
	body := append([]byte{3, 3}, make([]byte, 32)...)
	body = append(body, 0, 0, 2, 0x13, 1, 1, 0) // no session, one suite, no compression
	body = append(body, prefixed(2, extensions)...)
	message := append([]byte{1}, prefixed(3, body)...)
	var records []byte
	for i := 0; len(message) > 0; i++ {
		n := len(message)
		if cut > 0 {
			n = min(n, 16*int(cut))
		}
		records = append(append(records, 22, 3, 1), prefixed(2, message[:n])...)
		message = message[n:]
		if i == 0 {
			records = append(records, between...)
		}
	}
	return records
}

// request is how we tell that HTTP has begun, at once.
var httpOpening = regexp.MustCompile(`^([A-Z_-]{1,24} [/*hH]|CONNECT [\x00-\xff])`)

// FuzzSniff: what a connection is taken for does not depend on the pieces in which
// it comes, all of it is read again, and a ClientHello has the name that another
// reader finds in it. The first bytes are raw, or raw lies in a ClientHello that
// is made of the rest.
func FuzzSniff(f *testing.F) {
	whole := hello()
	host := prefixed(2, append([]byte{0}, prefixed(2, []byte("api.example.test"))...))
	two := prefixed(2, append(append([]byte{7, 0, 1, 'x', 0}, prefixed(2, []byte("a.test"))...), 0, 0, 1, 'b'))
	f.Add(false, whole, []byte(nil), uint16(0), []byte(nil), uint8(0))
	f.Add(false, whole[:len(whole)/2], []byte(nil), uint16(0), []byte(nil), uint8(0))
	f.Add(false, []byte("GET / HTTP/1.1\r\n\r\n"), []byte(nil), uint16(0), []byte(nil), uint8(0))
	f.Add(false, []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), []byte(nil), uint16(0), []byte(nil), uint8(0))
	f.Add(false, []byte("SSH-2.0-x\r\n"), []byte(nil), uint16(0), []byte(nil), uint8(0))
	f.Add(false, []byte("\x16\x03\x01\x00\x04\x01\x00\x00\x00"), []byte(nil), uint16(0), []byte(nil), uint8(0))
	f.Add(true, []byte(nil), host, uint16(43), []byte("\x02\x03\x04"), uint8(0))
	f.Add(true, []byte(nil), host, uint16(0), host, uint8(0)) // twice
	f.Add(true, []byte(nil), two, uint16(16), []byte("\x00\x03\x02h2"), uint8(1))
	f.Add(true, []byte("\x15\x03\x01\x00\x02\x01\x5a"), host, uint16(21), make([]byte, 300), uint8(2)) // a warning between
	f.Add(true, []byte("\x16\x03\x01\x00\x00"), host, uint16(21), make([]byte, 300), uint8(2))         // an empty record
	f.Add(true, []byte(nil), host, uint16(0xfe0d), []byte("\x00\x00\x01\x00\x01\x00\x00\x00\x00\x00"), uint8(0))
	f.Fuzz(func(t *testing.T, made bool, raw, list []byte, kind uint16, other []byte, cut uint8) {
		first := raw
		if made {
			first = greet(list, kind, other, cut, raw)
		}
		o := &opening{Conn: &script{Reader: bytes.NewReader(first)}}
		protocol, sni, err := o.sniff()
		if len(o.seen) > maxOpening+2048 {
			t.Errorf("%d bytes kept", len(o.seen))
		}
		prefix := len(first) < len(preface) && bytes.HasPrefix(preface, first)
		switch protocol {
		case policy.ProtocolTLS:
			if name, ok := named(first); err == nil && (!ok || name != sni) {
				t.Errorf("the name is %q, another finds %q, %v", sni, name, ok)
			}
		case policy.ProtocolHTTP:
			if err != nil || prefix || !httpOpening.Match(first) {
				t.Errorf("%q is HTTP, %v", first, err)
			}
		case policy.ProtocolOther:
			if !prefix && httpOpening.Match(first) {
				t.Errorf("%q is not HTTP, %v", first, err)
			}
		default:
			t.Errorf("protocol %q", protocol)
		}
		if sni != "" && (protocol != policy.ProtocolTLS || err != nil) {
			t.Errorf("a name %q without a ClientHello", sni)
		}
		slow := &opening{Conn: &script{Reader: iotest.OneByteReader(bytes.NewReader(first))}}
		p, s, e := slow.sniff()
		if p != protocol || s != sni || (e == nil) != (err == nil) {
			t.Errorf("%v %q %v, byte by byte %v %q %v", protocol, sni, err, p, s, e)
		}
		// Whatever was seen is read again, whole and in order.
		for _, o := range []*opening{o, slow} {
			if again, _ := io.ReadAll(o); !bytes.Equal(again, first) {
				t.Errorf("%d bytes went in, %d other came out", len(first), len(again))
			}
		}
	})
}

// aton is what inet_aton(3), BSD's and the C libraries' alike, and the WHATWG URL
// standard may take for an IPv4 address: the last label is a number.
var aton = regexp.MustCompile(`(?i)(^|\.)(0x[0-9a-f]*|[0-9]+)\.?$`)

// FuzzAuthority: what is taken for host and port has no other reading, by net/url
// or by who reads numbers for addresses, and reads the same when it is written.
func FuzzAuthority(f *testing.F) {
	for _, s := range []string{
		"a:1", "[::1]:2", "[::1]", "1.2.3.4", "::1", "a:", ":1", "[a]:1", "u@h:1", "a:b:c", "a:0", "a:65536", "[::1", "a:+1",
		"API.Example.Test.:443", "[::ffff:203.0.113.1]:80", "[fe80::1%25eth0]:1", "0x7f.1", "a.0x", "017700000001", "xn--bcher-kva.example", "a%2eb", "a\x00b:1",
		"[::1]:443]", "[::1]a:1", "a:1:", "a..b", "_x.test:08",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		host, port, err := authority(s)
		if err != nil {
			return
		}
		addr, err := netip.ParseAddr(host)
		if err == nil && (addr.String() != host || addr.Is4In6() || addr.Zone() != "") || err != nil && aton.MatchString(host) {
			t.Errorf("%q gives %q, which may be an address", s, host)
		}
		// What is read once reads the same again, and so does what is written from it.
		if again, err := hostname(host); err != nil || again != host {
			t.Errorf("%q gives %q, which gives %q %v", s, host, again, err)
		}
		for _, tls := range []bool{true, false} {
			standard := map[bool]uint16{true: 443, false: 80}[tls]
			written := join(host, cmp.Or(port, standard), tls)
			if h, p, err := authority(written); err != nil || h != host || cmp.Or(p, standard) != cmp.Or(port, standard) {
				t.Errorf("%q is written %q, which is %q %d %v", s, written, h, p, err)
			}
		}
		u, err := url.Parse("https://" + s + "/")
		if err != nil || u.User != nil || u.Path != "/" {
			t.Fatalf("%q gives %q, and net/url %v, %v", s, host, u, err)
		}
		other, otherPort, _ := authority(u.Host)
		if other != host || otherPort != port || u.Port() == "" != (port == 0) {
			t.Errorf("%q gives %q %d, but of %q %q %d", s, host, port, u.Host, other, otherPort)
		}
		if addr.IsValid() {
			if a, err := netip.ParseAddr(u.Hostname()); err != nil || a.Unmap() != addr {
				t.Errorf("%q gives %v, and net/url %q", s, addr, u.Hostname())
			}
		} else if strings.ToLower(strings.TrimSuffix(u.Hostname(), ".")) != host {
			t.Errorf("%q gives %q, and net/url %q", s, host, u.Hostname())
		}
	})
}

// FuzzQueryKeys: of each parameter that net/url finds, the policy sees the name,
// whether the pairs are cut at ampersands or at semicolons too.
func FuzzQueryKeys(f *testing.F) {
	for _, s := range []string{"", "a=1&b=2&a=3", "b;a=1", "%61=1", "a+b=1", "%zz=1", "&&", "=x", "a%26b=1;c", "a%3db"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		got := policy.QueryKeys(raw)
		if !slices.IsSorted(got) || len(slices.Compact(slices.Clone(got))) != len(got) {
			t.Errorf("%q gives %q", raw, got)
		}
		for _, s := range []string{strings.ReplaceAll(raw, ";", "&"), strings.SplitN(raw, ";", 2)[0]} {
			values, _ := url.ParseQuery(s) // what of it can be parsed
			for key := range values {
				if _, ok := slices.BinarySearch(got, key); !ok {
					t.Errorf("%q has %q, which is not in %q", raw, key, got)
				}
			}
		}
	})
}

// ofTheHop are headers that net/http writes from what it knows, or that the
// library refuses in HTTP/2.
var ofTheHop = []string{"Host", "User-Agent", "Content-Length", "Transfer-Encoding", "Trailer", "Connection", "Proxy-Connection", "Keep-Alive", "Upgrade", "Te"}

// FuzzWellFormed: a request by HTTP/2 that passes is one request of HTTP/1.1 when
// it is written, with the same method, target and header to who reads it by lines.
func FuzzWellFormed(f *testing.F) {
	for _, s := range [][4]string{
		{"GET", "/a?b=c", "x-a", "b"}, {"GET /evil HTTP/1.1\r\nX:", "/", "a", "b"}, {"GET", "/a HTTP/1.1", "a", "b"}, {"GET", "/a#b", "a", "b"}, {"", "/", "a", "b"}, {"G\x00T", "/", "a", "b"},
		{"GET", "//h/%0d%0a", "a", " b"}, {"GET", "http://h/a", "a", "b\t"}, {"OPTIONS", "*", "a", ""}, {"GET", "/é\xff", "a", "\xff"}, {"GET", "/?a b", "a", "b"}, {"GET", "/\u00a0", ":path", "/b"},
	} {
		f.Add(s[0], s[1], s[2], s[3])
	}
	f.Fuzz(func(t *testing.T, method, target, name, value string) {
		u, err := url.ParseRequestURI(target)
		canonical := http.CanonicalHeaderKey(name)
		if err != nil || strings.ToLower(name) != name || !httpguts.ValidHeaderFieldName(strings.TrimPrefix(name, ":")) || !httpguts.ValidHeaderFieldValue(value) ||
			method == http.MethodConnect || slices.Contains(ofTheHop, canonical) {
			return // the library refuses it
		}
		r := &http.Request{Method: method, URL: u, RequestURI: target, Host: "h", ProtoMajor: 2, Header: http.Header{canonical: {value}}}
		if wellFormed(r) != nil || u.Host != "" || u.Opaque != "" || u.User != nil {
			return
		}
		if strings.HasPrefix(name, ":") {
			t.Fatalf("%q passes", name)
		}
		var wire strings.Builder
		if err := r.Write(&wire); err != nil {
			return // nothing leaves
		}
		lines := strings.Split(wire.String(), "\r\n")
		words := strings.Split(lines[0], " ")
		want := []string{lines[0], "Host: h", "User-Agent: Go-http-client/1.1", canonical + ": " + value, "", ""}
		if slices.ContainsFunc(lines, func(l string) bool { return strings.ContainsAny(l, "\r\n\x00") }) || !slices.Equal(withoutLength(lines), want) {
			t.Fatalf("%q %q %q %q is written %q", method, target, name, value, wire.String())
		}
		if len(words) != 3 || words[0] != method || words[2] != "HTTP/1.1" {
			t.Fatalf("%q %q is written %q", method, target, lines[0])
		}
		second, err := http.ReadRequest(bufio.NewReader(strings.NewReader(wire.String())))
		if err != nil || second.Method != method || second.URL.EscapedPath() != u.EscapedPath() || second.URL.RawQuery != u.RawQuery || second.Header.Get(canonical) != value {
			t.Fatalf("%q %q %q %q is written %q, and read %+v, %v", method, target, name, value, wire.String(), second, err)
		}
	})
}

// withoutLength leaves out that there is no body, which some methods say.
func withoutLength(lines []string) []string {
	return slices.DeleteFunc(slices.Clone(lines), func(l string) bool { return l == "Content-Length: 0" })
}
