package main

import (
	"context"

	"golang.org/x/sync/errgroup"
)

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
