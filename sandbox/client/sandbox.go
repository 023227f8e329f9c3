package client

import (
	"context"
	"net/http"
	"net/url"

	"sallyport/sandbox"
)

func sandboxPath(name, verb string) string {
	p := "/v1/sandboxes/" + url.PathEscape(name)
	if verb != "" {
		p += "/" + verb
	}
	return p
}

// Sandboxes returns all sandboxes of the caller's by name.
func (c *Client) Sandboxes(ctx context.Context) ([]sandbox.Info, error) {
	return All[sandbox.Info](ctx, c, "/v1/sandboxes")
}

// Sandbox returns one sandbox.
func (c *Client) Sandbox(ctx context.Context, name string) (i sandbox.Info, err error) {
	return i, c.Call(ctx, http.MethodGet, sandboxPath(name, ""), nil, &i)
}

// Create returns the sandbox of that name, made now if there was none.
func (c *Client) Create(ctx context.Context, name string, spec sandbox.Spec) (i sandbox.Info, err error) {
	return i, c.Call(ctx, http.MethodPut, sandboxPath(name, ""), spec, &i)
}

// Set changes what a sandbox is; see [sandbox.SpecChange] for when it holds.
func (c *Client) Set(ctx context.Context, name string, change sandbox.SpecChange) (i sandbox.Info, err error) {
	return i, c.Call(ctx, http.MethodPatch, sandboxPath(name, ""), change, &i)
}

// Start runs a stopped sandbox; one that runs is left as it is.
func (c *Client) Start(ctx context.Context, name string) (i sandbox.Info, err error) {
	return i, c.Call(ctx, http.MethodPost, sandboxPath(name, "start"), nil, &i)
}

// Stop ends a sandbox's processes; its files stay.
func (c *Client) Stop(ctx context.Context, name string) (i sandbox.Info, err error) {
	return i, c.Call(ctx, http.MethodPost, sandboxPath(name, "stop"), nil, &i)
}

// Remove ends a sandbox for good, with its files and its memory.
func (c *Client) Remove(ctx context.Context, name string) error {
	return c.Call(ctx, http.MethodDelete, sandboxPath(name, ""), nil, nil)
}

// SandboxRoot returns the PEM certificate that a sandbox trusts.
func (c *Client) SandboxRoot(ctx context.Context, name string) (pem []byte, err error) {
	return pem, c.Call(ctx, http.MethodGet, sandboxPath(name, "ca"), nil, &pem)
}
