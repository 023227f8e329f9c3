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
	return h.opt.Manager.Images(r.Context())
}

func (h *handler) removeImage(r *http.Request, _ none) (none, error) {
	return none{}, h.opt.Manager.RemoveImage(r.Context(), r.URL.Query().Get("name"))
}

func (h *handler) loadImages(r *http.Request, _ none) ([]sandbox.Image, error) {
	return h.opt.Manager.LoadImages(r.Context(), r.Body)
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
	streamSteps(h, w, r, func(p *Problem) client.ImagePull { return client.ImagePull{Problem: p} }, func(say func(client.ImagePull) error) error {
		i, err := h.opt.Manager.PullImage(r.Context(), in.Name, func(s sandbox.ImageStep) error { return say(client.ImagePull{Step: &s}) })
		if err == nil {
			_ = say(client.ImagePull{Image: &i}) // the client is gone if this fails
		}
		return err
	})
}

// streamSteps streams the lines of JSON that do says, each at once. An error before the
// first line is a problem; a later one is the last line.
func streamSteps[T any](h *handler, w http.ResponseWriter, r *http.Request, failed func(*Problem) T, do func(say func(T) error) error) {
	lines, control, begun := json.NewEncoder(w), http.NewResponseController(w), false
	say := func(line T) error {
		if !begun {
			begun = true
			w.Header().Set("Content-Type", "application/x-ndjson")
		}
		_ = control.SetWriteDeadline(time.Now().Add(streamWithin)) // what has none is a test's
		return errors.Join(lines.Encode(line), control.Flush())
	}
	switch err := do(say); {
	case err != nil && !begun:
		h.writeProblem(w, r, err)
	case err != nil:
		_ = say(failed(h.problemFor(r, err)))
	}
}
