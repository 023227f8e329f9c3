package api

import (
	"context"
	"net/http"

	"sallyport/sandbox"
)

// change is a route that does one thing to one sandbox and answers with what it is
// then.
func (h *handler) change(do func(*sandbox.Manager, context.Context, string) (sandbox.Info, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if m, ok := h.sandboxes(w); ok {
			info, err := do(m, r.Context(), r.PathValue("name"))
			reply(w, http.StatusOK, infoFor(r, info), err)
		}
	}
}
