package gateway

import (
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"sallyport/gateway/bodies"
	"sallyport/gateway/credential"
	"sallyport/gateway/credential/scrub"
	"sallyport/gateway/placeholder"
)

// maxSigned bounds a body that is read into memory to be signed, in bytes. One that the
// sandbox has hashed itself, or that is signed in chunks or not at all, has no bound.
const maxSigned = 16 << 20

// head is a request without its body, which keeps what r has now.
func head(r *http.Request) *http.Request {
	u := *r.URL
	return &http.Request{Method: r.Method, URL: &u, Host: r.Host, Header: r.Header.Clone()}
}

// signedWith notes what a lease has signed the request with. The answer is searched for
// that: a signature is good for some minutes, for anybody who can reach the upstream, and
// servers repeat a presigned URL where they redirect to another place. Answers to other
// requests are not searched for it.
func (q *request) signedWith(lease *credential.Lease) {
	q.signer = lease.Name
	q.signatures = append(q.signatures, scrub.Value{Text: lease.Signature().Reveal(), Found: scrub.Found{Name: lease.Name}})
	own := scrub.New(q.signatures)
	q.informing.mu.Lock()
	defer q.informing.mu.Unlock()
	q.got.own = own
}

// signing is what a kind that signs r needs.
func (q *request) signing(r *http.Request) credential.Signing {
	return credential.Signing{
		Sent: q.unsigned, Room: q.heads.Take, Now: time.Now(),
		Hash: func() (string, error) {
			text, err := q.signedBody(r)
			return bodies.Digest(text), err
		},
		Body: func() ([]byte, error) { return q.signedBody(r) },
	}
}

// signedBody reads the body of a request that has to be signed. The request goes on with
// what was read.
func (q *request) signedBody(r *http.Request) ([]byte, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil, nil
	}
	if q.signed != nil {
		return q.signed.Bytes(), nil
	}
	if r.ContentLength > maxSigned {
		return nil, tooLargeToSign()
	}
	q.signed = bodies.NewBuffered(q.gateway.bodies, q.identity.ID, new(atomic.Int64))
	err := q.signed.Fill(r.Body, maxSigned)
	found := new(placeholder.FoundError)
	switch {
	case errors.As(err, &found):
		return nil, err
	case errors.Is(err, bodies.ErrSandboxFull):
		return nil, &credential.RequestError{Status: http.StatusTooManyRequests, Reason: err.Error()}
	case errors.Is(err, bodies.ErrFull):
		return nil, &credential.RequestError{Status: http.StatusServiceUnavailable, Reason: err.Error()}
	case q.sent.silent.Load():
		return nil, errSilent
	case err != nil:
		return nil, &credential.RequestError{Status: http.StatusBadRequest, Reason: "the body, which has to be signed, broke off or is not framed as it should be"}
	case len(q.signed.Bytes()) > maxSigned:
		return nil, tooLargeToSign()
	}
	r.Body = q.signed
	delete(r.Header, "Expect") // it is here
	if r.Trailer == nil {
		r.ContentLength = int64(len(q.signed.Bytes()))
	}
	return q.signed.Bytes(), nil
}

func tooLargeToSign() error {
	return &credential.RequestError{
		Status: http.StatusRequestEntityTooLarge,
		Reason: fmt.Sprintf("the body has to be signed and has more than %d MiB; for AWS, send X-Amz-Content-Sha256 with it", maxSigned>>20),
	}
}

// checkClock tells the operator of a clock that is off, where an upstream refuses what was
// signed by it.
func (q *request) checkClock(resp *http.Response) {
	switch resp.StatusCode {
	case http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden:
	default:
		return
	}
	if off := clocks(resp); off != "" {
		q.clock = fmt.Sprintf("credential %q: the upstream refused what was signed with it%s", q.signer, off)
		q.gateway.logger.Warn(q.clock, "rule", q.grant.decision.Rule, "host", q.host)
	}
}
