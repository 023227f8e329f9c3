package api

import (
	"context"
	"errors"
	"net/http"
	"time"

	"sallyport/policy/approval"
	"sallyport/policy/limit"
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

// ResetRequest says which counters are to be emptied.
type ResetRequest struct {
	Subject string `json:"subject,omitempty"` // or a sandbox's name; all without
}

// ResetResult says how many counters were emptied.
type ResetResult struct {
	Reset int `json:"reset"`
}

func (h *handler) limits(r *http.Request) ([]Limit, error) { return h.opt.Limits.List(r.Context()) }

func (h *handler) resetLimit(r *http.Request, in ResetRequest) (ResetResult, error) {
	n, err := h.opt.Limits.Reset(r.Context(), PrincipalOf(r.Context()).Operator, r.PathValue("name"), in.Subject)
	return ResetResult{n}, err
}
