package gateway

import (
	"bytes"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"sync"
	"syscall"

	"sallyport/policy"
)

// maxOpening bounds what is read of a connection before it is known what it
// wants, in bytes. A ClientHello may have 64 KiB (crypto/tls) in records of any
// size; one that is cut finer than this allows is not an honest client's.
const maxOpening = 128 << 10

var (
	errOpening = errors.New("more bytes than a connection may open with")
	errSeen    = errors.New("hello seen")
	errHello   = errors.New("a TLS handshake that cannot be read")
)

// opening is a connection whose first bytes have been looked at and will be
// read again by whoever carries it.
type opening struct {
	net.Conn
	gateway *Gateway
	flow    *flow
	line    line
	place   entry  // of a connection that is read
	seen    []byte // read from Conn, not yet from here
	silent  bool   // was taken for a client that waits for its server
	once    sync.Once
	release func()
}

// SyscallConn implements syscall.Conn: below TLS it is asked how TCP stands.
func (o *opening) SyscallConn() (syscall.RawConn, error) {
	if s, ok := wire(o.Conn).(syscall.Conn); ok {
		return s.SyscallConn()
	}
	return nil, errors.ErrUnsupported
}

func (o *opening) Read(p []byte) (int, error) {
	if len(o.seen) == 0 {
		return o.Conn.Read(p)
	}
	n := copy(p, o.seen)
	if o.seen = o.seen[n:]; len(o.seen) == 0 {
		o.seen = nil
	}
	return n, nil
}

// Close also gives the connection's place back.
func (o *opening) Close() error {
	o.once.Do(o.release)
	return o.Conn.Close()
}

// CloseWrite ends one direction where the connection can, as TCP and TLS can.
func (o *opening) CloseWrite() error {
	if half, ok := o.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return o.Conn.Close()
}

// more waits for further bytes.
func (o *opening) more() error {
	if len(o.seen) >= maxOpening {
		return errOpening
	}
	var chunk [2048]byte
	n, err := o.Conn.Read(chunk[:])
	o.seen = append(o.seen, chunk[:n]...)
	if n > 0 {
		return nil // err, if any, comes again
	}
	return err
}

// sniff says what the first bytes are, and the name that a ClientHello asks
// for. It consumes nothing, so that it can be called again after an error.
func (o *opening) sniff() (policy.Protocol, string, error) {
	for {
		protocol, sure := classify(o.seen)
		switch {
		case sure && protocol == policy.ProtocolTLS:
			return o.hello()
		case sure:
			return protocol, "", nil
		}
		if err := o.more(); err != nil {
			return policy.ProtocolOther, "", err
		}
	}
}

// classify names the protocol that starts with b; sure is false while more
// bytes could tell. HTTP is a method, a space, and the start of a request
// target (RFC 9112, section 3).
func classify(b []byte) (protocol policy.Protocol, sure bool) {
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

// hello reads a ClientHello with crypto/tls itself, so that no second parser
// can disagree with the one that ends the connection: the server is abandoned
// once it has parsed, its alert goes nowhere, and its bytes are kept.
func (o *opening) hello() (policy.Protocol, string, error) {
	var name string
	var parsed bool
	r := &replay{opening: o}
	_ = tls.Server(r, &tls.Config{
		GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			name, parsed = h.ServerName, true
			return nil, errSeen
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
	return policy.ProtocolTLS, "", errHello
}

// replay reads an opening without consuming it and writes to nobody.
type replay struct {
	*opening
	read int
	err  error // of the connection, as opposed to the parser's
}

func (r *replay) Read(p []byte) (int, error) {
	if r.read == len(r.seen) {
		if err := r.more(); err != nil {
			r.err = err
			return 0, err
		}
	}
	n := copy(p, r.seen[r.read:])
	r.read += n
	return n, nil
}

func (r *replay) Write(p []byte) (int, error) { return len(p), nil }

// Close keeps the connection, which outlives the look at it.
func (r *replay) Close() error { return nil }
