package client

import (
	"context"
	"net/http"
	"net/url"

	"sallyport/sandbox"
)

// Snapshots lists a sandbox's, the oldest first.
func (c *Client) Snapshots(ctx context.Context, name string) ([]sandbox.Snapshot, error) {
	return All[sandbox.Snapshot](ctx, c, sandboxPath(name, "snapshots"))
}

// Snapshot keeps what a sandbox is now.
func (c *Client) Snapshot(ctx context.Context, name string, spec sandbox.SnapshotSpec) (s sandbox.Snapshot, err error) {
	return s, c.Call(ctx, http.MethodPost, sandboxPath(name, "snapshots"), spec, &s)
}

// RemoveSnapshot removes one of a sandbox's.
func (c *Client) RemoveSnapshot(ctx context.Context, name, snapshot string) error {
	return c.Call(ctx, http.MethodDelete, sandboxPath(name, "snapshots/"+url.PathEscape(snapshot)), nil, nil)
}

// Restore makes a sandbox what it was at a snapshot.
func (c *Client) Restore(ctx context.Context, name string, spec sandbox.RestoreSpec) (i sandbox.Info, err error) {
	return i, c.Call(ctx, http.MethodPost, sandboxPath(name, "restore"), spec, &i)
}

// Fork makes sandboxes of one.
func (c *Client) Fork(ctx context.Context, name string, spec sandbox.ForkSpec) (list []sandbox.Info, err error) {
	return list, c.Call(ctx, http.MethodPost, sandboxPath(name, "fork"), spec, &list)
}
