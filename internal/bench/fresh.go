package main

import (
	"context"
	"crypto/tls"
	"sync/atomic"
)

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
