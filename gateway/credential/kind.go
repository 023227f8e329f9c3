package credential

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"sallyport/policy"
)

// kind is one way to give a credential to an HTTP request. Kinds are compared: two that are
// equal give a secret in the same way.
//
// To add a kind: a type that implements it, a case of [kindOf], a field of policy.Inject with
// what policy/inject.go says of each (InjectKinds, Kinds, Place, Signs), and its checks in
// policy/validate/inject.go.
type kind interface {
	// compose fills the fields of a secret in, once for each version of it.
	compose(fields map[string]Secret) (*composed, error)
	// own reports whether a sandbox's request has something in the place that the kind
	// fills.
	own(r *http.Request) bool
}

// kindOf returns the kind that a rule names.
func kindOf(i policy.Inject) (k kind, err error) {
	if p := i.Protocol(); p.IsLogin() {
		return nil, fmt.Errorf("inject logs in over %s, and goes into no request", p)
	}
	if i.TokenEndpoint {
		return nil, errors.New("inject.tokenEndpoint is answered by the gateway, and gives the credential to nobody")
	}
	given := 0
	take := func(other kind) { k, given = other, given+1 }
	if i.Header != nil {
		take(headerKind(*i.Header))
	}
	if i.Basic != nil {
		take(basicKind(*i.Basic))
	}
	if i.Query != nil {
		take(queryKind(*i.Query))
	}
	if i.Cookie != nil {
		take(cookieKind(*i.Cookie))
	}
	if i.ClientCertificate != nil {
		take(certificateKind(*i.ClientCertificate))
	}
	if i.Placeholder != nil {
		take(placeholderKind{})
	}
	if i.AWS != nil {
		take(awsKind(*i.AWS))
	}
	if i.HMAC != nil {
		take(hmacKind{i.HMAC})
	}
	switch given {
	case 0:
		return bearerKind{}, nil
	case 1:
		return k, nil
	}
	return nil, errors.New("inject names more than one kind")
}

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
