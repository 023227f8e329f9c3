package gateway_test

import (
	"context"
	"fmt"
	"io"
	"time"

	"golang.org/x/net/http2"
)

func (v *inboundConn) waits(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, v.soon(100*time.Millisecond))
	defer cancel()
	ill := ills[len(ills)-1-v.IntN(2)]
	resp, body, err := v.ask(v.request(ctx, "GET", v.ill[v.version()].url("https", "/open/"+ill), nil), v.agent().Client)
	// Others may break off the connection of HTTP/2 that it shares.
	if err == errStalePolicy || err == nil && resp.StatusCode != 502 {
		return unlike(resp, body, err)
	}
	return nil
}

// leaves while something is going on.
func (v *inboundConn) leaves(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, v.soon(15*time.Millisecond))
	defer cancel()
	if err := honest[v.IntN(len(honest))].do(v, ctx); err == errStalePolicy {
		return err
	}
	return nil
}

// vanishes somewhere in a request, or in its answer, or in how it connects.
func (v *inboundConn) vanishes(ctx context.Context) error {
	a := v.clients[2*v.IntN(2)]
	o := v.well[v.version()]
	request := fmt.Sprintf("POST /open/upload HTTP/1.1\r\nHost: %s\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", o.address())
	if v.IntN(4) == 0 { // in the TLS handshake
		c, err := a.dial(ctx, "tcp", o.address())
		if err != nil {
			return err
		}
		_, _ = c.Write([]byte("\x16\x03\x01\x02\x00\x01\x00")[:v.IntN(8)])
		time.Sleep(v.soon(5 * time.Millisecond))
		reset(c)
		return nil
	}
	c, err := v.secure(ctx, a, o)
	if err != nil {
		return err
	}
	_, _ = io.WriteString(c, request[:v.IntN(len(request)+1)])
	switch v.IntN(3) {
	case 0:
		time.Sleep(v.soon(20 * time.Millisecond))
	case 1: // an end of its own direction only
		_ = c.CloseWrite()
		_, _ = io.Copy(io.Discard, c)
	}
	reset(c)
	return nil
}

func (v *inboundConn) vanishesInFrames(ctx context.Context) error {
	a := v.clients[1+2*v.IntN(2)]
	o := v.well[v.version()]
	c, err := v.secure(ctx, a, o)
	if err != nil {
		return err
	}
	defer reset(c)
	f, err := newFrames(c)
	if err != nil {
		return err
	}
	for range 1 + v.IntN(20) {
		path := []string{"/open/echo", "/open/events", "/open/bytes?n=100000", "/open/upload", "/closed"}[v.IntN(5)]
		id, err := f.open(v.IntN(2) == 0, o.request(path)...)
		if err != nil {
			return err
		}
		if v.IntN(4) == 0 {
			_ = f.WriteRSTStream(id, http2.ErrCodeCancel)
		}
	}
	time.Sleep(v.soon(20 * time.Millisecond))
	return nil
}

func (v *inboundConn) vanishesTalking(ctx context.Context) error {
	if v.IntN(2) == 0 {
		c, err := v.agent().dial(ctx, "tcp", v.raw.address())
		if err != nil {
			return err
		}
		_, _ = c.Write(append([]byte{0}, pattern[:v.IntN(len(pattern))]...))
		time.Sleep(v.soon(10 * time.Millisecond))
		reset(c)
		return nil
	}
	s, c, err := v.socket(ctx, v.agent())
	if err != nil {
		return err
	}
	_ = s.send(wsText, []byte("hello"))
	time.Sleep(v.soon(5 * time.Millisecond))
	reset(c)
	if p, ok := s.ReadWriteCloser.(struct {
		io.Reader
		io.WriteCloser
	}); ok {
		_ = p.Close()
	}
	return nil
}
