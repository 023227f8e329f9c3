package api

import (
	"encoding/json"
	"errors"
	"net/http"

	"sallyport/audit"
	"sallyport/gateway"
	"sallyport/gateway/credential"
	"sallyport/gateway/credential/file"
	"sallyport/policy/approval"
	"sallyport/sandbox"
	"sallyport/sandbox/agent/channel"
)

// Problem is an error on the wire (RFC 9457, application/problem+json).
type Problem struct {
	Status int    `json:"status"` // of HTTP
	Title  string `json:"title"`
	Detail string `json:"detail,omitempty"`
}

func (p *Problem) Error() string { return p.Detail }

// ErrElsewhere refuses to change a secret that does not live in the embedded
// store.
var ErrElsewhere = errors.New("the secret lives elsewhere")

// errTaken marks a name that somebody else who may send requests has.
var errTaken = errors.New("the name is taken")

// errBadRequest marks what the caller sent wrong.
var errBadRequest = errors.New("bad request")

// problem is the one place where an error gets its status.
func problem(err error) *Problem {
	status := http.StatusInternalServerError
	switch {
	case errors.Is(err, sandbox.ErrNotFound), errors.Is(err, sandbox.ErrNoCommand), errors.Is(err, sandbox.ErrNoFile), errors.Is(err, sandbox.ErrNotNoted), errors.Is(err, credential.ErrNoSecret),
		errors.Is(err, gateway.ErrClientUnknown), errors.Is(err, audit.ErrNoDecision), errors.Is(err, approval.ErrUnknown), errors.Is(err, ErrNoLimit):
		status = http.StatusNotFound
	case errors.Is(err, sandbox.ErrBadName), errors.Is(err, sandbox.ErrBadSpec),
		errors.Is(err, sandbox.ErrNoImage), errors.Is(err, errBadRequest),
		errors.Is(err, gateway.ErrClientName), errors.Is(err, file.ErrBadName),
		errors.Is(err, file.ErrBadField), errors.Is(err, file.ErrTooBig):
		status = http.StatusBadRequest
	case errors.Is(err, approval.ErrAnswer):
		status = http.StatusBadRequest
	case errors.Is(err, ErrOperator), errors.Is(err, sandbox.ErrFileDenied):
		status = http.StatusForbidden
	case errors.Is(err, approval.ErrAnswered), errors.Is(err, approval.ErrFull):
		status = http.StatusConflict
	case errors.Is(err, channel.ErrBusy):
		status = http.StatusTooManyRequests
	case errors.Is(err, channel.ErrSilent):
		status = http.StatusBadGateway
	case errors.Is(err, channel.ErrClosed), errors.Is(err, sandbox.ErrConflicts), errors.Is(err, sandbox.ErrFileState):
		status = http.StatusConflict
	case errors.Is(err, sandbox.ErrConflict), errors.Is(err, errTaken), errors.Is(err, gateway.ErrClientExists), errors.Is(err, ErrElsewhere):
		status = http.StatusConflict
	case errors.Is(err, sandbox.ErrNoSpace):
		status = http.StatusInsufficientStorage
	case errors.Is(err, sandbox.ErrEngine), errors.Is(err, sandbox.ErrNoAddress):
		status = http.StatusServiceUnavailable
	}
	return &Problem{Status: status, Title: http.StatusText(status), Detail: err.Error()}
}

func writeProblem(w http.ResponseWriter, err error) {
	p := problem(err)
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // the client is gone if this fails
}
