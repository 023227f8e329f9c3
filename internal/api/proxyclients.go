package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"sallyport/gateway/access"
)

// Clients is the registry of explicit proxy users.
type Clients interface {
	Add(ctx context.Context, name string, tags map[string]string) (c access.Client, token string, err error)
	Remove(ctx context.Context, name string) error
	List() []access.Client
}

func (h *handler) client(name string) (access.Client, bool) {
	for _, c := range h.opt.Clients.List() {
		if c.Name == name {
			return c, true
		}
	}
	return access.Client{}, false
}

func (h *handler) clients(*http.Request) (list []ProxyClient, err error) {
	for _, c := range h.opt.Clients.List() {
		list = append(list, ProxyClient{Name: c.Name, ID: c.ID, Tags: c.Tags, Created: c.Created})
	}
	return list, nil
}

// ProxyClient is what a listing shows of a user of the explicit proxy.
type ProxyClient struct {
	Name    string            `json:"name"`
	ID      string            `json:"id"`
	Tags    map[string]string `json:"tags,omitempty"`
	Created time.Time         `json:"created"`
}

// ClientToken is the only time that a client's token is shown.
type ClientToken struct {
	Name  string `json:"name"`
	Token string `json:"token"`
}

// ClientRequest says what a user of the explicit proxy shall be.
type ClientRequest struct {
	Tags map[string]string `json:"tags"`
}

func (h *handler) addClient(r *http.Request, spec ClientRequest) (made ClientToken, err error) {
	if h.opt.Sandboxes != nil {
		if _, err := h.opt.Sandboxes.Get(r.PathValue("name")); err == nil {
			return made, fmt.Errorf("%w: a sandbox is named %q: rules select by name, so choose another", errTaken, r.PathValue("name"))
		}
	}
	c, token, err := h.opt.Clients.Add(r.Context(), r.PathValue("name"), spec.Tags)
	if err != nil {
		return made, err
	}
	// Its authority exists before its first connection.
	if _, err := h.opt.Root(c.ID); err != nil {
		// Nobody will ever have seen the token.
		return made, errors.Join(err, h.opt.Clients.Remove(r.Context(), c.Name))
	}
	return ClientToken{c.Name, token}, nil
}

func (h *handler) removeClient(r *http.Request, _ none) (none, error) {
	name := r.PathValue("name")
	c, _ := h.client(name)
	err := h.opt.Clients.Remove(r.Context(), name)
	if err == nil {
		err = h.opt.Forget(c.ID)
	}
	return none{}, err
}

func (h *handler) clientRoot(w http.ResponseWriter, r *http.Request) {
	c, ok := h.client(r.PathValue("name"))
	var err error
	if !ok {
		err = fmt.Errorf("%w: %q: `sallyport client ls` shows those there are", access.ErrClientUnknown, r.PathValue("name"))
	}
	h.root(w, r, c.ID, err)
}

// root answers with the certificate of an authority, unless err says why there is none.
func (h *handler) root(w http.ResponseWriter, r *http.Request, id string, err error) {
	var pem []byte
	if err == nil {
		pem, err = h.opt.Root(id)
	}
	if err != nil {
		h.writeProblem(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/x-pem-file")
	_, _ = w.Write(pem)
}
