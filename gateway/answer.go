package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"sallyport/gateway/credential"
	"sallyport/gateway/credential/decode"
	"sallyport/gateway/credential/scrub"
	"sallyport/gateway/http1"
	"sallyport/gateway/live"
	"sallyport/gateway/upstream"
	"sallyport/gateway/websocket"
	"sallyport/policy"
)

// decisionHeader carries the decision id in every response of the gateway's own
// that is about a decision.
const decisionHeader = "Sallyport-Decision"

// approvalHeader carries the id under which a request waits for an operator, or
// has waited.
const approvalHeader = "Sallyport-Approval"

// Errors that end a request before anything of it has left.
var (
	errAudit     = errors.New("the decision could not be written down")
	errUpgrade   = errors.New("the upstream switched protocols unasked")
	errWebSocket = errors.New("the upstream did not begin a WebSocket")
	errCoding    = errors.New("the upstream answered in a form that cannot be searched for the credential")
	errPanic     = errors.New("internal error")
	errSilent    = errors.New("the sandbox stopped sending in the middle of its request")
	errUnread    = errors.New("the upstream answered in a form in which the tokens that it used cannot be read")
	errLate      = errors.New("the client began TLS late that no rule lets pass unread")
)

// answer is what the gateway says instead of an upstream.
type answer struct {
	Status   int    `json:"status"`
	Reason   string `json:"reason"`
	Rule     string `json:"rule,omitempty"`
	Decision string `json:"decision,omitempty"`
	Approval string `json:"approval,omitempty"` // id of what waits for an operator, or waited
	Remedy   string `json:"what_to_do"`
	// Retry is for how many seconds not to try again.
	Retry  int64 `json:"retry_after,omitempty"`
	denied bool  // as opposed to failed
	last   bool  // the connection ends with it, where it carries no others
	late   bool  // the deadline of a call is over (gRPC)
}

// denied answers a decision that is not to carry.
func denied(d policy.Decision, id, where string) *answer {
	a := &answer{Status: http.StatusForbidden, Reason: d.Reason, Rule: d.Rule, Decision: id, denied: true}
	switch {
	case d.Approval != nil:
		a.Approval = d.Approval.ID
		a.Remedy = "Do not retry or work around it. An operator has been asked already."
	case d.Action == policy.Approve:
		a.Remedy = "This needs the approval of an operator, who will want the decision id. Do not retry before you have it."
	case d.Err != nil:
		a.Remedy = "The policy could not be evaluated. Tell an operator the decision id."
	case errors.Is(d.Unjudged, errUnpriced):
		a.Remedy = unpricedRemedy
	case d.Unjudged != nil:
		if errors.Is(d.Unjudged, policy.ErrTooLong) {
			a.Status = http.StatusRequestEntityTooLarge
		}
		a.Remedy = "Send the request with a body that can be judged, as the reason says. Do not retry it as it is."
	case d.RuleType == policy.TypeLimit:
		a.limited(&exceededError{rule: d.Rule, reason: d.Reason, retry: d.Retry})
	case d.RuleType == "floor" && d.Rule == FoundLimit:
		a.Remedy = "Stop here: nothing leaves until an operator has looked at the audit log and run: sallyport limits reset " + FoundLimit
	case d.RuleType == "floor":
		a.Remedy = "No rule can allow this. Change the request as the reason says."
	case d.RuleType != "": // a rule of its own would change nothing
		a.Remedy = "Do not retry or work around it: the policy denies it on purpose. If the task needs " + where + ", ask an operator and quote the decision id."
	default:
		a.Remedy = "Do not retry or work around it. If the task needs " + where + ", ask an operator to add an egress rule for it and quote the decision id."
	}
	return a
}

// limited makes it the answer to what a limit has no room for.
func (a *answer) limited(e *exceededError) {
	a.Status, a.Rule = e.status(), e.rule
	if e.unpriced {
		a.Remedy = unpricedRemedy
		return
	}
	if e.retry == 0 {
		a.Remedy = "Do not retry: send less in one request, or ask an operator to change the limit."
		return
	}
	a.Retry = int64((e.retry + time.Second - 1) / time.Second)
	a.Remedy = fmt.Sprintf("Wait, and try again after %d seconds. An operator can change the limit, or run: sallyport limits reset", a.Retry)
}

// failed answers an error that met an allowed request. It is the one place
// where an error becomes a status.
func failed(err error, id string) *answer {
	a := &answer{Status: status(err), Reason: explain(err), Decision: id}
	var over *exceededError
	if errors.As(err, &over) {
		a.limited(over)
		return a
	}
	switch a.Status {
	case http.StatusServiceUnavailable:
		a.Remedy = "Nothing was sent. " + repair(err) + " Then try again."
		if errors.Is(err, http1.ErrBudget) {
			a.Remedy = "The request was sent. Read what is under way to its end, then try again if that does no harm."
		}
		if errors.Is(err, decode.ErrMemory) {
			a.Remedy = "The request was sent. Read what is under way to its end, then try again if that does no harm, or ask for no compression (Accept-Encoding: identity)."
		}
	case http.StatusTooManyRequests:
		a.Remedy = "Nothing was sent. Close connections, then try again."
	case http.StatusForbidden:
		a.Remedy = "Nothing was sent. An operator can name the address in the rule's upstream.addresses if it is meant to be reached."
	case http.StatusRequestTimeout:
		a.Remedy = "The upstream has a part of the request. Send all of it, then try again."
	case http.StatusInternalServerError:
		a.Remedy = "Tell an operator the decision id."
	default:
		a.Remedy = "The policy allowed this request; the upstream failed it. Try again later, or tell an operator the decision id."
	}
	return a
}

func status(err error) int {
	var reach *upstream.Error
	var gone *live.Revoked
	var over *exceededError
	switch {
	case errors.As(err, &gone):
		return http.StatusForbidden
	case errors.As(err, &over):
		return over.status()
	case errors.Is(err, errAudit), errors.Is(err, errClosed), errors.Is(err, decode.ErrMemory), leasing(err):
		return http.StatusServiceUnavailable
	case errors.Is(err, errPanic):
		return http.StatusInternalServerError
	case errors.Is(err, errSilent):
		return http.StatusRequestTimeout
	case errors.As(err, &reach):
		switch reach.Kind {
		case upstream.KindAddress:
			return http.StatusForbidden
		case upstream.KindTimeout:
			return http.StatusGatewayTimeout
		case upstream.KindBusy:
			return http.StatusTooManyRequests
		case upstream.KindClosed, upstream.KindMemory:
			return http.StatusServiceUnavailable
		}
	}
	return http.StatusBadGateway
}

// explain says what went wrong in words of our own: an error's text can quote
// bytes of the upstream, and those can be a secret come back.
func explain(err error) string {
	var reach *upstream.Error
	var gone *live.Revoked
	leased, isLease := leaseOf(err)
	var over *exceededError
	switch {
	case errors.As(err, &gone):
		return gone.Error()
	case errors.As(err, &over):
		return over.reason
	case isLease:
		return leased.Error()
	case errors.Is(err, context.Canceled), errors.Is(err, errClient):
		return errClient.Error()
	case errors.As(err, &reach):
		return reach.Error()
	case errors.Is(err, scrub.ErrHidden):
		return errCoding.Error()
	case errors.Is(err, decode.ErrMemory):
		return decode.ErrMemory.Error()
	}
	for _, known := range []error{errAudit, errUpgrade, errWebSocket, websocket.ErrFrames, errCoding, errUnread, errPanic, errSilent, errLate, errClosed} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	return "the connection broke"
}

// leaseError is a credential that could not be given to who asks for it.
type leaseError struct {
	credential string
	to         string // what asks for it, when that is not the destination
	err        error
}

func (e *leaseError) Unwrap() error { return e.err }

// Error leaves out the cause, which can name what a sandbox need not know.
func (e *leaseError) Error() string {
	why := "could not be used"
	for _, known := range []error{
		credential.ErrUnknown, credential.ErrNotBound, credential.ErrStale, credential.ErrNoSecret, credential.ErrUnavailable, credential.ErrRefused,
		credential.ErrTooManySecrets, credential.ErrShort,
	} {
		if errors.Is(e.err, known) {
			why = known.Error()
		}
	}
	return fmt.Sprintf("credential %q%s: %s", e.credential, e.to, why)
}

// leaseOf returns the lease that an error is about, for the request or for the
// proxy on its way.
func leaseOf(err error) (*leaseError, bool) {
	var (
		leased *leaseError
		login  *upstream.LoginError
	)
	switch {
	case errors.As(err, &leased):
		return leased, true
	case errors.As(err, &login):
		return &leaseError{credential: login.Credential, to: " for the proxy", err: login.Err}, true
	}
	return nil, false
}

func leasing(err error) bool {
	_, is := leaseOf(err)
	return is
}

// repair says what an operator must do.
func repair(err error) string {
	name, what := "NAME", ""
	if leased, ok := leaseOf(err); ok {
		name, what = leased.credential, leased.to
	}
	switch {
	case what != "" && errors.Is(err, credential.ErrNoSecret):
		return fmt.Sprintf("An operator must run: sallyport secret set %s --field username --field password", name)
	case what != "" && errors.Is(err, credential.ErrNotBound):
		return "The policy has just been loaded anew."
	case errors.Is(err, credential.ErrUnknown):
		return fmt.Sprintf("An operator must add %q to credentials in sallyport.yaml.", name)
	case errors.Is(err, credential.ErrNotBound):
		return fmt.Sprintf("An operator must let an egressAuth rule bind %q to this destination.", name)
	case errors.Is(err, credential.ErrStale):
		return "The policy has just been loaded anew."
	case errors.Is(err, credential.ErrNoSecret):
		return fmt.Sprintf("An operator must run: sallyport secret set %s", name)
	case errors.Is(err, credential.ErrShort):
		return fmt.Sprintf("An operator must set a longer secret for %q, or name its short field in allowShort of that credential in sallyport.yaml.", name)
	case errors.Is(err, credential.ErrTooManySecrets):
		return "Let requests that are under way end."
	case errors.Is(err, credential.ErrUnavailable):
		return "An operator must make the secret's source reachable (sallyport doctor)."
	case errors.Is(err, credential.ErrRefused):
		return "An operator must let Sallyport's login at the secret's source read it."
	case errors.Is(err, errAudit):
		return "An operator must make the audit log writable again: look at the disk that holds it."
	}
	return "An operator must look at Sallyport's log."
}

// response renders an answer for r: JSON when it asks for it, else plain text
// that an agent can act on.
func (a *answer) response(r *http.Request) *http.Response {
	if grpc(r) {
		return a.status(r)
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
	if a.last && r.ProtoMajor == 1 {
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
func (a *answer) identify(h http.Header) {
	if a.Decision != "" {
		h.Set(decisionHeader, a.Decision)
	}
	if a.Approval != "" {
		h.Set(approvalHeader, a.Approval)
	}
	if a.Retry > 0 {
		h.Set("Retry-After", strconv.FormatInt(a.Retry, 10))
	}
}

func (a *answer) print(w io.Writer) {
	verb := "Sallyport could not carry this request."
	if a.Status < 500 || a.denied {
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

// write sends an answer outside of goproxy.
func (a *answer) write(w http.ResponseWriter, r *http.Request) {
	resp := a.response(r)
	for k, v := range resp.Header {
		w.Header()[k] = v
	}
	w.WriteHeader(resp.StatusCode)
	_, _ = io.Copy(w, resp.Body) // the sandbox may be gone
}
