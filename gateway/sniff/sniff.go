// Package sniff finds out what a connection of a sandbox wants from its first bytes,
// without consuming them.
package sniff

import (
	"bytes"
	"crypto/tls"
	"errors"
	"net"
	"net/http"

	"sallyport/policy"
)

// MaxBytes bounds what is read of a connection before it is known what it wants, in
// bytes. A ClientHello may have 64 KiB (crypto/tls) in records of any size. An honest
// client does not cut one finer than this allows.
const MaxBytes = 128 << 10

// Errors of Sniff, More and ReadClientHello to branch on. Others are the connection's.
var (
	ErrTooLong     = errors.New("more bytes than a connection may open with")
	ErrClientHello = errors.New("a TLS handshake that cannot be read")

	errParsed = errors.New("hello seen")
)

// preface is what a client of HTTP/2 begins with (RFC 9113, section 3.4).
var preface = []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")

// Conn is a connection whose first bytes have been looked at and will be read again.
type Conn struct {
	net.Conn
	Seen []byte // read from Conn, not yet from here
}

// NetConn returns the connection below.
func (c *Conn) NetConn() net.Conn { return c.Conn }

func (c *Conn) Read(p []byte) (int, error) {
	if len(c.Seen) == 0 {
		return c.Conn.Read(p)
	}
	n := copy(p, c.Seen)
	if c.Seen = c.Seen[n:]; len(c.Seen) == 0 {
		c.Seen = nil
	}
	return n, nil
}

// CloseWrite ends one direction where the connection can, as TCP and TLS can.
func (c *Conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Conn.Close()
}

// More waits for further bytes.
func (c *Conn) More() error {
	if len(c.Seen) >= MaxBytes {
		return ErrTooLong
	}
	var chunk [2048]byte
	n, err := c.Conn.Read(chunk[:])
	c.Seen = append(c.Seen, chunk[:n]...)
	if n > 0 {
		return nil // err, if any, comes again
	}
	return err
}

// Sniff returns the protocol of the first bytes, and the name that a ClientHello asks
// for. It consumes nothing, so that it can be called again after an error.
func (c *Conn) Sniff() (policy.Protocol, string, error) {
	for {
		protocol, sure := Classify(c.Seen)
		switch {
		case sure && protocol == policy.ProtocolTLS:
			return c.ReadClientHello()
		case sure:
			return protocol, "", nil
		}
		if err := c.More(); err != nil {
			return policy.ProtocolOther, "", err
		}
	}
}

// SpeaksHTTP2 tells whether the connection begins as one of HTTP/2 does by prior
// knowledge. Sniff has waited until that is sure.
func (c *Conn) SpeaksHTTP2() bool { return bytes.HasPrefix(c.Seen, preface) }

// Classify names the protocol that starts with b; sure is false while more
// bytes could tell. HTTP is a method, a space, and the start of a request
// target (RFC 9112, section 3).
func Classify(b []byte) (protocol policy.Protocol, sure bool) {
	const longestMethod = 24
	if len(b) == 0 {
		return policy.ProtocolOther, false
	}
	if b[0] == 0x16 { // handshake record; 3 is the major version of every TLS
		if len(b) == 1 {
			return policy.ProtocolTLS, false
		}
		if b[1] == 3 {
			return policy.ProtocolTLS, true
		}
		return policy.ProtocolOther, true
	}
	if protocol, sure := classifyLogin(b); protocol != policy.ProtocolOther {
		return protocol, sure
	}
	for i, c := range b {
		switch {
		case i > 0 && c == ' ':
			rest := b[i+1:]
			if len(rest) == 0 {
				return policy.ProtocolHTTP, false
			}
			if bytes.HasPrefix(preface, b) {
				return policy.ProtocolHTTP, len(b) == len(preface)
			}
			if target(rest[0]) || bytes.Equal(b[:i], []byte(http.MethodConnect)) {
				return policy.ProtocolHTTP, true
			}
			return policy.ProtocolOther, true
		case i >= longestMethod || !(c >= 'A' && c <= 'Z' || c == '-' || c == '_'):
			return policy.ProtocolOther, true
		}
	}
	return policy.ProtocolHTTP, false
}

// target tells whether c begins a request target: origin-form, asterisk-form,
// or the scheme of an absolute-form that anyone uses.
func target(c byte) bool { return c == '/' || c == '*' || c == 'h' || c == 'H' }

// ReadClientHello reads a ClientHello with crypto/tls itself, so that no second parser
// can disagree with the one that ends the connection: the server is abandoned
// once it has parsed, its alert goes nowhere, and its bytes are kept.
func (c *Conn) ReadClientHello() (policy.Protocol, string, error) {
	var name string
	var parsed bool
	r := &replay{Conn: c}
	_ = tls.Server(r, &tls.Config{
		GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			name, parsed = h.ServerName, true
			return nil, errParsed
		},
	}).Handshake()
	switch {
	case parsed:
		return policy.ProtocolTLS, name, nil
	case r.err != nil:
		return policy.ProtocolTLS, "", r.err
	}
	// A server may take what our parser refuses, such as a name with a final
	// dot: as raw bytes it would go unread.
	return policy.ProtocolTLS, "", ErrClientHello
}

// replay reads a Conn without consuming it and writes nothing.
type replay struct {
	*Conn
	read int
	err  error // of the connection, as opposed to the parser's
}

func (r *replay) Read(p []byte) (int, error) {
	if r.read == len(r.Seen) {
		if err := r.More(); err != nil {
			r.err = err
			return 0, err
		}
	}
	n := copy(p, r.Seen[r.read:])
	r.read += n
	return n, nil
}

func (r *replay) Write(p []byte) (int, error) { return len(p), nil }

// Close keeps the connection, which outlives the look at it.
func (r *replay) Close() error { return nil }
