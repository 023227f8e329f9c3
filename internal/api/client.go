package api

import (
	"context"
	"net/http"
	"net/url"

	"sallyport/internal/recorded"
	"sallyport/policy"
	"sallyport/sandbox/client"
)

// ErrNoDaemon is returned when nothing listens on the socket.
var ErrNoDaemon = client.ErrNoDaemon

// Client is [client.Client] with what only operators ask for.
type Client struct{ *client.Client }

// NewClient returns a client of the daemon behind a unix socket.
func NewClient(socket string) *Client { return &Client{client.Unix(socket)} }

// DialClient returns a client of a daemon elsewhere.
func DialClient(r client.Remote) (*Client, error) {
	c, err := client.Dial(r)
	if err != nil {
		return nil, err
	}
	return &Client{c}, nil
}

func (c *Client) call(ctx context.Context, method, path string, in, out any) error {
	return c.Call(ctx, method, path, in, out)
}

// Status returns what the daemon says of itself.
func (c *Client) Status(ctx context.Context) (s Status, err error) {
	return s, c.call(ctx, http.MethodGet, "/v1/status", nil, &s)
}

// Reload makes the daemon read its configuration again. When that fails, what
// was in force before stays in force.
func (c *Client) Reload(ctx context.Context) (s Status, err error) {
	return s, c.call(ctx, http.MethodPost, "/v1/reload", nil, &s)
}

// Explain says what would become of a request. A sandbox or a user of the
// explicit proxy is named; the daemon adds its tags.
func (c *Client) Explain(ctx context.Context, in Question) (e policy.Explanation, err error) {
	return e, c.call(ctx, http.MethodPost, "/v1/policy/explain", in, &e)
}

// ExplainDecision says what the policy makes of a decision in the audit.
func (c *Client) ExplainDecision(ctx context.Context, id string) (e recorded.Explanation, err error) {
	return e, c.call(ctx, http.MethodGet, "/v1/policy/explain/"+url.PathEscape(id), nil, &e)
}

// ClientRoot returns the PEM certificate that an explicit proxy user must trust.
func (c *Client) ClientRoot(ctx context.Context, name string) (pem []byte, err error) {
	return pem, c.call(ctx, http.MethodGet, "/v1/clients/"+url.PathEscape(name)+"/ca", nil, &pem)
}

// Clients returns the users of the explicit proxy by name.
func (c *Client) Clients(ctx context.Context) ([]ProxyClient, error) {
	return client.All[ProxyClient](ctx, c.Client, "/v1/clients")
}

// AddClient makes a user of the explicit proxy. Its token is not kept.
func (c *Client) AddClient(ctx context.Context, name string, tags map[string]string) (t ClientToken, err error) {
	in := map[string]any{"tags": tags}
	return t, c.call(ctx, http.MethodPut, "/v1/clients/"+url.PathEscape(name), in, &t)
}

// RemoveClient voids a user's token.
func (c *Client) RemoveClient(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodDelete, "/v1/clients/"+url.PathEscape(name), nil, nil)
}

// Secrets lists credentials and where their secrets live, never values.
func (c *Client) Secrets(ctx context.Context) ([]Secret, error) {
	return client.All[Secret](ctx, c.Client, "/v1/secrets")
}

// SetSecret sets the fields of a secret in the embedded store.
func (c *Client) SetSecret(ctx context.Context, name string, fields map[string]string) error {
	return c.call(ctx, http.MethodPut, "/v1/secrets/"+url.PathEscape(name), fields, nil)
}

// DeleteSecret removes a secret from the embedded store.
func (c *Client) DeleteSecret(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodDelete, "/v1/secrets/"+url.PathEscape(name), nil, nil)
}

// Shutdown asks the daemon to stop its sandboxes, its engine and itself.
func (c *Client) Shutdown(ctx context.Context) error {
	return c.call(ctx, http.MethodPost, "/v1/shutdown", nil, nil)
}

// What the command line has of the client's.
type (
	Files  = client.Files
	Change = client.Change
)
