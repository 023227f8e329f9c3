package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"sallyport/sandbox"
	"sallyport/sandbox/client"
)

// Exposures keeps what is exposed of sandboxes.
type Exposures interface {
	Expose(ctx context.Context, i sandbox.Info, port uint16, lasts time.Duration) (client.Exposed, error)
	Unexpose(ctx context.Context, i sandbox.Info, port uint16) error
	List(i sandbox.Info) []client.Exposure // by port
}

// ErrNotExposable refuses to expose what the policy or the configuration does not
// let anybody reach.
var ErrNotExposable = errors.New("this port cannot be exposed")

// defaultExposure is how long a port is exposed where the caller does not say.
const defaultExposure = time.Hour

// exposed is the sandbox and the port that a request names.
func (h *handler) exposed(w http.ResponseWriter, r *http.Request) (i sandbox.Info, port uint16, ok bool) {
	n, err := strconv.ParseUint(r.PathValue("port"), 10, 16)
	if err != nil || n == 0 {
		writeProblem(w, fmt.Errorf("%w: %q is not a port", errBadRequest, r.PathValue("port")))
		return i, 0, false
	}
	i, ok = h.sandbox(w, r)
	return i, uint16(n), ok
}

func (h *handler) listExposures(w http.ResponseWriter, r *http.Request) {
	if i, ok := h.sandbox(w, r); ok {
		replyPage(w, r, h.opt.Exposures.List(i), func(e client.Exposure) string { return fmt.Sprintf("%05d", e.Port) })
	}
}

func (h *handler) expose(w http.ResponseWriter, r *http.Request) {
	i, port, ok := h.exposed(w, r)
	if !ok {
		return
	}
	var in struct {
		Seconds int64 `json:"seconds"`
	}
	if err := decode(w, r, &in); err != nil {
		writeProblem(w, err)
		return
	}
	lasts := defaultExposure
	if in.Seconds != 0 {
		lasts = time.Duration(min(max(in.Seconds, -1), 1<<30)) * time.Second
	}
	made, err := h.opt.Exposures.Expose(r.Context(), i, port, lasts)
	reply(w, http.StatusCreated, made, err)
}

func (h *handler) unexpose(w http.ResponseWriter, r *http.Request) {
	if i, port, ok := h.exposed(w, r); ok {
		reply(w, http.StatusNoContent, nil, h.opt.Exposures.Unexpose(r.Context(), i, port))
	}
}
