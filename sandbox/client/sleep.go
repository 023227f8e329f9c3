package client

import (
	"context"
	"net/http"

	"sallyport/sandbox"
)

// Pause has a sandbox stand still in memory; any use wakes it.
func (c *Client) Pause(ctx context.Context, name string) (i sandbox.Info, err error) {
	return i, c.Call(ctx, http.MethodPost, sandboxPath(name, "pause"), nil, &i)
}

// Resume wakes a sandbox that is paused or hibernated.
func (c *Client) Resume(ctx context.Context, name string) (i sandbox.Info, err error) {
	return i, c.Call(ctx, http.MethodPost, sandboxPath(name, "resume"), nil, &i)
}

// Recover gets a sandbox out of the state error; it is stopped then.
func (c *Client) Recover(ctx context.Context, name string) (i sandbox.Info, err error) {
	return i, c.Call(ctx, http.MethodPost, sandboxPath(name, "recover"), nil, &i)
}

// Hibernate writes a sandbox's memory to disk and frees its RAM; any use wakes it.
func (c *Client) Hibernate(ctx context.Context, name string) (i sandbox.Info, err error) {
	return i, c.Call(ctx, http.MethodPost, sandboxPath(name, "hibernate"), nil, &i)
}

// Wake wakes a sandbox that is hibernated or paused.
func (c *Client) Wake(ctx context.Context, name string) (i sandbox.Info, err error) {
	return i, c.Call(ctx, http.MethodPost, sandboxPath(name, "wake"), nil, &i)
}
