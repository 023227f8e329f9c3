package gateway_test

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"testing"
	"time"

	"sallyport/gateway"
	"sallyport/internal/test/must"
)

// hello is what a client of TLS begins with.
func hello(t *testing.T, name string) []byte {
	t.Helper()
	near, far := net.Pipe()
	defer far.Close()
	go func() {
		defer near.Close()
		_ = tls.Client(near, &tls.Config{ServerName: name, NextProtos: []string{"h2"}, InsecureSkipVerify: true}).Handshake()
	}()
	b := make([]byte, 16<<10)
	n, err := far.Read(b)
	must.OK(t, err)
	return b[:n]
}

// A sandbox has few TLS handshakes under way at a time: the others wait, and another
// sandbox's is not behind them.
func TestHandshakesWaitForTheirTurn(t *testing.T) {
	w := newNetEnv(t, func(o *gateway.Options) { o.HandshakeTimeout = 5 * time.Minute }) // those that have begun go on
	w.quiet = true
	o := w.origin("api.example.test", "h2", true)
	o.handle("/", func(w http.ResponseWriter, r *http.Request) {})
	begin := hello(t, o.name)
	open := func() net.Conn {
		c, err := w.steer(t.Context(), "tcp", fmt.Sprintf("%s:%d", o.name, o.port))
		must.OK(t, err)
		t.Cleanup(func() { c.Close() })
		if _, err := c.Write(begin); err != nil {
			t.Fatal(err)
		}
		return c
	}
	answered := func(c net.Conn, within time.Duration) error {
		_ = c.SetReadDeadline(time.Now().Add(within))
		_, err := io.ReadFull(c, make([]byte, 1))
		return err
	}
	var first []net.Conn
	for range 16 * runtime.GOMAXPROCS(0) {
		c := open()
		if err := answered(c, patience); err != nil {
			t.Fatalf("handshake %d: %v", len(first)+1, err)
		}
		first = append(first, c)
	}
	next := open()
	if err := answered(next, 300*time.Millisecond); !os.IsTimeout(err) {
		t.Errorf("one more handshake goes on: %v", err)
	}
	if resp, _ := get(t, w.agent("h2", true, w.connect, false), o.url("https", "/")); resp.StatusCode != 200 {
		t.Errorf("another sandbox: %d", resp.StatusCode)
	}
	first[0].Close()
	if err := answered(next, patience); err != nil {
		t.Errorf("after another has ended: %v", err)
	}
}
