package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
)

// streams does something on as many streams of one connection, again and again,
// if the proxy speaks HTTP/2 (RFC 9113) to its client.
func (c *client) streams(ctx context.Context, do func(*http.Client) error) (result, error) {
	first, err := c.tunnel(ctx, 0, c.config("h2", "http/1.1"))
	if err != nil {
		return result{}, err
	}
	if first.ConnectionState().NegotiatedProtocol != "h2" {
		return result{Unspoken: true}, first.Close()
	}
	var taken atomic.Bool
	h := &http.Client{Timeout: patience, Transport: &http.Transport{
		ForceAttemptHTTP2: true, DisableCompression: true, TLSClientConfig: &tls.Config{},
		DialTLSContext: func(context.Context, string, string) (net.Conn, error) {
			if taken.Swap(true) {
				return nil, errors.New("one connection was not enough")
			}
			return first.Conn, nil
		},
	}}
	defer h.CloseIdleConnections()
	if err := do(h); err != nil {
		return result{}, err
	}
	return c.repeat(func(int) error { return do(h) })
}

// documents fetches the document on each stream.
func (c *client) documents(ctx context.Context) (result, error) {
	return c.streams(ctx, func(h *http.Client) error { return fetch(ctx, h, c.target) })
}

// unary makes a call of gRPC on each stream.
func (c *client) unary(ctx context.Context) (result, error) {
	return c.streams(ctx, func(h *http.Client) error { return c.call(ctx, h) })
}

func (c *client) call(ctx context.Context, h *http.Client) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+c.target+unaryPath, bytes.NewReader(message))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/grpc")
	r.Header.Set("Te", "trailers")
	resp, err := h.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
	switch {
	case err != nil:
		return err
	case !bytes.Equal(got, message) || resp.Trailer.Get("Grpc-Status") != "0":
		return fmt.Errorf("a call got %s, status %q and %q", resp.Status, resp.Header.Get("Grpc-Status"), got)
	}
	return nil
}
