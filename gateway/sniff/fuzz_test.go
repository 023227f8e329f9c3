package sniff

import (
	"bytes"
	"encoding/binary"
	"io"
	"regexp"
	"testing"
	"testing/iotest"

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
	f.Add(false, []byte("\x00\x00\x00\x08\x04\xd2\x16\x2f"), []byte(nil), uint16(0), []byte(nil), uint8(0))
	f.Add(false, []byte("*2\r\n$4\r\nAUTH\r\n$1\r\nx\r\n"), []byte(nil), uint16(0), []byte(nil), uint8(0))
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
		o := &Conn{Conn: &script{Reader: bytes.NewReader(first)}}
		protocol, sni, err := o.Sniff()
		if len(o.Seen) > MaxBytes+2048 {
			t.Errorf("%d bytes kept", len(o.Seen))
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
		case policy.ProtocolOther, policy.ProtocolSSH, policy.ProtocolPostgres, policy.ProtocolRedis:
			if !prefix && httpOpening.Match(first) {
				t.Errorf("%q is not HTTP, %v", first, err)
			}
		default:
			t.Errorf("protocol %q", protocol)
		}
		if sni != "" && (protocol != policy.ProtocolTLS || err != nil) {
			t.Errorf("a name %q without a ClientHello", sni)
		}
		slow := &Conn{Conn: &script{Reader: iotest.OneByteReader(bytes.NewReader(first))}}
		p, s, e := slow.Sniff()
		if p != protocol || s != sni || (e == nil) != (err == nil) {
			t.Errorf("%v %q %v, byte by byte %v %q %v", protocol, sni, err, p, s, e)
		}
		// Whatever was seen is read again, whole and in order.
		for _, o := range []*Conn{o, slow} {
			if again, _ := io.ReadAll(o); !bytes.Equal(again, first) {
				t.Errorf("%d bytes went in, %d other came out", len(first), len(again))
			}
		}
	})
}
