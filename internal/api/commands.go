package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"

	"sallyport/sandbox"
	"sallyport/sandbox/agent/wire"
	"sallyport/sandbox/client"
)

// maxInput bounds what one request feeds a command, in bytes; it goes through as
// it comes.
const maxInput = 1 << 40

func (h *handler) startCommand(r *http.Request, c sandbox.CommandSpec) (sandbox.CommandInfo, error) {
	return h.opt.Manager.StartCommand(r.Context(), r.PathValue("name"), c)
}

func (h *handler) listCommands(r *http.Request, _ none) ([]sandbox.CommandInfo, error) {
	return h.opt.Manager.Commands(r.Context(), r.PathValue("name"))
}

func (h *handler) command(r *http.Request, _ none) (sandbox.CommandInfo, error) {
	return h.opt.Manager.Command(r.Context(), r.PathValue("name"), r.PathValue("id"))
}

func (h *handler) killCommand(r *http.Request, _ none) (sandbox.CommandInfo, error) {
	return h.opt.Manager.Kill(r.Context(), r.PathValue("name"), r.PathValue("id"))
}

func (h *handler) signalCommand(r *http.Request, in wire.Name) (sandbox.CommandInfo, error) {
	return h.opt.Manager.Signal(r.Context(), r.PathValue("name"), r.PathValue("id"), in.Signal)
}

func (h *handler) resizeCommand(r *http.Request, in sandbox.Size) (sandbox.CommandInfo, error) {
	return h.opt.Manager.Resize(r.Context(), r.PathValue("name"), r.PathValue("id"), in)
}

func (h *handler) feedCommand(r *http.Request, _ none) (i sandbox.CommandInfo, err error) {
	err = h.opt.Manager.Input(r.Context(), r.PathValue("name"), r.PathValue("id"), r.Body, r.URL.Query().Get("open") == "1")
	if err != nil {
		return i, err
	}
	return h.command(r, none{})
}

func (h *handler) commandOutput(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	o := sandbox.OutputOptions{Stream: q.Get("stream"), Follow: q.Get("follow") == "1"}
	if v := q.Get("from"); v != "" {
		var err error
		if o.From, err = strconv.ParseInt(v, 10, 64); err != nil || o.From < 0 {
			h.writeProblem(w, r, fmt.Errorf("%w: from=%q: give an offset in bytes", errBadRequest, v))
			return
		}
	}
	from, out, err := h.opt.Manager.Output(r.Context(), r.PathValue("name"), r.PathValue("id"), o)
	if err != nil {
		h.writeProblem(w, r, err)
		return
	}
	defer out.Close()
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("X-Content-Type-Options", "nosniff") // it is the sandbox's
	w.Header().Set(wire.FromHeader, strconv.FormatInt(from, 10))
	flush := http.NewResponseController(w).Flush
	if flush() != nil {
		return
	}
	buf := make([]byte, 32<<10)
	for {
		n, err := out.Read(buf)
		if _, werr := w.Write(buf[:n]); werr != nil {
			return
		}
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			panic(http.ErrAbortHandler) // so that the client does not take it for the end
		}
		if flush() != nil {
			return
		}
	}
}

// exec switches the connection to frames, see client.Protocol, and splices it with the
// sandbox's agent. The command dies with the connection.
func (h *handler) exec(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") != client.Protocol {
		w.Header().Set("Upgrade", client.Protocol)
		h.writeProblem(w, r, fmt.Errorf("%w: ask for Upgrade: %s", errBadRequest, client.Protocol))
		return
	}
	var c sandbox.CommandSpec
	if err := decode(r, &c); err != nil {
		h.writeProblem(w, r, err)
		return
	}
	if len(c.Args) == 0 {
		h.writeProblem(w, r, fmt.Errorf("%w: no command: give one after --", sandbox.ErrBadSpec))
		return
	}
	// Start first, so that what is wrong with the sandbox is a plain status.
	if _, err := h.opt.Manager.Start(r.Context(), r.PathValue("name")); err != nil {
		h.writeProblem(w, r, err)
		return
	}
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		h.writeProblem(w, r, err)
		return
	}
	defer conn.Close()
	_, _ = fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", client.Protocol)

	out := wire.NewWriter(conn)
	end, err := h.opt.Manager.Attach(context.WithoutCancel(r.Context()), r.PathValue("name"), c, sandbox.CommandClient{From: rw.Reader, To: out})
	exit := client.Exit{Code: end.Code}
	if err != nil {
		exit.Error = h.problemFor(r, err)
	}
	data, err := json.Marshal(exit)
	if err == nil {
		err = out.Write(wire.Exit, data)
	}
	if err != nil && !errors.Is(err, net.ErrClosed) {
		h.opt.Logger.Debug("a command's client went away", "error", err)
	}
}
