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
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
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

// steady requests a path on connections that are open already.
func (c *client) steady(ctx context.Context, path string, size int64) (result, error) {
	tunnels := make([]*tunnel, c.connections)
	defer func() {
		for _, t := range tunnels {
			if t != nil {
				_ = t.Close()
			}
		}
	}()
	conf := c.config()
	var group errgroup.Group
	for i := range tunnels {
		group.Go(func() (err error) {
			if tunnels[i], err = c.tunnel(ctx, 0, conf); err != nil {
				return err
			}
			return tunnels[i].get(c.target, documentPath, int64(len(document)))
		})
	}
	if err := group.Wait(); err != nil {
		return result{}, err
	}
	r, err := c.repeat(func(i int) error { return tunnels[i].get(c.target, path, size) })
	r.Bytes = r.Rate * float64(size)
	return r, err
}

// documentsInTurn has one request at a time under way on each connection.
func (c *client) documentsInTurn(ctx context.Context) (result, error) {
	return c.steady(ctx, documentPath, int64(len(document)))
}

// bodies fetches large ones.
func (c *client) bodies(ctx context.Context) (result, error) {
	return c.steady(ctx, bodyPath, bodySize)
}

// fresh opens a connection for each request: TCP, CONNECT, TLS, a request, close.
func (c *client) fresh(ctx context.Context, conf *tls.Config) (result, error) {
	var resumed atomic.Int64
	r, err := c.repeat(func(i int) error {
		t, err := c.tunnel(ctx, 0, conf)
		if err != nil {
			return err
		}
		defer t.Close()
		if t.ConnectionState().DidResume {
			resumed.Add(1)
		}
		return t.get(c.target, documentPath, int64(len(document)))
	})
	r.Resumed = int(resumed.Load())
	return r, err
}

// freshResumed keeps the sessions of earlier connections, as clients do that
// live longer than one of them.
func (c *client) freshResumed(ctx context.Context) (result, error) {
	conf := c.config()
	conf.ClientSessionCache = tls.NewLRUClientSessionCache(c.connections)
	return c.fresh(ctx, conf)
}

// freshWhole is what a process gets that is started for one request.
func (c *client) freshWhole(ctx context.Context) (result, error) { return c.fresh(ctx, c.config()) }
