package api

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	"sallyport/audit/auditlog"
	"sallyport/audit/retention"
	"sallyport/gateway/access"
	"sallyport/gateway/credential"
	"sallyport/gateway/credential/file"
	"sallyport/internal/api/idempotency"
	"sallyport/memory"
	"sallyport/memory/history"
	"sallyport/memory/keeper"
	"sallyport/memory/layer"
	"sallyport/policy/approval"
	"sallyport/sandbox"
	"sallyport/sandbox/agent/channel"
	"sallyport/sandbox/client"
)

// Problem is an error on the wire (RFC 9457, application/problem+json).
type Problem = client.Problem

// ErrElsewhere refuses to change a secret that does not live in the embedded
// store.
var ErrElsewhere = errors.New("the secret lives elsewhere")

// errTaken marks a name that somebody else who may send requests has.
var errTaken = errors.New("the name is taken")

// errBusy marks what is refused because too much else is under way.
var errBusy = errors.New("too much is under way")

// errBadRequest marks what the caller sent wrong.
var errBadRequest = errors.New("bad request")

// problems is the one place where an error gets its status, and the end of its
// type, which stays what it is. The first that matches counts. docs/reference/api.md lists
// them.
var problems = []struct {
	err    error
	status int
	kind   string
}{
	{errTooMany, http.StatusTooManyRequests, "too-many-failures"},
	{errUnknown, http.StatusUnauthorized, "unauthorized"},
	{errOperator, http.StatusForbidden, "not-an-operator"},
	{errScope, http.StatusForbidden, "scope"},
	{errTenant, http.StatusForbidden, "tenant"},
	{ErrNotExposable, http.StatusForbidden, "not-exposable"},
	{errNoRoute, http.StatusNotFound, "no-route"},
	{errMethod, http.StatusMethodNotAllowed, "method"},
	{idempotency.ErrOtherBody, http.StatusUnprocessableEntity, "idempotency-key-reused"},
	{idempotency.ErrUnderWay, http.StatusConflict, "idempotency-key-in-use"},
	{idempotency.ErrShown, http.StatusConflict, "shown-once"},
	{idempotency.ErrOutcome, http.StatusConflict, "outcome-unknown"},
	{idempotency.ErrFull, http.StatusServiceUnavailable, "busy"},
	{errBusy, http.StatusServiceUnavailable, "busy"},

	{sandbox.ErrNotFound, http.StatusNotFound, "no-sandbox"},
	{sandbox.ErrNoSnapshot, http.StatusNotFound, "no-snapshot"},
	{sandbox.ErrNoCommand, http.StatusNotFound, "no-command"},
	{sandbox.ErrNoFile, http.StatusNotFound, "no-file"},
	{sandbox.ErrFileDenied, http.StatusForbidden, "file-denied"},
	{sandbox.ErrFileState, http.StatusConflict, "file-state"},
	{sandbox.ErrNoSpace, http.StatusInsufficientStorage, "no-space"},
	{credential.ErrNoSecret, http.StatusNotFound, "no-secret"},
	{access.ErrClientUnknown, http.StatusNotFound, "no-client"},
	{auditlog.ErrNoDecision, http.StatusNotFound, "no-decision"},
	{approval.ErrUnknown, http.StatusNotFound, "no-approval"},
	{ErrNoLimit, http.StatusNotFound, "no-limit"},
	{ErrNoSink, http.StatusNotFound, "no-sink"},
	{retention.ErrNoHold, http.StatusNotFound, "no-hold"},
	{retention.ErrHoldExists, http.StatusConflict, "name-taken"},
	{retention.ErrHoldsFull, http.StatusConflict, "full"},
	{retention.ErrHeld, http.StatusConflict, "held"},
	{retention.ErrUnshipped, http.StatusConflict, "unshipped"},
	{retention.ErrNothing, http.StatusConflict, "nothing-to-delete"},
	{retention.ErrInvalid, http.StatusBadRequest, "bad-request"},
	{errNoKey, http.StatusNotFound, "no-key"},
	{access.ErrPortUnknown, http.StatusNotFound, "no-exposure"},

	{sandbox.ErrTaken, http.StatusConflict, "name-taken"},
	{errTaken, http.StatusConflict, "name-taken"},
	{errKeyExists, http.StatusConflict, "name-taken"},
	{access.ErrClientExists, http.StatusConflict, "name-taken"},
	{sandbox.ErrSpecMismatch, http.StatusConflict, "other-spec"},
	{sandbox.ErrExpired, http.StatusConflict, "lifetime-ended"},
	{sandbox.ErrCommandState, http.StatusConflict, "other-command"},
	{channel.ErrClosed, http.StatusConflict, "agent-closed"},
	{channel.ErrBusy, http.StatusTooManyRequests, "agent-busy"},
	{channel.ErrSilent, http.StatusBadGateway, "agent-silent"},
	{sandbox.ErrEarlier, http.StatusConflict, "agent-earlier"},
	{sandbox.ErrState, http.StatusConflict, "state"},
	{sandbox.ErrDamaged, http.StatusConflict, "damaged"},
	{sandbox.ErrNoCheckpoint, http.StatusConflict, "no-checkpoint"},
	{ErrElsewhere, http.StatusConflict, "lives-elsewhere"},
	{approval.ErrAnswered, http.StatusConflict, "answered"},
	{approval.ErrFull, http.StatusConflict, "full"},
	{errKeysFull, http.StatusConflict, "full"},
	{sandbox.ErrQuota, http.StatusConflict, "full"},
	{sandbox.ErrStorageQuota, http.StatusConflict, "storage"},
	{access.ErrPortsFull, http.StatusConflict, "full"},

	{sandbox.ErrBadName, http.StatusBadRequest, "bad-request"},
	{credential.ErrUnfit, http.StatusBadRequest, "bad-request"},
	{sandbox.ErrBadSpec, http.StatusBadRequest, "bad-spec"},
	{sandbox.ErrCompared, http.StatusTooManyRequests, "too-many-values"},
	{sandbox.ErrImage, http.StatusForbidden, "image"},
	{sandbox.ErrNoImage, http.StatusBadRequest, "no-image"},
	{sandbox.ErrImageUsed, http.StatusConflict, "image-in-use"},
	{sandbox.ErrArchive, http.StatusBadRequest, "bad-archive"},
	{sandbox.ErrRegistry, http.StatusBadGateway, "registry"},
	{access.ErrPort, http.StatusBadRequest, "bad-request"},
	{access.ErrClientName, http.StatusBadRequest, "bad-request"},
	{file.ErrBadName, http.StatusBadRequest, "bad-request"},
	{file.ErrBadField, http.StatusBadRequest, "bad-request"},
	{file.ErrTooBig, http.StatusBadRequest, "bad-request"},
	{approval.ErrAnswer, http.StatusBadRequest, "bad-request"},
	{errBadRequest, http.StatusBadRequest, "bad-request"},

	{keeper.ErrBadRequest, http.StatusBadRequest, "bad-request"},
	{layer.ErrInvalid, http.StatusBadRequest, "bad-request"},
	{memory.ErrBadName, http.StatusBadRequest, "bad-request"},
	{memory.ErrTooLarge, http.StatusBadRequest, "bad-request"},
	{memory.ErrNotFile, http.StatusConflict, "file-state"},
	{memory.ErrChanged, http.StatusConflict, "file-state"},
	{keeper.ErrEnded, http.StatusConflict, "file-state"},
	{keeper.ErrNone, http.StatusNotFound, "no-file"},
	{keeper.ErrQuarantined, http.StatusConflict, "quarantined"},
	{history.ErrNoCommit, http.StatusNotFound, "no-version"},
	{history.ErrNoQuarantine, http.StatusNotFound, "no-version"},
	{history.ErrNotKept, http.StatusConflict, "not-kept"},
	{history.ErrDamaged, http.StatusConflict, "damaged"},

	{sandbox.ErrEngine, http.StatusServiceUnavailable, "engine"},
	{sandbox.ErrDiskFull, http.StatusInsufficientStorage, "disk-full"},
	{sandbox.ErrTooLarge, http.StatusInsufficientStorage, "beyond-room"},
	{sandbox.ErrMemoryBusy, http.StatusServiceUnavailable, "no-room"},
	{sandbox.ErrNoAddress, http.StatusServiceUnavailable, "no-address"},
	{auditlog.ErrUnwritable, http.StatusServiceUnavailable, "no-record"},
}

func problem(err error) *Problem {
	status, kind := http.StatusInternalServerError, "internal"
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		status, kind = http.StatusRequestEntityTooLarge, "too-large"
		err = errors.New("the body is too large: at most " + strconv.FormatInt(large.Limit, 10) + " bytes are read")
	} else {
		for _, p := range problems {
			if errors.Is(err, p.err) {
				status, kind = p.status, p.kind
				break
			}
		}
	}
	return &Problem{Type: client.ProblemType + kind, Status: status, Title: http.StatusText(status), Detail: err.Error()}
}

func (h *handler) writeProblem(w http.ResponseWriter, r *http.Request, err error) {
	p := h.problemFor(r, err)
	w.Header().Set("Content-Type", "application/problem+json")
	switch p.Status {
	case http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", `Bearer realm="sallyport"`) // RFC 6750, section 3
	case http.StatusTooManyRequests:
		w.Header().Set("Retry-After", strconv.Itoa(int(failureEvery.Seconds())))
	}
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // the client is gone if this fails
}
