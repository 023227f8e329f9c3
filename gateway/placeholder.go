package gateway

import (
	"io"
	"net/http"

	"sallyport/audit"
	"sallyport/gateway/answer"
	"sallyport/gateway/live"
	"sallyport/gateway/placeholder"
	"sallyport/policy"
)

// findPlaceholders finds the placeholders in the head of a request, before anything is
// decided.
func (q *request) findPlaceholders(r *http.Request) {
	if q.gateway.placeholders != nil {
		q.placeholders = placeholder.Find(q.gateway.placeholders(q.identity.ID), r, q.host, maxHeader)
	}
}

// misplaced denies a request that has a placeholder in its head where the decision does
// not put the credential.
func (q *request) misplaced(r *http.Request, d policy.Decision) *answer.Answer {
	why := q.placeholders.Misplaced(d)
	if why == nil {
		return nil
	}
	d = floor(d, placeholder.Rule, why.Error())
	e := q.event(r, d)
	e.SeverityID = audit.SeverityHigh
	e.Unmapped.Sallyport.Found = []audit.CredentialUse{{Name: why.Credential}}
	id := q.gateway.denial(q.peer, q.target, e)
	q.gateway.metrics.Decided(policy.PhaseRequest, d)
	a := denied(d, id, r.Method+" "+q.scheme()+"://"+q.authority)
	a.Remedy = why.Remedy()
	return a
}

// refusedWith answers a request that is denied whatever its head says, and that has a
// placeholder in it.
func (q *request) refusedWith(r *http.Request, d policy.Decision) *answer.Answer {
	if q.findPlaceholders(r); !q.placeholders.InHead() {
		return nil
	}
	if q.form.seen == nil {
		q.describe(r)
	}
	return q.misplaced(r, d)
}

// searchBody has placeholders in the body of a request that leaves replaced, or the
// request broken off.
func (q *request) searchBody(r *http.Request) error {
	return q.placeholders.SearchBody(r, q.gateway.bodies, q.identity.ID, func() http.Header { return q.sent.trailer })
}

// searchMessages has placeholders in the messages to the upstream of a WebSocket replaced,
// or the WebSocket closed.
func (q *request) searchMessages(upstream io.ReadWriteCloser) io.ReadWriteCloser {
	return q.placeholders.WebSocket(upstream, func() {
		if c := q.out.taken.Load(); c != nil {
			q.gateway.work.Go(func() { c.Goodbye("a placeholder stands where it is not replaced", live.Grace/2) })
		}
	})
}
