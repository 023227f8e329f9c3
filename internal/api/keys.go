package api

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"time"

	"sallyport/audit"
	"sallyport/policy/approval"
	"sallyport/sandbox/client"
)

// Recorder is the audit log.
type Recorder interface {
	// Append returns when the events are durable.
	Append(context.Context, ...*audit.Event) error
	Enqueue(*audit.Event) error
}

// KeyRequest is what a key shall be.
type KeyRequest struct {
	Scopes  []string  `json:"scopes"`
	Tenant  string    `json:"tenant,omitempty"`
	Expires time.Time `json:"expires,omitzero"`
}

// KeyText is the only time that a key is shown.
type KeyText struct {
	Key
	Text string `json:"key"`
}

func (h *handler) listKeys(w http.ResponseWriter, r *http.Request) {
	replyPage(w, r, h.opt.Keys.List(), func(k Key) string { return k.Name })
}

func (h *handler) createKey(w http.ResponseWriter, r *http.Request) {
	var in KeyRequest
	if err := decode(w, r, &in); err != nil {
		writeProblem(w, err)
		return
	}
	scopes, err := ParseScopes(in.Scopes)
	if err != nil {
		writeProblem(w, err)
		return
	}
	made, text, err := h.opt.Keys.Create(Key{
		Name: r.PathValue("name"), Scopes: scopes, Tenant: in.Tenant, Expires: in.Expires.UTC(),
		By: PrincipalOf(r.Context()).Operator.Name,
	})
	if err != nil {
		writeProblem(w, err)
		return
	}
	if err := h.opt.Recorder.Append(r.Context(), keyEvent(made, "created")); err != nil {
		_, gone := h.opt.Keys.Remove(made.Name) // nobody has seen it
		writeProblem(w, errors.Join(err, gone))
		return
	}
	reply(w, http.StatusCreated, KeyText{made, text}, nil)
}

func (h *handler) removeKey(w http.ResponseWriter, r *http.Request) {
	gone, err := h.opt.Keys.Remove(r.PathValue("name"))
	if err == nil {
		err = h.opt.Recorder.Append(context.WithoutCancel(r.Context()), keyEvent(gone, "removed"))
	}
	reply(w, http.StatusNoContent, nil, err)
}

func keyEvent(k Key, state string) *audit.Event {
	e := event("key/"+k.Name, "API key "+k.Name+" ("+k.ID+") "+state, state)
	e.Detail = "scopes " + join(k.Scopes)
	e.Unmapped.Sallyport.Owner = k.Tenant
	return e
}

// event is of a change that the API made or refused (OCSF Application Lifecycle).
func event(app, message, state string) *audit.Event {
	e := audit.New(audit.KindLifecycle, audit.ClassLifecycle, audit.ActivityOther)
	e.App = &audit.Product{Name: app}
	e.StatusID = audit.StatusSuccess
	e.Message = message
	e.Unmapped.Sallyport.State = state
	return e
}

// principal is whom a key stands for.
func (k Key) principal() Principal {
	return Principal{
		ID:       "key:" + k.ID,
		Operator: approval.Operator{Name: "key " + k.Name, UID: "key:" + k.ID},
		Scopes:   k.Scopes, Tenant: k.Tenant, key: k.ID,
	}
}

// Keys lists the API keys.
func (c *Client) Keys(ctx context.Context) ([]Key, error) {
	return client.All[Key](ctx, c.Client, "/v1/keys")
}

// CreateKey makes an API key. Its text is not kept.
func (c *Client) CreateKey(ctx context.Context, name string, want KeyRequest) (k KeyText, err error) {
	return k, c.call(ctx, http.MethodPut, "/v1/keys/"+url.PathEscape(name), want, &k)
}

// RemoveKey voids a key at once.
func (c *Client) RemoveKey(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodDelete, "/v1/keys/"+url.PathEscape(name), nil, nil)
}
