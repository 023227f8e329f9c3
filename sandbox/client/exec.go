package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"sallyport/sandbox"
)

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
	r := bufio.NewReaderSize(conn, MaxFrame)
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

	out := NewFrameWriter(conn)
	go func() {
		if cmd.Stdin != nil {
			// A terminal's read cannot be ended: this goroutine lives until the
			// next key or the end of the process.
			_, _ = io.Copy(out.Stream(KindStdin), cmd.Stdin)
		}
		_ = out.WriteFrame(KindStdin, nil)
	}()

	buf := make([]byte, MaxFrame)
	for {
		k, p, err := ReadFrame(r, buf)
		if err != nil {
			if ctx.Err() != nil {
				return 0, ctx.Err()
			}
			return 0, fmt.Errorf("the daemon went away while the command ran: %w", err)
		}
		switch k {
		case KindStdout:
			_, err = cmd.Stdout.Write(p)
		case KindStderr:
			_, err = cmd.Stderr.Write(p)
		case KindExit:
			var e Exit
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
