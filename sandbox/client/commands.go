package client

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"sallyport/sandbox"
	"sallyport/sandbox/agent/wire"
)

func commandPath(name, id, verb string) string {
	p := sandboxPath(name, "commands/"+url.PathEscape(id))
	if verb != "" {
		p += "/" + verb
	}
	return p
}

// StartCommand starts a command in the background.
func (c *Client) StartCommand(ctx context.Context, name string, cmd sandbox.CommandSpec) (i sandbox.CommandInfo, err error) {
	return i, c.Call(ctx, http.MethodPost, sandboxPath(name, "commands"), cmd, &i)
}

// Commands lists the commands of a sandbox's session, the oldest first.
func (c *Client) Commands(ctx context.Context, name string) (list []sandbox.CommandInfo, err error) {
	return list, c.Call(ctx, http.MethodGet, sandboxPath(name, "commands"), nil, &list)
}

// Command says how one command is.
func (c *Client) Command(ctx context.Context, name, id string) (i sandbox.CommandInfo, err error) {
	return i, c.Call(ctx, http.MethodGet, commandPath(name, id, ""), nil, &i)
}

// SignalCommand sends a signal, as in TERM, to a command's process group.
func (c *Client) SignalCommand(ctx context.Context, name, id, signal string) (i sandbox.CommandInfo, err error) {
	return i, c.Call(ctx, http.MethodPost, commandPath(name, id, "signal"), wire.Name{Signal: signal}, &i)
}

// ResizeCommand changes the size of a command's terminal.
func (c *Client) ResizeCommand(ctx context.Context, name, id string, s sandbox.Size) (i sandbox.CommandInfo, err error) {
	return i, c.Call(ctx, http.MethodPost, commandPath(name, id, "resize"), s, &i)
}

// KillCommand ends a command and all that it started.
func (c *Client) KillCommand(ctx context.Context, name, id string) (i sandbox.CommandInfo, err error) {
	return i, c.Call(ctx, http.MethodDelete, commandPath(name, id, ""), nil, &i)
}

// Feed gives a command input and, unless open, then ends it.
func (c *Client) Feed(ctx context.Context, name, id string, from io.Reader, open bool) error {
	path := commandPath(name, id, "stdin")
	if open {
		path += "?open=1"
	}
	req, err := c.request(ctx, http.MethodPost, path, from)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/octet-stream")
	resp, err := c.do(req)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// Output reads a stream of a command's: see [manager.Manager.Output].
func (c *Client) Output(ctx context.Context, name, id string, o sandbox.OutputOptions) (from int64, out io.ReadCloser, err error) {
	q := url.Values{"from": {strconv.FormatInt(o.From, 10)}}
	if o.Stream != "" {
		q.Set("stream", o.Stream)
	}
	if o.Follow {
		q.Set("follow", "1")
	}
	resp, err := c.fetch(ctx, commandPath(name, id, "output")+"?"+q.Encode(), nil)
	if err != nil {
		return 0, nil, err
	}
	from, err = strconv.ParseInt(resp.Header.Get(wire.FromHeader), 10, 64)
	if err != nil {
		_ = resp.Body.Close()
		return 0, nil, fmt.Errorf("the daemon does not say where its answer begins: %w", err)
	}
	return from, resp.Body, nil
}
