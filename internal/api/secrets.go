package api

import (
	"context"
	"net/http"
	"time"

	"sallyport/gateway/credential"
)

// Secrets is the embedded store as the API uses it. Values go in and never out.
type Secrets interface {
	Set(ctx context.Context, name string, fields map[string]credential.Secret) error
	Delete(ctx context.Context, name string) error
	List() ([]Secret, error)
}

// Secret is what a listing shows of one.
type Secret struct {
	Name    string    `json:"name"`
	Source  string    `json:"source"` // embedded, or vault and the path
	Version string    `json:"version,omitempty"`
	Updated time.Time `json:"updated,omitzero"`
	Error   string    `json:"error,omitempty"` // why it cannot be read now
}

func (h *handler) listSecrets(w http.ResponseWriter, r *http.Request) {
	list, err := h.opt.Secrets.List()
	if err != nil {
		writeProblem(w, err)
		return
	}
	replyPage(w, r, list, func(s Secret) string { return s.Name + "\x00" + s.Source })
}

func (h *handler) setSecret(w http.ResponseWriter, r *http.Request) {
	var plain map[string]string
	if err := decode(w, r, &plain); err != nil {
		writeProblem(w, err)
		return
	}
	fields := map[string]credential.Secret{}
	for k, v := range plain {
		fields[k] = credential.NewSecret(v)
	}
	reply(w, http.StatusOK, nil, h.opt.Secrets.Set(r.Context(), r.PathValue("name"), fields))
}

func (h *handler) deleteSecret(w http.ResponseWriter, r *http.Request) {
	reply(w, http.StatusOK, nil, h.opt.Secrets.Delete(r.Context(), r.PathValue("name")))
}
