// Package answer is what the gateway says instead of an upstream or a sandbox.
package answer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"sallyport/gateway/grpc"
	"sallyport/policy"
)

// Headers of answers. DecisionHeader has the id of the decision that an answer is about,
// ApprovalHeader the id under which a request waits for an operator, or has waited.
const (
	DecisionHeader = "Sallyport-Decision"
	ApprovalHeader = "Sallyport-Approval"
)

// Answer is one answer. Its text is for agents, which can act on it.
type Answer struct {
	Status   int    `json:"status"`
	Reason   string `json:"reason"`
	Rule     string `json:"rule,omitempty"`
	Decision string `json:"decision,omitempty"`
	Approval string `json:"approval,omitempty"` // id of what waits for an operator, or waited
	Remedy   string `json:"what_to_do"`
	// Retry is for how many seconds not to try again.
	Retry  int64 `json:"retry_after,omitempty"`
	Denied bool  `json:"-"` // as opposed to failed
	Last   bool  `json:"-"` // the connection ends with it, where it carries no others
	Late   bool  `json:"-"` // the deadline of a call is over (gRPC)
}

// Denied answers a decision that is not to carry. id is that of the decision, and where
// what was asked for, as an operator should name it.
func Denied(d policy.Decision, id, where string) *Answer {
	a := &Answer{Status: http.StatusForbidden, Reason: d.Reason, Rule: d.Rule, Decision: id, Denied: true}
	switch {
	case d.Approval != nil:
		a.Approval = d.Approval.ID
		a.Remedy = "Do not retry or work around it. An operator has been asked already."
	case d.Action == policy.Approve:
		a.Remedy = "This needs the approval of an operator, who will want the decision id. Do not retry before you have it."
	case d.Err != nil:
		a.Remedy = "The policy could not be evaluated. Tell an operator the decision id."
	case d.Unjudged != nil:
		if errors.Is(d.Unjudged, policy.ErrTooLong) {
			a.Status = http.StatusRequestEntityTooLarge
		}
		a.Remedy = "Send the request with a body that can be judged, as the reason says. Do not retry it as it is."
	case d.RuleType == "floor":
		a.Remedy = "No rule can allow this. Change the request as the reason says."
	case d.RuleType != "": // a rule of its own would change nothing
		a.Remedy = "Do not retry or work around it: the policy denies it on purpose. If the task needs " + where + ", ask an operator and quote the decision id."
	default:
		a.Remedy = "Do not retry or work around it. If the task needs " + where + ", ask an operator to add an egress rule for it and quote the decision id."
	}
	return a
}

// Unrecorded answers a request whose decision could not be written down.
func Unrecorded(id string) *Answer {
	return &Answer{
		Status: http.StatusServiceUnavailable, Reason: "the decision could not be written down", Decision: id,
		Remedy: "Nothing was sent. An operator must make the audit log writable again: look at the disk that holds it, and at its sinks in `sallyport status`. Then try again.",
	}
}

// Response renders an answer for r: JSON when it asks for it, else plain text
// that an agent can act on.
func (a *Answer) Response(r *http.Request) *http.Response {
	if grpc.IsCall(r) {
		return a.Call(r)
	}
	var body bytes.Buffer
	kind := "text/plain; charset=utf-8"
	if a.Status == http.StatusPreconditionRequired || strings.Contains(r.Header.Get("Accept"), "application/json") {
		kind = "application/json"
		_ = json.NewEncoder(&body).Encode(a) // strings and an int
	} else {
		a.print(&body)
	}
	h := http.Header{
		"Content-Type":           {kind},
		"Content-Length":         {strconv.Itoa(body.Len())},
		"Cache-Control":          {"no-store"},
		"X-Content-Type-Options": {"nosniff"},
	}
	if a.Last && r.ProtoMajor == 1 {
		h["Connection"] = []string{"close"} // or a client would take it for its next request
	}
	a.identify(h)
	if a.Status == http.StatusRequestEntityTooLarge && r.ProtoMajor == 1 {
		h.Set("Connection", "close") // the rest of the body is not waited for
	}
	return &http.Response{
		StatusCode:    a.Status,
		Proto:         "HTTP/1.1",
		ProtoMajor:    1,
		ProtoMinor:    1,
		Header:        h,
		Body:          io.NopCloser(&body),
		ContentLength: int64(body.Len()),
		Request:       r,
	}
}

// identify puts the ids of an answer into its head.
func (a *Answer) identify(h http.Header) {
	if a.Decision != "" {
		h.Set(DecisionHeader, a.Decision)
	}
	if a.Approval != "" {
		h.Set(ApprovalHeader, a.Approval)
	}
	if a.Retry > 0 {
		h.Set("Retry-After", strconv.FormatInt(a.Retry, 10))
	}
}

func (a *Answer) print(w io.Writer) {
	verb := "Sallyport could not carry this request."
	if a.Status < 500 || a.Denied {
		verb = "Sallyport denied this request."
	}
	fmt.Fprintf(w, "%s\nreason: %s\n", verb, a.Reason)
	if a.Rule != "" {
		fmt.Fprintf(w, "rule: %s\n", a.Rule)
	}
	if a.Decision != "" {
		fmt.Fprintf(w, "decision: %s\n", a.Decision)
	}
	if a.Approval != "" {
		fmt.Fprintf(w, "approval: %s\n", a.Approval)
	}
	fmt.Fprintf(w, "what to do: %s\n", a.Remedy)
}

// Write sends the answer.
func (a *Answer) Write(w http.ResponseWriter, r *http.Request) {
	resp := a.Response(r)
	for k, v := range resp.Header {
		w.Header()[k] = v
	}
	w.WriteHeader(resp.StatusCode)
	_, _ = io.Copy(w, resp.Body) // the sandbox may be gone
}

// Call renders the answer as a call that ended with its head ("Trailers-Only"
// in the gRPC protocol over HTTP/2).
func (a *Answer) Call(r *http.Request) *http.Response {
	code := 7 // PERMISSION_DENIED
	switch {
	case a.Late:
		code = 4 // DEADLINE_EXCEEDED
	case a.Status == http.StatusBadRequest, a.Denied && a.Status > http.StatusInternalServerError:
		code = 3 // INVALID_ARGUMENT
	case a.Status == http.StatusPreconditionRequired:
		code = 9 // FAILED_PRECONDITION
	case a.Status == http.StatusTooManyRequests, a.Status == http.StatusRequestEntityTooLarge:
		code = 8 // RESOURCE_EXHAUSTED
	case a.Status == http.StatusInternalServerError:
		code = 13 // INTERNAL
	case a.Status > http.StatusInternalServerError:
		code = 14 // UNAVAILABLE
	}
	var text bytes.Buffer
	a.print(&text)
	h := http.Header{
		"Content-Type": {"application/grpc"},
		"Grpc-Status":  {strconv.Itoa(code)},
		"Grpc-Message": {grpc.EncodeMessage(text.Bytes())},
	}
	a.identify(h)
	if a.Retry > 0 {
		h.Set("Grpc-Retry-Pushback-Ms", pushback(a.Retry))
	}
	return &http.Response{
		StatusCode: http.StatusOK, Proto: "HTTP/2.0", ProtoMajor: 2,
		Header: h, Body: http.NoBody, Request: r,
	}
}

// pushback tells gRPC's own clients, which retry by themselves, when to, in
// milliseconds (gRFC A6); not at all where their callers would hang for long.
func pushback(seconds int64) string {
	if seconds > 60 {
		return "-1"
	}
	return strconv.FormatInt(seconds*1000, 10)
}
