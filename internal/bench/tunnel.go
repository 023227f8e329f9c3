package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"
)

// patience bounds a handshake, and a request.
const patience = 30 * time.Second

// tunnel is a connection through the proxy, or steered through one, to the target.
type tunnel struct {
	*tls.Conn
	r *bufio.Reader
}

// tunnel opens a connection as the proxy's nth client.
func (c *client) tunnel(ctx context.Context, n int, conf *tls.Config) (t *tunnel, err error) {
	address := c.target
	if c.proxies != nil {
		address = c.proxies[n%len(c.proxies)].Host
	}
	conn, err := (&net.Dialer{Timeout: patience}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = conn.Close()
		}
	}()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	if c.proxies != nil {
		if err := c.connect(conn, c.proxies[n%len(c.proxies)].User); err != nil {
			return nil, err
		}
	}
	secure := tls.Client(conn, conf)
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, fmt.Errorf("handshake: %w", err)
	}
	return &tunnel{Conn: secure}, conn.SetDeadline(time.Time{})
}

// connect asks a proxy for the way to the target.
func (c *client) connect(conn net.Conn, as *url.Userinfo) error {
	head := "CONNECT " + c.target + " HTTP/1.1\r\nHost: " + c.target + "\r\n"
	if as != nil {
		token, _ := as.Password()
		head += "Proxy-Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(as.Username()+":"+token)) + "\r\n"
	}
	if _, err := io.WriteString(conn, head+"\r\n"); err != nil {
		return err
	}
	r := bufio.NewReaderSize(conn, 512)
	resp, err := http.ReadResponse(r, &http.Request{Method: http.MethodConnect})
	if err != nil {
		return fmt.Errorf("reading the answer to CONNECT: %w", err)
	}
	switch {
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("CONNECT got %s", resp.Status)
	case r.Buffered() > 0:
		return errors.New("the proxy spoke before the client")
	}
	return nil
}

// config is of a client that offers some protocols by ALPN.
func (c *client) config(protocols ...string) *tls.Config {
	host, _, _ := net.SplitHostPort(c.target)
	return &tls.Config{RootCAs: c.roots, ServerName: host, NextProtos: protocols}
}

// get fetches what has n bytes. It costs less than an http.Transport, whose
// goroutines would be in each request's time.
func (t *tunnel) get(target, path string, n int64) error {
	if err := t.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := io.WriteString(t.Conn, "GET "+path+" HTTP/1.1\r\nHost: "+target+"\r\n\r\n"); err != nil {
		return err
	}
	if t.r == nil {
		t.r = bufio.NewReaderSize(t.Conn, 4<<10)
	}
	resp, err := http.ReadResponse(t.r, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return answered(resp, n)
}
