package credential

import (
	"fmt"
	"net/http"
	"time"
)

// Signing is what a kind that signs each request is given beside the request that leaves.
type Signing struct {
	// Sent is the request as the sandbox sent it, with what StripRequest removes.
	Sent *http.Request
	// Hash returns the hex SHA-256 of the request's body, and Body the body: both read it
	// into memory, and have the request go on from there. Their errors are for the
	// sandbox.
	Hash func() (string, error)
	Body func() ([]byte, error)
	// Room makes room for bytes that are held until the request's end.
	Room func(int64) error
	// Now is the time of the signature.
	Now time.Time
}

// RequestError says why a request cannot be signed as it is. Its text is for the sandbox: it
// has nothing of the credential in it.
type RequestError struct {
	Status int // of the answer
	Reason string
}

func (e *RequestError) Error() string { return e.Reason }

func unsignable(format string, args ...any) error {
	return &RequestError{Status: http.StatusBadRequest, Reason: fmt.Sprintf(format, args...)}
}
