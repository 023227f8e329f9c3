package api

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"sallyport/sandbox"
	"sallyport/sandbox/client"
)

// aliveEvery is how often a client's connection is tried while its command
// runs.
const aliveEvery = 2 * time.Second

// exec switches the connection to frames; see client.Protocol. The command dies with
// the connection.
func (h *handler) exec(w http.ResponseWriter, r *http.Request) {
	m, ok := h.sandboxes(w)
	if !ok {
		return
	}
	if r.Header.Get("Upgrade") != client.Protocol {
		w.Header().Set("Upgrade", client.Protocol)
		writeProblem(w, fmt.Errorf("%w: ask for Upgrade: %s", errBadRequest, client.Protocol))
		return
	}
	var c sandbox.Command
	if err := decode(w, r, &c); err != nil {
		writeProblem(w, err)
		return
	}
	if len(c.Args) == 0 {
		writeProblem(w, fmt.Errorf("%w: no command: give one after --", sandbox.ErrBadSpec))
		return
	}
	// Start first, so that what is wrong with the sandbox is a plain status.
	if _, err := m.Start(r.Context(), r.PathValue("name")); err != nil {
		writeProblem(w, err)
		return
	}
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		writeProblem(w, err)
		return
	}
	defer conn.Close()
	_, _ = fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", client.Protocol)

	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	defer cancel()
	stdin, feed := io.Pipe()
	go func() {
		defer cancel() // the client is gone
		feedStdin(rw.Reader, feed)
	}()
	out := client.NewFrameWriter(conn)
	go func() {
		defer cancel()
		keepAlive(ctx, out)
	}()

	c.Stdin, c.Stdout, c.Stderr = stdin, out.Stream(client.KindStdout), out.Stream(client.KindStderr)
	var end client.Exit
	end.Code, err = m.Exec(ctx, r.PathValue("name"), c)
	_ = stdin.Close()
	if err != nil {
		end.Error = problem(err)
	}
	data, err := json.Marshal(end)
	if err == nil {
		err = out.WriteFrame(client.KindExit, data)
	}
	if err != nil && !errors.Is(err, net.ErrClosed) {
		h.opt.Logger.Debug("a command's client went away", "error", err)
	}
}

// keepAlive writes until the client is gone or ctx is done. Reading alone does
// not tell: feedStdin does not read on while a command leaves its input alone.
func keepAlive(ctx context.Context, out *client.FrameWriter) {
	tick := time.NewTicker(aliveEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if err := out.WriteFrame(client.KindAlive, nil); err != nil {
				return
			}
		}
	}
}

// feedStdin copies stdin frames until the connection ends.
func feedStdin(r *bufio.Reader, to *io.PipeWriter) {
	buf := make([]byte, client.MaxFrame)
	for {
		k, p, err := client.ReadFrame(r, buf)
		if err != nil {
			_ = to.CloseWithError(io.ErrUnexpectedEOF)
			return
		}
		switch {
		case k != client.KindStdin:
			_ = to.CloseWithError(io.ErrUnexpectedEOF)
			return
		case len(p) == 0:
			_ = to.Close() // end of input; the connection stays
		default:
			// A command that does not read its input blocks only its own stream.
			if _, err := to.Write(p); err != nil {
				continue
			}
		}
	}
}
