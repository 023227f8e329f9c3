package api

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	"sallyport/sandbox"
	"sallyport/sandbox/client"
)

func (h *handler) listImages(w http.ResponseWriter, r *http.Request) {
	m, ok := h.sandboxes(w)
	if !ok {
		return
	}
	list, err := m.Images(r.Context())
	if err != nil {
		writeProblem(w, err)
		return
	}
	replyPage(w, r, list, func(i sandbox.Image) string { return strings.Join(i.Names, " ") + "\x00" + i.ID })
}

func (h *handler) removeImage(w http.ResponseWriter, r *http.Request) {
	if m, ok := h.sandboxes(w); ok {
		reply(w, http.StatusNoContent, nil, m.RemoveImage(r.Context(), r.URL.Query().Get("name")))
	}
}

func (h *handler) loadImages(w http.ResponseWriter, r *http.Request) {
	if m, ok := h.sandboxes(w); ok {
		list, err := m.LoadImages(r.Context(), r.Body)
		reply(w, http.StatusOK, list, err)
	}
}

// pullImage streams lines of JSON: how it goes on, and at the end the image, or the
// problem that there was.
func (h *handler) pullImage(w http.ResponseWriter, r *http.Request) {
	m, ok := h.sandboxes(w)
	if !ok {
		return
	}
	var in struct {
		Name string `json:"name"`
	}
	if err := decode(w, r, &in); err != nil {
		writeProblem(w, err)
		return
	}
	lines, control, begun := json.NewEncoder(w), http.NewResponseController(w), false
	say := func(p client.ImagePull) error {
		if !begun {
			begun = true
			w.Header().Set("Content-Type", "application/x-ndjson")
		}
		_ = control.SetWriteDeadline(time.Now().Add(streamWithin)) // what has none is a test's
		return errors.Join(lines.Encode(p), control.Flush())
	}
	i, err := m.PullImage(r.Context(), in.Name, func(s sandbox.ImageStep) error { return say(client.ImagePull{Step: &s}) })
	switch {
	case err != nil && !begun:
		writeProblem(w, err)
	case err != nil:
		_ = say(client.ImagePull{Problem: problemFor(w, err)})
	default:
		_ = say(client.ImagePull{Image: &i})
	}
}
