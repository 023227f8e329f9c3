package gateway

import (
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"sallyport/policy"
)

func TestClassify(t *testing.T) {
	tests := []struct {
		first string
		want  policy.Protocol
		sure  bool
	}{
		{"", policy.ProtocolOther, false},
		{"\x16", policy.ProtocolTLS, false},
		{"\x16\x03", policy.ProtocolTLS, true},
		{"\x16\x02", policy.ProtocolOther, true},
		{"GET", policy.ProtocolHTTP, false},
		{"GET ", policy.ProtocolHTTP, false},
		{"GET /", policy.ProtocolHTTP, true},
		{"OPTIONS *", policy.ProtocolHTTP, true},
		{"M-SEARCH *", policy.ProtocolHTTP, true},
		{"GET http://x/", policy.ProtocolHTTP, true},
		{"CONNECT x:1", policy.ProtocolHTTP, true},
		{"PRI * HTTP/2.0", policy.ProtocolHTTP, false},
		{"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", policy.ProtocolHTTP, true},
		{"PRI * HTTP/2.1", policy.ProtocolHTTP, true},
		{"GET key\r\n", policy.ProtocolOther, true},
		{"EHLO x", policy.ProtocolOther, true},
		{"SSH-2.0-x", policy.ProtocolOther, true},
		{" GET /", policy.ProtocolOther, true},
		{"get /", policy.ProtocolOther, true},
		{"ABCDEFGHIJKLMNOPQRSTUVWXYZ /", policy.ProtocolOther, true},
		{"\x00", policy.ProtocolOther, true},
	}
	for _, test := range tests {
		if got, sure := classify([]byte(test.first)); got != test.want || sure != test.sure {
			t.Errorf("%q: %s %v, want %s %v", test.first, got, sure, test.want, test.sure)
		}
	}
}

func TestOpeningIsBounded(t *testing.T) {
	// A ClientHello of the largest size that crypto/tls takes, in records of a byte.
	var hello bytes.Buffer
	hello.WriteString("\x16\x03\x01\x00\x04\x01\x00\xff\xff")
	for range 65535 {
		hello.WriteString("\x16\x03\x01\x00\x01\x00")
	}
	o := &opening{Conn: &script{Reader: &hello}}
	if _, _, err := o.sniff(); err == nil {
		t.Error("it was taken")
	}
	if len(o.seen) > maxOpening+4096 {
		t.Errorf("%d bytes kept", len(o.seen))
	}
}

// script is a connection that reads what it is given and ends.
type script struct {
	io.Reader
	net.Conn
}

func (s *script) Read(p []byte) (int, error)      { return s.Reader.Read(p) }
func (s *script) Write([]byte) (int, error)       { panic("written to") }
func (s *script) SetReadDeadline(time.Time) error { return nil }

// hello is what a client of crypto/tls opens with.
func hello() []byte {
	near, far := net.Pipe()
	defer far.Close()
	go func() {
		_ = tls.Client(near, &tls.Config{ServerName: "api.example.test"}).Handshake()
		near.Close()
	}()
	b := make([]byte, 1<<14)
	n, _ := far.Read(b)
	return b[:n]
}

func TestHelloByteByByte(t *testing.T) {
	whole := hello()
	o := &opening{Conn: &script{Reader: iotest.OneByteReader(bytes.NewReader(whole))}}
	if protocol, sni, err := o.sniff(); protocol != policy.ProtocolTLS || sni != "api.example.test" || err != nil {
		t.Errorf("%s %q %v", protocol, sni, err)
	}
	if again, _ := io.ReadAll(o); !bytes.Equal(again, whole) {
		t.Error("it does not read the same again")
	}
}

func TestHostname(t *testing.T) {
	tests := []struct{ in, want string }{
		{"api.example.test", "api.example.test"},
		{"API.Example.Test.", "api.example.test"},
		{"_dmarc.example.test", "_dmarc.example.test"},
		{"xn--bcher-kva.example", "xn--bcher-kva.example"},
		{"203.0.113.1", "203.0.113.1"},
		{"2001:DB8::1", "2001:db8::1"},
		{"::ffff:203.0.113.1", "203.0.113.1"},
		{"1password.com", "1password.com"},
		{"", ""}, {".", ""}, {"a..b", ""}, {"a b", ""}, {"a/b", ""}, {"u@h", ""}, {"a\x00b", ""}, {"a\nb", ""}, {"bücher.example", ""},
		{"fe80::1%eth0", ""}, {"127.1", ""}, {"0x7f.1", ""}, {"2130706433", ""}, {"0177.0.0.1", ""}, {"a.0x7f", ""}, {"0x", ""}, {"a.0X", ""}, {"a.0x1ffffffffffffffff", ""}, {"a.0xg", "a.0xg"}, {"1.2.3.4.5", ""}, {"203.0.113.1.", ""},
		{strings.Repeat("a", 64) + ".test", ""}, {strings.Repeat("a.", 127) + "test", ""},
	}
	for _, test := range tests {
		if got, err := hostname(test.in); got != test.want || (err == nil) != (test.want != "") {
			t.Errorf("%q: %q %v, want %q", test.in, got, err, test.want)
		}
	}
}

func TestQueryKeys(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "a=1&b=2&a=3": "a,b", "b;a=1": "a,b", "%61=1": "a", "a+b=1": "a b", "%zz=1": "%zz", "&&": "", "=x": "",
	} {
		if got := strings.Join(policy.QueryKeys(in), ","); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func TestClip(t *testing.T) {
	if got := clip("abcdef", 4); got != "abcd… (2 more bytes)" {
		t.Error(got)
	}
	if got := clipAll(make([]string, 200)); len(got) != maxAuditNames+1 || got[maxAuditNames] != "… (72 more)" {
		t.Error(len(got), got[len(got)-1])
	}
}
