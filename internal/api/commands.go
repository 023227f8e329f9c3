package api

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"sallyport/sandbox"
	"sallyport/sandbox/agent/wire"
	"sallyport/sandbox/manager"
)

// maxInput bounds what one request feeds a command, in bytes; it goes through as
// it comes.
const maxInput = 1 << 40

func (h *handler) startCommand(w http.ResponseWriter, r *http.Request) {
	m, ok := h.sandboxes(w)
	if !ok {
		return
	}
	var c sandbox.CommandSpec
	if err := decode(w, r, &c); err != nil {
		writeProblem(w, err)
		return
	}
	i, err := m.StartCommand(r.Context(), r.PathValue("name"), c)
	reply(w, http.StatusCreated, i, err)
}

func (h *handler) listCommands(w http.ResponseWriter, r *http.Request) {
	m, ok := h.sandboxes(w)
	if !ok {
		return
	}
	list, err := m.Commands(r.Context(), r.PathValue("name"))
	reply(w, http.StatusOK, list, err)
}

// command is a route of one command that answers with how it is then.
func (h *handler) command(do func(m *manager.Manager, w http.ResponseWriter, r *http.Request, name, id string) (sandbox.CommandInfo, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if m, ok := h.sandboxes(w); ok {
			i, err := do(m, w, r, r.PathValue("name"), r.PathValue("id"))
			reply(w, http.StatusOK, i, err)
		}
	}
}

func getCommand(m *manager.Manager, _ http.ResponseWriter, r *http.Request, name, id string) (sandbox.CommandInfo, error) {
	return m.Command(r.Context(), name, id)
}

func killCommand(m *manager.Manager, _ http.ResponseWriter, r *http.Request, name, id string) (sandbox.CommandInfo, error) {
	return m.Kill(r.Context(), name, id)
}

func signalCommand(m *manager.Manager, w http.ResponseWriter, r *http.Request, name, id string) (i sandbox.CommandInfo, err error) {
	var in wire.Name
	if err := decode(w, r, &in); err != nil {
		return i, err
	}
	return m.Signal(r.Context(), name, id, in.Signal)
}

func resizeCommand(m *manager.Manager, w http.ResponseWriter, r *http.Request, name, id string) (i sandbox.CommandInfo, err error) {
	var in sandbox.Size
	if err := decode(w, r, &in); err != nil {
		return i, err
	}
	return m.Resize(r.Context(), name, id, in)
}

func writeStdin(m *manager.Manager, _ http.ResponseWriter, r *http.Request, name, id string) (i sandbox.CommandInfo, err error) {
	if err := m.Input(r.Context(), name, id, r.Body, r.URL.Query().Get("open") == "1"); err != nil {
		return i, err
	}
	return m.Command(r.Context(), name, id)
}

func (h *handler) commandOutput(w http.ResponseWriter, r *http.Request) {
	m, ok := h.sandboxes(w)
	if !ok {
		return
	}
	q := r.URL.Query()
	o := sandbox.OutputOptions{Stream: q.Get("stream"), Follow: q.Get("follow") == "1"}
	if v := q.Get("from"); v != "" {
		var err error
		if o.From, err = strconv.ParseInt(v, 10, 64); err != nil || o.From < 0 {
			writeProblem(w, fmt.Errorf("%w: from=%q: give an offset in bytes", errBadRequest, v))
			return
		}
	}
	from, out, err := m.Output(r.Context(), r.PathValue("name"), r.PathValue("id"), o)
	if err != nil {
		writeProblem(w, err)
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
