package sniff

import (
	"bytes"
	"crypto/tls"
	"io"
	"net"
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
		{"SSH-2.0-x", policy.ProtocolSSH, true},
		{"SSH-2.0", policy.ProtocolSSH, false},
		{"S", policy.ProtocolSSH, false},
		{"SSH-1.99-x", policy.ProtocolOther, true},
		{"SEARCH /", policy.ProtocolHTTP, true},
		{"\x00\x00\x00\x08\x04\xd2\x16\x2f", policy.ProtocolPostgres, true},
		{"\x00\x00\x00\x08\x04\xd2\x16\x30", policy.ProtocolPostgres, true},
		{"\x00\x00\x00\x10\x04\xd2\x16\x2e", policy.ProtocolPostgres, true},
		{"\x00\x00\x00\x29\x00\x03\x00\x00user", policy.ProtocolPostgres, true},
		{"\x00\x00\x00\x29", policy.ProtocolPostgres, false},
		{"\x00\x00\x00\x29\x01", policy.ProtocolOther, true},
		{"\x00\x00\x00\x09\x04\xd2\x16\x2f", policy.ProtocolOther, true},
		{"\x00\x00\x7f\xff\x00\x03\x00\x00", policy.ProtocolOther, true},
		{"*1\r\n$4\r\nPING\r\n", policy.ProtocolRedis, true},
		{"*12\r\n", policy.ProtocolRedis, false},
		{"*", policy.ProtocolRedis, false},
		{"*\r\n$", policy.ProtocolOther, true},
		{"*12345678\r\n$", policy.ProtocolOther, true},
		{"*1\n", policy.ProtocolOther, true},
		{"PING\r\n", policy.ProtocolRedis, true},
		{"HELLO 3\r\n", policy.ProtocolRedis, true},
		{"AUTH secret\r\n", policy.ProtocolRedis, true},
		{"PING /", policy.ProtocolHTTP, true},
		{"PING", policy.ProtocolHTTP, false},
		{" GET /", policy.ProtocolOther, true},
		{"get /", policy.ProtocolOther, true},
		{"ABCDEFGHIJKLMNOPQRSTUVWXYZ /", policy.ProtocolOther, true},
		{"\x00", policy.ProtocolPostgres, false},
		{"\x01", policy.ProtocolOther, true},
	}
	for _, test := range tests {
		if got, sure := Classify([]byte(test.first)); got != test.want || sure != test.sure {
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
	o := &Conn{Conn: &script{Reader: &hello}}
	if _, _, err := o.Sniff(); err == nil {
		t.Error("it was taken")
	}
	if len(o.Seen) > MaxBytes+4096 {
		t.Errorf("%d bytes kept", len(o.Seen))
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
	o := &Conn{Conn: &script{Reader: iotest.OneByteReader(bytes.NewReader(whole))}}
	if protocol, sni, err := o.Sniff(); protocol != policy.ProtocolTLS || sni != "api.example.test" || err != nil {
		t.Errorf("%s %q %v", protocol, sni, err)
	}
	if again, _ := io.ReadAll(o); !bytes.Equal(again, whole) {
		t.Error("it does not read the same again")
	}
}
