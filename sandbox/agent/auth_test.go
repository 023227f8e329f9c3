package agent_test

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"testing"
	"time"

	"sallyport/internal/test/must"
	"sallyport/sandbox/agent"
	"sallyport/sandbox/agent/channel"
	"sallyport/sandbox/agent/wire"
)

// serve runs an agent's server in this process and returns its address, and a
// channel to it.
func serve(t *testing.T) (netip.AddrPort, ed25519.PrivateKey, *channel.Channel) {
	t.Helper()
	pub, key, err := ed25519.GenerateKey(nil)
	must.OK(t, err)
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	must.OK(t, err)
	s := agent.NewServer(agent.Options{Key: pub})
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	at := l.Addr().(*net.TCPAddr).AddrPort()
	c := channel.New(at.Addr(), channel.Options{Key: key, Dial: to(at)})
	t.Cleanup(func() {
		c.Close()
		_ = l.Close()
		if err := <-done; !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
	return at, key, c
}

// to dials one address whatever is asked for.
func to(at netip.AddrPort) func(context.Context, netip.AddrPort) (net.Conn, error) {
	return func(ctx context.Context, _ netip.AddrPort) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp4", at.String())
	}
}

func TestRefuses(t *testing.T) {
	at, key, _ := serve(t)
	_, stranger, _ := ed25519.GenerateKey(nil)
	var last []byte // what was signed rightly on an earlier connection
	sign := func(k ed25519.PrivateKey, at netip.AddrPort) func([]byte) []byte {
		return func(challenge []byte) []byte { return ed25519.Sign(k, wire.Proof(challenge, at)) }
	}
	for _, tt := range []struct {
		name   string
		answer func(challenge []byte) []byte
		open   bool
	}{
		{"host", func(c []byte) []byte { last = sign(key, at)(c); return last }, true},
		{"replayed signature", func([]byte) []byte { return last }, false},
		{"another key", sign(stranger, at), false},
		{"signature for another sandbox", sign(key, netip.MustParseAddrPort("198.51.100.7:1023")), false},
		{"signature for another port", sign(key, netip.AddrPortFrom(at.Addr(), at.Port()+1)), false},
		{"challenge only", func(c []byte) []byte { return ed25519.Sign(key, c) }, false},
		{"nothing but a request", func([]byte) []byte { return nil }, false},
		{"zeros", func([]byte) []byte { return make([]byte, ed25519.SignatureSize) }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			conn, err := net.Dial("tcp4", at.String())
			must.OK(t, err)
			defer conn.Close()
			conn.SetDeadline(time.Now().Add(time.Minute))
			challenge := make([]byte, wire.ChallengeSize)
			if _, err := io.ReadFull(conn, challenge); err != nil {
				t.Fatal(err)
			}
			conn.Write(tt.answer(challenge))
			fmt.Fprint(conn, "GET /activity HTTP/1.1\r\nHost: agent\r\nX-Padding: 0123456789012345678901234567890123456789\r\n\r\n")
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if opened := err == nil; opened != tt.open {
				t.Errorf("answered: %t (%v), want %t", opened, err, tt.open)
			}
			if err == nil {
				resp.Body.Close()
			}
		})
	}
}

// Strangers that say nothing keep neither the host out nor anything of the
// agent's for long.
func TestStrangersWait(t *testing.T) {
	at, _, c := serve(t)
	var strangers []net.Conn
	for range 50 {
		conn, err := net.Dial("tcp4", at.String())
		must.OK(t, err)
		defer conn.Close()
		strangers = append(strangers, conn)
	}
	if err := c.JSON(t.Context(), "GET", "/activity", nil, nil); err != nil {
		t.Error(err)
	}
	begin := time.Now()
	for _, conn := range strangers {
		conn.SetReadDeadline(begin.Add(time.Minute))
		if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("a stranger is still connected")
		}
	}
}
