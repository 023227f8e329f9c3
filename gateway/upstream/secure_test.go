package upstream

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"sallyport/internal/test/must"
	"sallyport/policy"
)

// asks begins with a question, as protocols do that ask for TLS first, and then serves TLS.
func asks(t *testing.T, address string, leaf tls.Certificate) uint16 {
	t.Helper()
	ln, err := net.Listen("tcp", address)
	must.OK(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			_ = c.SetDeadline(time.Now().Add(patience))
			if _, err := io.ReadFull(c, make([]byte, 4)); err == nil {
				_, _ = io.WriteString(c, "S")
				s := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{leaf}})
				if s.Handshake() == nil {
					_, _ = io.WriteString(s, c.LocalAddr().(*net.TCPAddr).IP.String())
				}
			}
			c.Close()
		}
	}()
	t.Cleanup(func() { ln.Close(); <-done })
	return portOf(t, ln.Addr())
}

func ask(c net.Conn) error {
	if _, err := io.WriteString(c, "TLS?"); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, 1))
	return err
}

func TestDialTLS(t *testing.T) {
	t.Parallel()
	ca, z := newAuthority(t), newZone(t)
	port := asks(t, "127.0.0.2:0", ca.host(t, []string{"db.example.test"}, nil))
	asks(t, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.3"), port).String(), ca.host(t, []string{"db.example.test"}, nil))
	z.set("db.example.test", []string{"127.0.0.2"})
	z.set("else.example.test", []string{"127.0.0.2"})
	silent, err := net.Listen("tcp", "127.0.0.2:0")
	must.OK(t, err)
	defer silent.Close()
	up := &policy.Upstream{Addresses: []string{"127.0.0.2", "127.0.0.3"}, Roots: ca.file(t), Resolver: z.addr}
	p, hasty := newPool(t, Options{}), newPool(t, Options{HandshakeTimeout: time.Second})
	mine := errors.New("mine")
	for _, tt := range []struct {
		name string
		host string
		port uint16
		at   string
		up   *policy.Upstream
		ask  func(net.Conn) error
		want Kind
		got  string // what answers
	}{
		{"a host", "db.example.test", port, "", up, ask, 0, "127.0.0.2"},
		{"one address of it", "db.example.test", port, "127.0.0.3", up, ask, 0, "127.0.0.3"},
		{"an address that no rule names", "db.example.test", port, "127.0.0.4", up, ask, KindAddress, ""},
		{"another name", "else.example.test", port, "", up, ask, KindCertificate, ""},
		{"other roots", "db.example.test", port, "", &policy.Upstream{Addresses: up.Addresses, Resolver: z.addr}, ask, KindCertificate, ""},
		{"no TLS after all", "db.example.test", port, "", up, func(net.Conn) error { return mine }, KindBroken, ""},
		{"a silent server", "db.example.test", portOf(t, silent.Addr()), "", up, ask, KindTimeout, ""},
		{"a silent server that is not asked", "db.example.test", portOf(t, silent.Addr()), "", up, nil, KindTimeout, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			at, _ := netip.ParseAddr(tt.at)
			p := p
			if tt.want == KindTimeout {
				p = hasty
			}
			c, err := p.DialTLS(t.Context(), Route{Sandbox: "a", Host: tt.host, Port: tt.port, Upstream: tt.up}, at, tt.ask)
			if tt.got == "" {
				if kind(t, err) != tt.want {
					t.Errorf("got %v", err)
				}
				return
			}
			must.OK(t, err)
			defer c.Close()
			if who, _ := io.ReadAll(c); string(who) != tt.got {
				t.Errorf("%q answers, want %s", who, tt.got)
			}
		})
	}
}
