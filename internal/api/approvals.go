package api

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"time"

	"sallyport/policy/approval"
)

// Approvals is what waits for operators.
type Approvals interface {
	// List also returns a channel that is closed when the lists have changed.
	List() (requests []approval.Request, grants []approval.Grant, changed <-chan struct{})
	Answer(id string, a approval.Answer, by approval.Operator) (approval.Request, error)
}

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

func (h *handler) approvalList() (ApprovalList, <-chan struct{}) {
	requests, grants, changed := h.opt.Approvals.List()
	l := ApprovalList{Requests: requests, Grants: grants}
	if l.Requests == nil {
		l.Requests = []approval.Request{}
	}
	if l.Grants == nil {
		l.Grants = []approval.Grant{}
	}
	return l, changed
}

// listApprovals answers with the lists, and with ?watch=true again whenever they
// change, a line of JSON each.
func (h *handler) listApprovals(w http.ResponseWriter, r *http.Request) {
	list, changed := h.approvalList()
	if r.URL.Query().Get("watch") != "true" {
		reply(w, http.StatusOK, list, nil)
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
		list, changed = h.approvalList()
	}
}

func (h *handler) answerApproval(w http.ResponseWriter, r *http.Request) {
	by, err := operator(r)
	if err != nil {
		writeProblem(w, err)
		return
	}
	var a approval.Answer
	if err := decode(w, r, &a); err != nil {
		writeProblem(w, err)
		return
	}
	answered, err := h.opt.Approvals.Answer(r.PathValue("id"), a, by)
	reply(w, http.StatusOK, answered, err)
}

// Approvals returns what waits for an operator and what is granted.
func (c *Client) Approvals(ctx context.Context) (l ApprovalList, err error) {
	return l, c.call(ctx, http.MethodGet, "/v1/approvals", nil, &l)
}

// WatchApprovals hands the lists over now and whenever they have changed, until
// ctx is done or see returns an error.
func (c *Client) WatchApprovals(ctx context.Context, see func(ApprovalList) error) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://sallyport/v1/approvals?watch=true", nil)
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if err := failure(resp); err != nil {
		return err
	}
	for lines := json.NewDecoder(resp.Body); ; {
		var l ApprovalList
		if err := lines.Decode(&l); err == io.EOF {
			return io.ErrUnexpectedEOF // the daemon has ended
		} else if err != nil {
			return err
		}
		if err := see(l); err != nil {
			return err
		}
	}
}

// AnswerApproval answers a request, or takes a grant back with a no. Who answers
// is whom the daemon sees.
func (c *Client) AnswerApproval(ctx context.Context, id string, a approval.Answer) (r approval.Request, err error) {
	return r, c.call(ctx, http.MethodPost, "/v1/approvals/"+url.PathEscape(id), a, &r)
}
