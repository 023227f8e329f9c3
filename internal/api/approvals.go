package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"

	"sallyport/policy/approval"
)

// ApprovalList is what waits and what is granted.
type ApprovalList struct {
	Requests []approval.Request `json:"requests"`
	Grants   []approval.Grant   `json:"grants"`
}

// Bounds of a stream of lists.
const (
	watchEvery = 100 * time.Millisecond // no more often than that
	watchAlive = 15 * time.Second       // an unchanged list is sent again, so that who has gone is noticed
)

func (h *handler) approvalList(tenant string) (ApprovalList, <-chan struct{}) {
	requests, grants, changed := h.opt.Approvals.List()
	l := ApprovalList{Requests: []approval.Request{}, Grants: []approval.Grant{}}
	for _, r := range requests {
		if h.owns(tenant, r.Subject.SandboxID) {
			l.Requests = append(l.Requests, r)
		}
	}
	for _, g := range grants {
		if h.owns(tenant, g.Subject.SandboxID) {
			l.Grants = append(l.Grants, g)
		}
	}
	return l, changed
}

// answerable says whether a tenant may answer what has an ID: to others it is not
// there.
func (h *handler) answerable(tenant, id string) bool {
	if tenant == "" {
		return true
	}
	l, _ := h.approvalList(tenant)
	return slices.ContainsFunc(l.Requests, func(r approval.Request) bool { return r.ID == id }) ||
		slices.ContainsFunc(l.Grants, func(g approval.Grant) bool { return g.ID == id })
}

// listApprovals answers with the lists, and with ?watch=true again whenever they
// change, a line of JSON each.
func (h *handler) listApprovals(w http.ResponseWriter, r *http.Request) {
	tenant := PrincipalOf(r.Context()).Tenant
	list, changed := h.approvalList(tenant)
	if r.URL.Query().Get("watch") != "true" {
		h.answer(w, r, http.StatusOK, list, nil)
		return
	}
	w.Header().Set("Content-Type", "application/jsonl")
	control, lines := http.NewResponseController(w), json.NewEncoder(w)
	for {
		if lines.Encode(list) != nil || control.Flush() != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-changed:
		case <-time.After(watchAlive):
		}
		select {
		case <-r.Context().Done():
			return
		case <-time.After(watchEvery):
		}
		list, changed = h.approvalList(tenant)
	}
}

func (h *handler) answerApproval(r *http.Request, a approval.Answer) (approval.Request, error) {
	who, id := PrincipalOf(r.Context()), r.PathValue("id")
	if !h.answerable(who.Tenant, id) {
		return approval.Request{}, fmt.Errorf("%w: %.64q", approval.ErrUnknown, id)
	}
	return h.opt.Approvals.Answer(id, a, who.Operator)
}
