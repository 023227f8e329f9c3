package api

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"time"

	"sallyport/policy/approval"
	"sallyport/policy/limit"
	"sallyport/sandbox/client"
)

// Limits are the counters of what limits bound.
type Limits interface {
	List(context.Context) ([]Limit, error)
	// Reset empties the counters of a limit, of one subject or, for "", of all, and
	// says how many. Its errors are ErrNoLimit or of the audit log.
	Reset(ctx context.Context, by approval.Operator, name, subject string) (int, error)
}

// Limit is one counter of a limit.
type Limit struct {
	Name    string       `json:"limit"`
	Per     string       `json:"per"`
	Subject string       `json:"subject"`           // sandbox ID, tag's value, host:port, credential, or all
	Sandbox string       `json:"sandbox,omitempty"` // the name, where the subject is a sandbox that there is
	Used    limit.Amount `json:"used"`
	Most    limit.Amount `json:"most"`            // zero: no bound
	Resets  time.Time    `json:"resets,omitzero"` // when the period ends
}

// ErrNoLimit is returned for a name that neither the policy nor a counter has.
var ErrNoLimit = errors.New("there is no such limit")

// resetRequest says which counters.
type resetRequest struct {
	Subject string `json:"subject,omitempty"` // or a sandbox's name; all without
}

// ResetResult says how many counters were emptied.
type ResetResult struct {
	Reset int `json:"reset"`
}

func (h *handler) limits(w http.ResponseWriter, r *http.Request) {
	list, err := h.opt.Limits.List(r.Context())
	if err != nil {
		writeProblem(w, err)
		return
	}
	replyPage(w, r, list, func(l Limit) string { return l.Name + "\x00" + l.Per + "\x00" + l.Subject })
}

func (h *handler) resetLimit(w http.ResponseWriter, r *http.Request) {
	by, err := operator(r)
	if err != nil {
		writeProblem(w, err)
		return
	}
	var in resetRequest
	if err := decode(w, r, &in); err != nil {
		writeProblem(w, err)
		return
	}
	n, err := h.opt.Limits.Reset(r.Context(), by, r.PathValue("name"), in.Subject)
	reply(w, http.StatusOK, ResetResult{n}, err)
}

// Limits lists the counters of limits that are in use.
func (c *Client) Limits(ctx context.Context) ([]Limit, error) {
	return client.All[Limit](ctx, c.Client, "/v1/limits")
}

// ResetLimit empties the counters of a limit: of one subject, or of all.
func (c *Client) ResetLimit(ctx context.Context, name, subject string) (r ResetResult, err error) {
	return r, c.call(ctx, http.MethodPost, "/v1/limits/"+url.PathEscape(name)+"/reset", resetRequest{subject}, &r)
}
