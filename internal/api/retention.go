package api

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"sallyport/audit/retention"
)

// Retention is what keeps and deletes records of the audit log. Its errors are those of
// package retention, or of the audit log.
type Retention interface {
	Holds() ([]retention.Hold, error)
	AddHold(ctx context.Context, name, reason string) (retention.Hold, error)
	RemoveHold(ctx context.Context, name, reason string) error
	Delete(ctx context.Context, before time.Time, force bool) (retention.Plan, error)
}

// HoldReason says why a legal hold begins or ends.
type HoldReason struct {
	Reason string `json:"reason"`
}

// DeleteRequest says which records of the audit log are to be deleted.
type DeleteRequest struct {
	Before time.Time `json:"before"`          // a segment goes if all of its records are older
	Force  bool      `json:"force,omitempty"` // also what a sink lacks
}

func (h *handler) holds(*http.Request) ([]retention.Hold, error) { return h.opt.Retention.Holds() }

func (h *handler) addHold(r *http.Request, in HoldReason) (retention.Hold, error) {
	return h.opt.Retention.AddHold(r.Context(), r.PathValue("name"), in.Reason)
}

func (h *handler) releaseHold(r *http.Request, in HoldReason) (none, error) {
	return none{}, h.opt.Retention.RemoveHold(r.Context(), r.PathValue("name"), in.Reason)
}

func (h *handler) deleteAudit(r *http.Request, in DeleteRequest) (retention.Plan, error) {
	if in.Before.IsZero() {
		return retention.Plan{}, fmt.Errorf("%w: before is needed, as 2026-12-01T00:00:00Z", errBadRequest)
	}
	return h.opt.Retention.Delete(r.Context(), in.Before, in.Force)
}
