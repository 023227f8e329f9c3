package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"sallyport/sandbox"
	"sallyport/sandbox/agent/wire"
)

// Exec runs a command with its own streams and returns its exit code. The
// command is ended when ctx is done.
func (c *Client) Exec(ctx context.Context, name string, cmd sandbox.CommandSpec, s sandbox.Streams) (int, error) {
	cmd.Input = s.Stdin != nil
	resp, err := c.send(ctx, http.MethodPost, sandboxPath(name, "exec"), cmd, http.Header{"Connection": {"Upgrade"}, "Upgrade": {Protocol}})
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	conn, ok := resp.Body.(io.ReadWriteCloser) // after 101 it is the connection
	if !ok {
		return 0, fmt.Errorf("the daemon answered %s", resp.Status)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()

	over := make(chan struct{})
	defer close(over)
	unread := make(chan error, 1)
	go s.Send(wire.NewWriter(conn), over, func(err error) {
		unread <- err
		_ = conn.Close() // and so the daemon ends the command
	})
	exit, err := wire.Frames(bufio.NewReaderSize(conn, wire.MaxFrame), s.Take)
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
