package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"

	"sallyport/sandbox"
	"sallyport/sandbox/agent/wire"
	"sallyport/sandbox/client"
)

// exec switches the connection to frames, see client.Protocol, and splices it with the
// sandbox's agent. The command dies with the connection.
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
	var c sandbox.CommandSpec
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

	out := wire.NewWriter(conn)
	end, err := m.Attach(context.WithoutCancel(r.Context()), r.PathValue("name"), c, sandbox.CommandClient{From: rw.Reader, To: out})
	exit := client.Exit{Code: end.Code}
	if err != nil {
		exit.Error = problemFor(w, err)
	}
	data, err := json.Marshal(exit)
	if err == nil {
		err = out.Write(wire.Exit, data)
	}
	if err != nil && !errors.Is(err, net.ErrClosed) {
		h.opt.Logger.Debug("a command's client went away", "error", err)
	}
}
