package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"sallyport/sandbox"
	"sallyport/sandbox/agent/wire"
)

// Exec runs a command with its own streams and returns its exit code. The
// command is ended when ctx is done.
func (c *Client) Exec(ctx context.Context, name string, cmd sandbox.CommandSpec, s sandbox.Streams) (int, error) {
	conn, err := c.dial(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()

	cmd.Input = s.Stdin != nil
	data, err := json.Marshal(cmd)
	if err != nil {
		return 0, err
	}
	req, err := c.request(ctx, http.MethodPost, sandboxPath(name, "exec"), bytes.NewReader(data))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", Protocol)
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

	over := make(chan struct{})
	defer close(over)
	unread := make(chan error, 1)
	go s.Send(wire.NewWriter(conn), over, func(err error) {
		unread <- err
		_ = conn.Close() // and so the daemon ends the command
	})
	exit, err := wire.Frames(r, s.Take)
	if broken := new(wire.ReadError); errors.As(err, &broken) {
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		select {
		case err := <-unread:
			return 0, fmt.Errorf("the command was ended, since its input could not be read to its end: %w", err)
		default:
		}
		return 0, fmt.Errorf("the daemon went away while the command ran: %w", err)
	}
	if err != nil {
		return 0, err
	}
	var e Exit
	if err := json.Unmarshal(exit, &e); err != nil {
		return 0, err
	}
	if e.Error != nil {
		return 0, e.Error
	}
	return e.Code, nil
}
