package api

import (
	"encoding/json"
	"net/http"

	"sallyport/sandbox"
	"sallyport/sandbox/agent/wire"
	"sallyport/sandbox/client"
)

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
		return lines.Encode(client.Change{Kind: c.Kind, Path: c.Path, Raw: wire.Raw(c.Path)})
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
