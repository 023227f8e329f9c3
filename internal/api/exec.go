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
	"sallyport/sandbox/agent/wire"
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
	sizes := make(chan sandbox.Size)
	go feedCommand(ctx, rw.Reader, feed, sizes, cancel)
	out := wire.NewWriter(conn)
	go func() {
		defer cancel()
		keepAlive(ctx, out)
	}()

	c.Stdout, c.Stderr, c.Sizes = out.Stream(wire.Stdout), out.Stream(wire.Stderr), sizes
	if c.Input {
		c.Stdin = stdin
	}
	var end client.Exit
	end.Code, err = m.Exec(ctx, r.PathValue("name"), c)
	_ = stdin.Close()
	if err != nil {
		end.Error = problemFor(w, err)
	}
	data, err := json.Marshal(end)
	if err == nil {
		err = out.Write(wire.Exit, data)
	}
	if err != nil && !errors.Is(err, net.ErrClosed) {
		h.opt.Logger.Debug("a command's client went away", "error", err)
	}
}

// keepAlive writes until the client is gone or ctx is done. Reading alone does
// not tell: feedCommand does not read on while a command leaves its input alone.
func keepAlive(ctx context.Context, out *wire.Writer) {
	tick := time.NewTicker(aliveEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if err := out.Write(wire.Alive, nil); err != nil {
				return
			}
		}
	}
}

// feedCommand does what the client's frames say until the connection ends, of which it
// tells gone before the command can see an end.
func feedCommand(ctx context.Context, r *bufio.Reader, to *io.PipeWriter, sizes chan<- sandbox.Size, gone func()) {
	buf := make([]byte, wire.MaxFrame)
	for {
		k, p, err := wire.Read(r, buf)
		switch {
		case err != nil:
		case k == wire.Stdin && len(p) == 0:
			_ = to.Close() // end of input; the connection stays
		case k == wire.Stdin:
			// A command that does not read its input blocks only its own stream;
			// one that has closed it does not want the rest.
			_, _ = to.Write(p)
		case k == wire.Resize:
			var s sandbox.Size
			if err = json.Unmarshal(p, &s); err == nil {
				select {
				case sizes <- s:
				case <-ctx.Done():
				}
			}
		default:
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			gone()
			_ = to.CloseWithError(io.ErrUnexpectedEOF)
			return
		}
	}
}
