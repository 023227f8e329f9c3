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
	// RotateKey has the embedded store sealed with another key.
	RotateKey(ctx context.Context) (Rotation, error)
	// History is of a secret of the embedded store, the newest change last.
	History(name string) ([]SecretChange, error)
}

// Secret is what a listing shows of one.
type Secret struct {
	Name    string    `json:"name"`
	Source  string    `json:"source"` // embedded, or vault and the path
	Version string    `json:"version,omitempty"`
	Updated time.Time `json:"updated,omitzero"`
	// Leases is how many secrets an engine of Vault has made of it that live.
	Leases int    `json:"leases,omitempty"`
	Error  string `json:"error,omitempty"` // why it cannot be read now
}

// SecretChange is a version of a secret: when it was set or removed, and by whom.
type SecretChange struct {
	Version uint64    `json:"version"`
	Time    time.Time `json:"time"`
	By      string    `json:"by,omitempty"`
	Removed bool      `json:"removed,omitempty"`
}

// Rotation is what a change of the embedded store's key did.
type Rotation struct {
	Secrets int `json:"secrets"` // that were sealed anew, those that were removed among them
}

func (h *handler) rotateKey(r *http.Request, _ none) (Rotation, error) {
	return h.opt.Secrets.RotateKey(r.Context())
}

func (h *handler) secretHistory(r *http.Request, _ none) ([]SecretChange, error) {
	return h.opt.Secrets.History(r.PathValue("name"))
}

func (h *handler) secrets(*http.Request) ([]Secret, error) { return h.opt.Secrets.List() }

func (h *handler) setSecret(r *http.Request, plain map[string]string) (none, error) {
	fields := map[string]credential.Secret{}
	for k, v := range plain {
		fields[k] = credential.NewSecret(v)
	}
	return none{}, h.opt.Secrets.Set(r.Context(), r.PathValue("name"), fields)
}

func (h *handler) deleteSecret(r *http.Request, _ none) (none, error) {
	return none{}, h.opt.Secrets.Delete(r.Context(), r.PathValue("name"))
}
