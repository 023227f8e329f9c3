package http1_test

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"net"
	"net/http/httptest"
	"sync"
	"testing"

	"sallyport/gateway/http1"
	"sallyport/internal/test/must"
)

// certificate is net/http/httptest's, for example.com.
var certificate = sync.OnceValue(func() tls.Certificate {
	s := httptest.NewUnstartedServer(nil)
	s.StartTLS()
	defer s.Close()
	return s.TLS.Certificates[0]
})

// secure returns both ends of a TLS 1.2 connection on loopback, whose records
// show their type. Both have shaken hands, and the test's end is closed with
// the test. The third is what the test's end has received.
func secure(t testing.TB) (ours, theirs *tls.Conn, seen *records) {
	t.Helper()
	c, s := pair(t)
	seen = &records{Conn: c}
	ours = tls.Client(seen, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12})
	theirs = tls.Server(http1.NewTap(s), &tls.Config{Certificates: []tls.Certificate{certificate()}})
	shaken := make(chan error, 1)
	go func() { shaken <- theirs.Handshake() }()
	must.OK(t, ours.Handshake())
	must.OK(t, within(t, shaken, "the handshake"))
	return ours, theirs, seen
}

// records keeps what is read from a connection.
type records struct {
	net.Conn
	raw bytes.Buffer
}

func (r *records) Read(p []byte) (int, error) {
	n, err := r.Conn.Read(p)
	r.raw.Write(p[:n])
	return n, err
}

// alerts counts the records that are alerts (RFC 5246, section 6.2.1).
func (r *records) alerts() (n int) {
	for b := r.raw.Bytes(); len(b) >= 5; b = b[min(len(b), 5+int(binary.BigEndian.Uint16(b[3:]))):] {
		if b[0] == 21 {
			n++
		}
	}
	return n
}

// raw is the socket below TLS.
func raw(c *tls.Conn) net.Conn {
	if t, ok := c.NetConn().(*http1.Tap); ok {
		return t.Conn
	}
	return c.NetConn()
}
