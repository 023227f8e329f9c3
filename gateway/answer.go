package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"

	"sallyport/gateway/answer"
	"sallyport/gateway/credential"
	"sallyport/gateway/credential/decode"
	"sallyport/gateway/credential/scrub"
	"sallyport/gateway/credential/sent"
	"sallyport/gateway/credential/sigv4"
	"sallyport/gateway/http1"
	"sallyport/gateway/limits"
	"sallyport/gateway/live"
	"sallyport/gateway/placeholder"
	"sallyport/gateway/tokenendpoint"
	"sallyport/gateway/upstream"
	"sallyport/gateway/websocket"
	"sallyport/gateway/wire"
	"sallyport/policy"
)

// Errors that end a request before anything of it has left.
var (
	errUpgrade   = errors.New("the upstream switched protocols unasked")
	errWebSocket = errors.New("the upstream did not begin a WebSocket")
	errCoding    = errors.New("the upstream answered in a form that cannot be searched for the credential")
	errPanic     = errors.New("internal error")
	errSilent    = errors.New("the sandbox stopped sending in the middle of its request")
	errUnread    = errors.New("the upstream answered in a form in which the tokens that it used cannot be read")
	errLate      = errors.New("the client began TLS late that no rule lets pass unread")
)

// denied answers a decision that is not to carry.
func denied(d policy.Decision, id, where string) *answer.Answer {
	a := answer.Denied(d, id, where)
	switch {
	case d.Approval != nil, d.Action == policy.Approve, d.Err != nil:
	case errors.Is(d.Unjudged, limits.ErrUnpriced):
		a.Remedy = unpricedRemedy
	case d.RuleType == policy.TypeLimit:
		limited(a, &limits.ExceededError{Rule: d.Rule, Reason: d.Reason, Retry: d.Retry})
	case d.RuleType == "floor" && d.Rule == FoundLimit:
		a.Remedy = "Stop here: nothing leaves until an operator has looked at the audit log and run: sallyport limits reset " + FoundLimit
	}
	return a
}

// limited makes a the answer to what a limit has no room for.
func limited(a *answer.Answer, e *limits.ExceededError) {
	a.Status, a.Rule = e.Status(), e.Rule
	if e.Unpriced {
		a.Remedy = unpricedRemedy
		return
	}
	if e.Retry == 0 {
		a.Remedy = "Do not retry: send less in one request, or ask an operator to change the limit."
		return
	}
	a.Retry = int64((e.Retry + time.Second - 1) / time.Second)
	a.Remedy = fmt.Sprintf("Wait, and try again after %d seconds. An operator can change the limit, or run: sallyport limits reset", a.Retry)
}

// failed answers an error that met an allowed request. It is the one place
// where an error becomes a status.
func failed(err error, id string) *answer.Answer {
	a := &answer.Answer{Status: status(err), Reason: explain(err), Decision: id}
	if over, ok := errors.AsType[*limits.ExceededError](err); ok {
		limited(a, over)
		return a
	}
	if found := new(placeholder.FoundError); errors.As(err, &found) {
		a.Rule, a.Remedy = placeholder.Rule, "The request was broken off before the placeholder had left. "+found.Remedy()
		return a
	}
	if _, ok := errors.AsType[*credential.RequestError](err); ok {
		a.Remedy = "Nothing was sent."
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
	var over *limits.ExceededError
	var bad *credential.RequestError
	switch {
	case errors.As(err, &gone):
		return http.StatusForbidden
	case errors.As(err, new(*placeholder.FoundError)):
		return http.StatusForbidden
	case errors.As(err, &bad):
		return bad.Status
	case errors.Is(err, sigv4.ErrChunks):
		return http.StatusBadRequest
	case errors.As(err, &over):
		return over.Status()
	case errors.Is(err, errClosed), errors.Is(err, decode.ErrMemory), errors.Is(err, sent.ErrUnsaved), leasing(err):
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
	var found *placeholder.FoundError
	leased, isLease := leaseOf(err)
	var over *limits.ExceededError
	var bad *credential.RequestError
	switch {
	case errors.As(err, &gone):
		return gone.Error()
	case errors.As(err, &bad):
		return bad.Reason
	case errors.Is(err, sigv4.ErrChunks):
		return sigv4.ErrChunks.Error()
	case errors.As(err, &over):
		return over.Reason
	case errors.As(err, &found): // also while the body was read to be signed
		return found.Error()
	case isLease:
		return leased.Error()
	case errors.Is(err, context.Canceled), errors.Is(err, errClient):
		return errClient.Error()
	case errors.Is(err, sent.ErrUnsaved):
		return sent.ErrUnsaved.Error()
	case errors.As(err, &reach):
		return reach.Error()
	case errors.Is(err, scrub.ErrHidden):
		return errCoding.Error()
	case errors.Is(err, decode.ErrMemory):
		return decode.ErrMemory.Error()
	}
	for _, known := range []error{errUpgrade, errWebSocket, websocket.ErrFrames, errCoding, errUnread, errPanic, errSilent, errLate, errClosed, errExpired, wire.ErrImpostor, wire.ErrRefused, wire.ErrSecret, wire.ErrNoTLS, wire.ErrProtocol} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	return "the connection broke"
}

// leaseError says that a credential could not be leased.
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
		sent.ErrTooMany, credential.ErrShort, credential.ErrUnfit, sent.ErrUnsaved,
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
		leased  *leaseError
		login   *upstream.LoginError
		spelled *placeholder.SpellingError
	)
	switch {
	case errors.As(err, &leased):
		return leased, true
	case errors.As(err, &login):
		return &leaseError{credential: login.Credential, to: " for the proxy", err: login.Err}, true
	case errors.As(err, &spelled):
		return &leaseError{credential: spelled.Credential, err: spelled.Err}, true
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
	case errors.Is(err, sent.ErrUnsaved):
		return "An operator must look at the disk that holds the data directory, and at Sallyport's log."
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
	case errors.Is(err, credential.ErrUnfit):
		return fmt.Sprintf("An operator must set another secret for %q: Sallyport's log says what is wrong with it.", name)
	case errors.Is(err, sent.ErrTooMany):
		return "Let requests that are under way end, and earlier tokens expire."
	case errors.Is(err, credential.ErrUnavailable):
		return "An operator must make the secret's source reachable (sallyport doctor)."
	case errors.Is(err, credential.ErrRefused):
		return "An operator must let Sallyport's login at the secret's source read it."
	}
	return "An operator must look at Sallyport's log."
}

// answerToken answers a request at a token endpoint whose login the broker keeps, and nothing
// of it leaves. It returns nil where the decision names no such endpoint.
func (q *request) answerToken(r *http.Request) *http.Response {
	inject := q.grant.decision.Inject
	i := slices.IndexFunc(inject, func(i policy.Injection) bool { return i.Inject.TokenEndpoint })
	if i < 0 {
		return nil
	}
	name, own := inject[i].Credential, ""
	if q.gateway.Placeholders != nil {
		own = q.gateway.Placeholders(q.identity.ID).Text(name)
	}
	q.said = "the gateway answered in the place of the token endpoint of " + name + ", and nothing was sent"
	status, text := tokenendpoint.Answer(r, own)
	q.out.length = int64(len(text))
	return &http.Response{
		StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
		Header: http.Header{
			"Content-Type": {"application/json"}, "Content-Length": {strconv.Itoa(len(text))}, "Cache-Control": {"no-store"},
			answer.DecisionHeader: {q.allowed.ID()},
		},
		Body: io.NopCloser(bytes.NewReader(text)), ContentLength: int64(len(text)),
	}
}
