package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"syscall"

	"sallyport/internal/past"
	"sallyport/policy"
	"sallyport/sandbox"
	"sallyport/sandbox/agent/wire"
)

// ErrNoDaemon is returned when nothing listens on the socket.
var ErrNoDaemon = errors.New("no daemon is running")

// Client talks to a daemon on this host. Its methods' errors are ErrNoDaemon, a
// *Problem when the daemon answered with an error, or of the connection.
type Client struct {
	socket string
	http   *http.Client
}

// NewClient returns a client of the daemon behind a unix socket.
func NewClient(socket string) *Client {
	c := &Client{socket: socket}
	c.http = &http.Client{Transport: &http.Transport{
		DialContext:           func(ctx context.Context, _, _ string) (net.Conn, error) { return c.dial(ctx) },
		ExpectContinueTimeout: continueTimeout,
	}}
	return c
}

func (c *Client) dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", c.socket)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
			return nil, fmt.Errorf("%w on %s: start it with `sallyport up`", ErrNoDaemon, c.socket)
		}
		if errors.Is(err, fs.ErrPermission) {
			return nil, fmt.Errorf("reaching the daemon on %s: %w: run this as root", c.socket, err)
		}
		return nil, fmt.Errorf("reaching the daemon on %s: %w", c.socket, err)
	}
	return conn, nil
}

// call sends in as JSON, when there is any, and decodes the answer into out.
func (c *Client) call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(data)
	}
	resp, err := c.send(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	switch out := out.(type) {
	case nil:
		return nil
	case *[]byte:
		*out, err = io.ReadAll(resp.Body)
		return err
	default:
		return json.NewDecoder(resp.Body).Decode(out)
	}
}

// send makes one request; an answer that is an error is returned as one.
func (c *Client) send(ctx context.Context, method, path string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://sallyport"+path, body)
	if err != nil {
		return nil, err
	}
	return c.do(req)
}

func (c *Client) do(req *http.Request) (*http.Response, error) {
	resp, err := c.http.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err // the URL says nothing to the user
		}
		return nil, err
	}
	if err := failure(resp); err != nil {
		_ = resp.Body.Close()
		return nil, err
	}
	return resp, nil
}

func failure(resp *http.Response) error {
	if resp.StatusCode < 400 {
		return nil
	}
	p := &Problem{Status: resp.StatusCode, Title: resp.Status, Detail: resp.Status}
	_ = json.NewDecoder(io.LimitReader(resp.Body, maxBody)).Decode(p) // else the status says it
	return p
}

func sandboxPath(name, verb string) string {
	p := "/v1/sandboxes/" + url.PathEscape(name)
	if verb != "" {
		p += "/" + verb
	}
	return p
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
func (c *Client) Explain(ctx context.Context, in policy.Input) (e policy.Explanation, err error) {
	return e, c.call(ctx, http.MethodPost, "/v1/policy/explain", in, &e)
}

// ExplainDecision says what the policy makes of a decision in the audit.
func (c *Client) ExplainDecision(ctx context.Context, id string) (e past.Explanation, err error) {
	return e, c.call(ctx, http.MethodGet, "/v1/policy/explain/"+url.PathEscape(id), nil, &e)
}

// Sandboxes returns all sandboxes by name.
func (c *Client) Sandboxes(ctx context.Context) (list []sandbox.Info, err error) {
	return list, c.call(ctx, http.MethodGet, "/v1/sandboxes", nil, &list)
}

// Sandbox returns one sandbox.
func (c *Client) Sandbox(ctx context.Context, name string) (i sandbox.Info, err error) {
	return i, c.call(ctx, http.MethodGet, sandboxPath(name, ""), nil, &i)
}

// Create returns the sandbox of that name, made now if there was none.
func (c *Client) Create(ctx context.Context, name string, spec sandbox.Spec) (i sandbox.Info, err error) {
	return i, c.call(ctx, http.MethodPut, sandboxPath(name, ""), spec, &i)
}

// Start runs a stopped sandbox; one that runs is left as it is.
func (c *Client) Start(ctx context.Context, name string) (i sandbox.Info, err error) {
	return i, c.call(ctx, http.MethodPost, sandboxPath(name, "start"), nil, &i)
}

// Stop ends a sandbox's processes; its files stay.
func (c *Client) Stop(ctx context.Context, name string) (i sandbox.Info, err error) {
	return i, c.call(ctx, http.MethodPost, sandboxPath(name, "stop"), nil, &i)
}

// Remove ends a sandbox for good, with its files and its memory.
func (c *Client) Remove(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodDelete, sandboxPath(name, ""), nil, nil)
}

// SandboxRoot returns the PEM certificate that a sandbox trusts.
func (c *Client) SandboxRoot(ctx context.Context, name string) (pem []byte, err error) {
	return pem, c.call(ctx, http.MethodGet, sandboxPath(name, "ca"), nil, &pem)
}

// ClientRoot returns the PEM certificate that an explicit proxy user must trust.
func (c *Client) ClientRoot(ctx context.Context, name string) (pem []byte, err error) {
	return pem, c.call(ctx, http.MethodGet, "/v1/clients/"+url.PathEscape(name)+"/ca", nil, &pem)
}

// Clients returns the users of the explicit proxy by name.
func (c *Client) Clients(ctx context.Context) (list []ProxyClient, err error) {
	return list, c.call(ctx, http.MethodGet, "/v1/clients", nil, &list)
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
func (c *Client) Secrets(ctx context.Context) (list []Secret, err error) {
	return list, c.call(ctx, http.MethodGet, "/v1/secrets", nil, &list)
}

// SetSecret sets the fields of a secret in the embedded store.
func (c *Client) SetSecret(ctx context.Context, name string, fields map[string]string) error {
	return c.call(ctx, http.MethodPut, "/v1/secrets/"+url.PathEscape(name), fields, nil)
}

// DeleteSecret removes a secret from the embedded store.
func (c *Client) DeleteSecret(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodDelete, "/v1/secrets/"+url.PathEscape(name), nil, nil)
}

// Exec runs a command with its own streams and returns its exit code. The
// command is ended when ctx is done.
func (c *Client) Exec(ctx context.Context, name string, cmd sandbox.Command) (int, error) {
	conn, err := c.dial(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()

	cmd.Input = cmd.Stdin != nil
	data, err := json.Marshal(cmd)
	if err != nil {
		return 0, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://sallyport"+sandboxPath(name, "exec"), bytes.NewReader(data))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", protocol)
	if err := req.Write(conn); err != nil {
		return 0, err
	}
	r := bufio.NewReaderSize(conn, wire.MaxFrame)
	resp, err := http.ReadResponse(r, req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusSwitchingProtocols {
		if err := failure(resp); err != nil {
			return 0, err
		}
		return 0, fmt.Errorf("the daemon answered %s", resp.Status)
	}

	out := wire.NewWriter(conn)
	if cmd.Stdin != nil {
		go func() {
			// A terminal's read cannot be ended: this goroutine lives until the
			// next key or the end of the process.
			_, _ = io.Copy(out.Stream(wire.Stdin), cmd.Stdin)
			_ = out.Write(wire.Stdin, nil)
		}()
	}
	if cmd.Sizes != nil {
		over := make(chan struct{})
		defer close(over)
		go func() {
			for {
				select {
				case s := <-cmd.Sizes:
					if data, err := json.Marshal(s); err == nil {
						_ = out.Write(wire.Resize, data)
					}
				case <-over:
					return
				}
			}
		}()
	}

	buf := make([]byte, wire.MaxFrame)
	for {
		k, p, err := wire.Read(r, buf)
		if err != nil {
			if ctx.Err() != nil {
				return 0, ctx.Err()
			}
			return 0, fmt.Errorf("the daemon went away while the command ran: %w", err)
		}
		switch k {
		case wire.Stdout:
			_, err = cmd.Stdout.Write(p)
		case wire.Stderr:
			_, err = cmd.Stderr.Write(p)
		case wire.Exit:
			var e exit
			if err := json.Unmarshal(p, &e); err != nil {
				return 0, err
			}
			if e.Error != nil {
				return 0, e.Error
			}
			return e.Code, nil
		}
		if err != nil {
			return 0, err
		}
	}
}

// Shutdown asks the daemon to stop its sandboxes, its engine and itself.
func (c *Client) Shutdown(ctx context.Context) error {
	return c.call(ctx, http.MethodPost, "/v1/shutdown", nil, nil)
}
