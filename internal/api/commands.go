package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"sallyport/sandbox"
	"sallyport/sandbox/agent/wire"
)

// registerCommands adds the routes of commands.
func (h *handler) registerCommands(mux *http.ServeMux) {
	const commands = "/v1/sandboxes/{name}/commands"
	mux.HandleFunc("POST "+commands, h.startCommand)
	mux.HandleFunc("GET "+commands, h.listCommands)
	mux.HandleFunc("GET "+commands+"/{id}", h.command(func(m *sandbox.Manager, w http.ResponseWriter, r *http.Request, name, id string) (sandbox.CommandInfo, error) {
		return m.Command(r.Context(), name, id)
	}))
	mux.HandleFunc("DELETE "+commands+"/{id}", h.command(func(m *sandbox.Manager, w http.ResponseWriter, r *http.Request, name, id string) (sandbox.CommandInfo, error) {
		return m.Kill(r.Context(), name, id)
	}))
	mux.HandleFunc("POST "+commands+"/{id}/signal", h.command(func(m *sandbox.Manager, w http.ResponseWriter, r *http.Request, name, id string) (sandbox.CommandInfo, error) {
		var in wire.Name
		if err := decode(w, r, &in); err != nil {
			return sandbox.CommandInfo{}, err
		}
		return m.Signal(r.Context(), name, id, in.Signal)
	}))
	mux.HandleFunc("POST "+commands+"/{id}/resize", h.command(func(m *sandbox.Manager, w http.ResponseWriter, r *http.Request, name, id string) (sandbox.CommandInfo, error) {
		var in sandbox.Size
		if err := decode(w, r, &in); err != nil {
			return sandbox.CommandInfo{}, err
		}
		return m.Resize(r.Context(), name, id, in)
	}))
	mux.HandleFunc("POST "+commands+"/{id}/stdin", h.command(func(m *sandbox.Manager, w http.ResponseWriter, r *http.Request, name, id string) (sandbox.CommandInfo, error) {
		if err := m.Input(r.Context(), name, id, r.Body, r.URL.Query().Get("open") == "1"); err != nil {
			return sandbox.CommandInfo{}, err
		}
		return m.Command(r.Context(), name, id)
	}))
	mux.HandleFunc("GET "+commands+"/{id}/output", h.commandOutput)
}

func (h *handler) startCommand(w http.ResponseWriter, r *http.Request) {
	m, ok := h.sandboxes(w)
	if !ok {
		return
	}
	var c sandbox.Command
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
func (h *handler) command(do func(m *sandbox.Manager, w http.ResponseWriter, r *http.Request, name, id string) (sandbox.CommandInfo, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		m, ok := h.sandboxes(w)
		if !ok {
			return
		}
		i, err := do(m, w, r, r.PathValue("name"), r.PathValue("id"))
		reply(w, http.StatusOK, i, err)
	}
}

// fromHeader tells the offset of an answer's first byte of output.
const fromHeader = wire.FromHeader

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
	w.Header().Set(fromHeader, strconv.FormatInt(from, 10))
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

func commandPath(name, id, verb string) string {
	p := sandboxPath(name, "commands/"+url.PathEscape(id))
	if verb != "" {
		p += "/" + verb
	}
	return p
}

// StartCommand starts a command in the background.
func (c *Client) StartCommand(ctx context.Context, name string, cmd sandbox.Command) (i sandbox.CommandInfo, err error) {
	return i, c.call(ctx, http.MethodPost, sandboxPath(name, "commands"), cmd, &i)
}

// Commands lists the commands of a sandbox's session, the oldest first.
func (c *Client) Commands(ctx context.Context, name string) (list []sandbox.CommandInfo, err error) {
	return list, c.call(ctx, http.MethodGet, sandboxPath(name, "commands"), nil, &list)
}

// Command says how one command is.
func (c *Client) Command(ctx context.Context, name, id string) (i sandbox.CommandInfo, err error) {
	return i, c.call(ctx, http.MethodGet, commandPath(name, id, ""), nil, &i)
}

// SignalCommand sends a signal, as in TERM, to a command's process group.
func (c *Client) SignalCommand(ctx context.Context, name, id, signal string) (i sandbox.CommandInfo, err error) {
	return i, c.call(ctx, http.MethodPost, commandPath(name, id, "signal"), wire.Name{Signal: signal}, &i)
}

// ResizeCommand changes the size of a command's terminal.
func (c *Client) ResizeCommand(ctx context.Context, name, id string, s sandbox.Size) (i sandbox.CommandInfo, err error) {
	return i, c.call(ctx, http.MethodPost, commandPath(name, id, "resize"), s, &i)
}

// KillCommand ends a command and all that it started.
func (c *Client) KillCommand(ctx context.Context, name, id string) (i sandbox.CommandInfo, err error) {
	return i, c.call(ctx, http.MethodDelete, commandPath(name, id, ""), nil, &i)
}

// Feed gives a command input and, unless open, then ends it.
func (c *Client) Feed(ctx context.Context, name, id string, from io.Reader, open bool) error {
	path := commandPath(name, id, "stdin")
	if open {
		path += "?open=1"
	}
	resp, err := c.send(ctx, http.MethodPost, path, from)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// Output reads a stream of a command's: see [sandbox.Manager.Output].
func (c *Client) Output(ctx context.Context, name, id string, o sandbox.OutputOptions) (from int64, out io.ReadCloser, err error) {
	q := url.Values{"stream": {o.Stream}, "from": {strconv.FormatInt(o.From, 10)}}
	if o.Follow {
		q.Set("follow", "1")
	}
	resp, err := c.send(ctx, http.MethodGet, commandPath(name, id, "output")+"?"+q.Encode(), nil)
	if err != nil {
		return 0, nil, err
	}
	from, err = strconv.ParseInt(resp.Header.Get(fromHeader), 10, 64)
	if err != nil {
		_ = resp.Body.Close()
		return 0, nil, fmt.Errorf("the daemon does not say where its answer begins: %w", err)
	}
	return from, resp.Body, nil
}
