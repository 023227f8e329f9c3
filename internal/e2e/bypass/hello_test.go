package bypass

import (
	"bytes"
	"crypto/ecdh"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"time"
)

// hidden is a ClientHello that names a denied host to the connection of an
// allowed one, cut or dressed so that a careless reader misses the name.
func hidden(name string, h Handshake) attempt {
	bad, good := h, h
	bad.Name, good.Name = denied, api
	return attempt{name: name, sent: ask(get(denied, "/v1/x")).with(bad), want: "403", log: "deny name",
		legal: ask(get(api, "/v1/x")).with(good), legalSaw: sawX}
}

// unfinished is a handshake that ends without any connection being made of it.
func unfinished(name string, h Handshake, log string, good Handshake) attempt {
	good.Name = api
	return attempt{name: name, sent: ask(get(api, "/v1/x")).with(h), want: "no handshake", log: log,
		legal: ask(get(api, "/v1/x")).with(good), legalSaw: sawX}
}

// raw is bytes that no TLS library would send.
func raw(name string, data []byte, want, log string) attempt {
	return attempt{name: name, sent: visit{plain: true, steps: []Step{{Send: [][]byte{data}}}}, want: want, log: log}
}

var hellos = []attempt{
	hidden("a ClientHello as it should be", Handshake{}),
	hidden("TLS 1.2", Handshake{Max: tls.VersionTLS12}),
	hidden("TLS 1.3", Handshake{Min: tls.VersionTLS13}),
	hidden("in records of 64 bytes", Handshake{Record: 64}),
	hidden("in records of 1 byte", Handshake{Record: 1}),
	hidden("in segments of 1 byte", Handshake{Segment: 1}),
	// Without a post-quantum key share it takes seconds, with one more than a
	// handshake may.
	hidden("in records of 1 byte, in segments of 1 byte", Handshake{Record: 1, Segment: 1, Curves: []uint16{uint16(tls.X25519)}}),
	hidden("cut inside of the record's header", Handshake{Segment: 3}),
	hidden("over 16 KB", Handshake{ALPN: padding(20 << 10)}),
	hidden("over 16 KB, in records of 100 bytes", Handshake{ALPN: padding(20 << 10), Record: 100}),
	hidden("near 64 KB", Handshake{ALPN: padding(60 << 10)}),
	hidden("with a post-quantum key share", Handshake{Curves: []uint16{uint16(tls.X25519MLKEM768)}}),
	hidden("with a post-quantum key share, in records of 1 byte", Handshake{Curves: []uint16{uint16(tls.X25519MLKEM768)}, Record: 1}),

	unfinished("TLS 1.0", Handshake{Name: api, Min: tls.VersionTLS10, Max: tls.VersionTLS10}, "deny tls", Handshake{Max: tls.VersionTLS12}),
	unfinished("TLS 1.1", Handshake{Name: api, Min: tls.VersionTLS11, Max: tls.VersionTLS11}, "deny tls", Handshake{Max: tls.VersionTLS12}),
	unfinished("TLS 1.0, denied host", Handshake{Name: denied, Min: tls.VersionTLS10, Max: tls.VersionTLS10}, "deny name", Handshake{Max: tls.VersionTLS12}),
	unfinished("a protocol that is not the web's", Handshake{Name: api, ALPN: []string{"exfil/1"}}, "deny tls", Handshake{}),
	// The inner name is for nobody here to read: the outer one counts, and a client
	// that wants the inner one gives up.
	unfinished("ECH, a denied host inside", Handshake{Name: denied, ECH: echConfig(api)}, "", Handshake{}),
	unfinished("ECH, a denied host outside", Handshake{Name: api, ECH: echConfig(denied)}, "deny name", Handshake{}),

	raw("ECH as grease", extended(hello(api), 0xfe0d, grease()), "hello", ""),
	raw("ECH as grease, denied host", extended(hello(denied), 0xfe0d, grease()), "hello", "deny name"),
	raw("early data", append(extended(hello(api), 42, nil), record(23, []byte(get(api, "/v1/x")))...), "alert closed", "deny tls"),
	raw("a request behind the ClientHello", append(hello(api), get(api, "/v1/x")...), "hello", "deny tls"),
	raw("SNI of an address", replaced("aaaaaaaaaaaaa", upstreamAddress), "hello", "deny name"),
	raw("SNI with a final dot", replaced("api.example.testx", "api.example.test."), "closed", "deny tls"),
	raw("SNI twice", extended(hello(api), 0, serverNames(denied)), "closed", "deny tls"),
	raw("two names in SNI", extended(hello(""), 0, serverNames(api, denied)), "closed", "deny tls"),
	raw("an empty SNI", extended(hello(""), 0, serverNames("")), "closed", "deny tls"),
	raw("an extension that is longer than the hello", extended(hello(""), 0, []byte{0xff, 0xff, 0, 0, 1, 'a'}), "closed", "deny tls"),
	raw("a ClientHello of 128 KB", append([]byte{22, 3, 1, 0x40, 0, 1, 2, 0, 0}, make([]byte, 200<<10)...), "closed", "deny tls"),
	raw("a handshake that is no ClientHello", record(22, []byte{2, 0, 0, 1, 0}), "closed", "deny tls"),
	raw("an SSL 2.0 hello", []byte("\x80\x2e\x01\x03\x01\x00\x15\x00\x00\x00\x10\x01\x00\x80"), "closed", "deny api-keys"),
	raw("a record of version 2", append([]byte{22, 2, 0}, hello(api)[3:]...), "closed", "deny api-keys"),
	raw("another protocol", []byte("SSH-2.0-OpenSSH_9.2\r\n"), toldBySSH, "deny api-keys"),
	raw("bytes of no protocol", []byte("\x00\x01\x02 exfiltrated"), "closed", "deny api-keys"),
	raw("HTTP without TLS, to the port of TLS", []byte(get(api, "/v1/x")), "403", "deny api"),
	{name: "another protocol, where no credential is", sent: visit{to: other + ":443", plain: true, steps: []Step{{Send: [][]byte{[]byte("SSH-2.0-OpenSSH_9.2\r\n")}}}},
		want: toldBySSH, log: "deny -", legal: ask(get(other, "/v1/x")).at(other + ":443"), legalSaw: "GET other.example.test /v1/x none"},
}

// toldBySSH is a denial as a client of SSH sees it: a version and the reason, and nothing of an
// upstream.
const toldBySSH = `"SSH-2.0-Sallypor" closed`

// padding is about n bytes of protocols that nobody speaks, and one that all do.
func padding(n int) []string {
	all := []string{"http/1.1"}
	for ; n > 0; n -= 201 {
		all = append(all, strings.Repeat("x", 197)+string([]byte{'0' + byte(n>>12&15), '0' + byte(n>>8&15), '0' + byte(n&15)}))
	}
	return all
}

// hello is the ClientHello that crypto/tls sends for a name, in one record.
func hello(name string) []byte {
	near, far := net.Pipe()
	go func() {
		_ = tls.Client(near, &tls.Config{ServerName: name, InsecureSkipVerify: true}).Handshake()
	}()
	defer near.Close()
	defer far.Close()
	_ = far.SetDeadline(time.Now().Add(10 * time.Second))
	head := make([]byte, 5)
	if _, err := io.ReadFull(far, head); err != nil {
		panic(err)
	}
	body := make([]byte, binary.BigEndian.Uint16(head[3:]))
	if _, err := io.ReadFull(far, body); err != nil {
		panic(err)
	}
	return append(head, body...)
}

// replaced is a ClientHello for one name with another of the same length in it.
func replaced(name, by string) []byte {
	return bytes.ReplaceAll(hello(name), []byte(name), []byte(by))
}

func record(kind byte, body []byte) []byte {
	return append(binary.BigEndian.AppendUint16([]byte{kind, 3, 1}, uint16(len(body))), body...)
}

// extended puts one more extension before those of a ClientHello (RFC 8446,
// section 4.1.2).
func extended(hello []byte, kind uint16, data []byte) []byte {
	b := bytes.Clone(hello[9:]) // behind the headers of record and handshake
	i := 2 + 32
	i += 1 + int(b[i])                           // session
	i += 2 + int(binary.BigEndian.Uint16(b[i:])) // suites
	i += 1 + int(b[i])                           // compression
	more := binary.BigEndian.AppendUint16(nil, kind)
	more = append(binary.BigEndian.AppendUint16(more, uint16(len(data))), data...)
	out := append(bytes.Clone(b[:i]), 0, 0)
	binary.BigEndian.PutUint16(out[i:], binary.BigEndian.Uint16(b[i:])+uint16(len(more)))
	out = append(append(out, more...), b[i+2:]...)
	return record(22, append([]byte{1, 0, byte(len(out) >> 8), byte(len(out))}, out...))
}

// serverNames is the extension of RFC 6066, section 3.
func serverNames(names ...string) []byte {
	var list []byte
	for _, n := range names {
		list = append(binary.BigEndian.AppendUint16(append(list, 0), uint16(len(n))), n...)
	}
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(list))), list...)
}

// grease is an outer encrypted_client_hello that nobody can decrypt (RFC 9849).
func grease() []byte {
	b := []byte{0, 0, 1, 0, 1, 7, 0, 32}
	b = append(b, random(32)...)
	return append(append(b, 0, 144), random(144)...)
}

func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return b
}

// echConfig is an ECHConfigList (RFC 9849, section 4) with a key that only its
// maker had.
func echConfig(public string) []byte {
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		panic(err)
	}
	var c []byte
	c = append(c, 7, 0, 0x20, 0, 32) // an id, DHKEM(X25519)
	c = append(c, key.PublicKey().Bytes()...)
	c = append(c, 0, 4, 0, 1, 0, 1, 0, byte(len(public))) // HKDF-SHA256, AES-128-GCM
	c = append(append(c, public...), 0, 0)
	c = append(binary.BigEndian.AppendUint16([]byte{0xfe, 0x0d}, uint16(len(c))), c...)
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(c))), c...)
}
