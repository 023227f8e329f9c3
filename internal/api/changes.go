package api

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"

	"sallyport/sandbox"
	"sallyport/sandbox/agent/wire"
)

// Change is one file's, as a line of JSON.
type Change struct {
	Kind string `json:"kind"` // added, modified or removed
	Path string `json:"path"`
	Raw  []byte `json:"raw,omitempty"` // Path where that is not UTF-8
}

// changes streams what has changed of a sandbox's files.
func (h *handler) changes(w http.ResponseWriter, r *http.Request) {
	m, ok := h.sandboxes(w)
	if !ok {
		return
	}
	lines, begun := json.NewEncoder(w), false
	begin := func() {
		if !begun {
			begun = true
			raw(w, "application/x-ndjson")
		}
	}
	err := m.Changes(r.Context(), r.PathValue("name"), r.URL.Query().Get("since"), func(c sandbox.Change) error {
		begin()
		return lines.Encode(Change{Kind: c.Kind, Path: c.Path, Raw: wire.Raw(c.Path)})
	})
	switch {
	case err == nil:
		begin()
	case !begun:
		writeProblem(w, err)
	default:
		panic(http.ErrAbortHandler) // so that the client does not take it for the end
	}
}

// Changes tells what has changed of a sandbox's files since a snapshot or, for
// "", of its image.
func (c *Client) Changes(ctx context.Context, name, snapshot string, tell func(Change) error) error {
	path := sandboxPath(name, "changes")
	if snapshot != "" {
		path += "?since=" + url.QueryEscape(snapshot)
	}
	resp, err := c.send(ctx, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	for lines := json.NewDecoder(resp.Body); ; {
		var x Change
		if err := lines.Decode(&x); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := tell(x); err != nil {
			return err
		}
	}
}
