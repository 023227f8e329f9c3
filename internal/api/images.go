package api

import (
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"sallyport/sandbox"
	"sallyport/sandbox/client"
)

func (h *handler) images(r *http.Request) ([]sandbox.Image, error) {
	return h.opt.Sandboxes.Images(r.Context())
}

func (h *handler) removeImage(r *http.Request, _ none) (none, error) {
	return none{}, h.opt.Sandboxes.RemoveImage(r.Context(), r.URL.Query().Get("name"))
}

func (h *handler) loadImages(r *http.Request, _ none) ([]sandbox.Image, error) {
	return h.opt.Sandboxes.LoadImages(r.Context(), r.Body)
}

// pullImage streams lines of JSON: how it goes on, and at the end the image, or the
// problem that there was.
func (h *handler) pullImage(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Name string `json:"name"`
	}
	if err := decode(r, &in); err != nil {
		h.writeProblem(w, r, err)
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
	i, err := h.opt.Sandboxes.PullImage(r.Context(), in.Name, func(s sandbox.ImageStep) error { return say(client.ImagePull{Step: &s}) })
	switch {
	case err != nil && !begun:
		h.writeProblem(w, r, err)
	case err != nil:
		_ = say(client.ImagePull{Problem: h.problemFor(r, err)})
	default:
		_ = say(client.ImagePull{Image: &i})
	}
}
