package gateway

import (
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"sallyport/audit"
	"sallyport/gateway/answer"
	"sallyport/gateway/bodies"
	"sallyport/gateway/credential"
	"sallyport/gateway/credential/scrub"
	"sallyport/gateway/credential/sent"
	"sallyport/gateway/form"
	"sallyport/gateway/placeholder"
	"sallyport/gateway/websocket"
	"sallyport/policy"
)

// injection is what a request leaves with.
type injection struct {
	used      []audit.CredentialUse
	sentWith  []*sent.Use
	lost      map[string]int // values no longer looked for, by credential
	transport http.RoundTripper
	// certificate is shown in the TLS handshake, nil for none.
	certificate *tls.Certificate
	renewal     renewal
	said        string           // what the completion tells of them
	signed      *bodies.Buffered // the body, where it had to be read to be signed
	signer      string           // the credential that signed the request
	signatures  []scrub.Value    // what it has left with
	clock       string           // what the upstream's refusal says of this host's clock
	unsigned    *http.Request    // as the sandbox sent it, where it has to be signed
}

// inject turns the sandbox's request into the one that leaves, with the credentials that
// its decision names. The answer that it returns is for a request that cannot leave.
func (q *request) inject(r *http.Request) *answer.Answer {
	err := q.prepare(r)
	if err == nil {
		return nil
	}
	q.err = err
	if a := q.revoked(); a != nil {
		return a
	}
	q.gateway.Logger.Warn("an allowed request could not be sent", "sandbox", q.identity.Name, "decision", q.allowed.ID(), "error", err)
	return failed(err, q.allowed.ID())
}

// prepare removes from a request what is not for the upstream, puts the credentials in,
// and finds the way to the upstream.
func (q *request) prepare(r *http.Request) error {
	if err := q.secrets.Load(q); err != nil {
		return err
	}
	d := q.grant.decision
	trailers := r.ProtoMajor == 2 && form.HasToken(r.Header["Te"], "trailers")
	form.DropHops(r.Header, q.form.upgrade)
	if trailers {
		r.Header["Te"] = []string{"trailers"} // gRPC has its status in them
	}
	form.SetPath(r.URL, q.pathSent(r, d))
	r.Host, r.Close = q.authority, false
	r.RequestURI = "" // a client's request has none
	if _, set := r.Header["User-Agent"]; !set {
		r.Header["User-Agent"] = []string{""} // or the transport would add its own
	}
	if q.form.upgrade {
		// Frames have to be read: what was injected for another request may be in
		// them, or will be before they end.
		delete(r.Header, "Sec-Websocket-Extensions")
	}
	q.got.strict = len(d.Inject) > 0
	if !q.got.strict && q.secrets.Reached(q.host) {
		q.got.strict = true
		askSearchable(r.Header)
	}
	if q.grant.tokens != nil {
		askSearchable(r.Header)
	}
	if len(d.Inject) > 0 {
		if err := q.putCredentials(r); err != nil {
			return err
		}
	}
	if d.Governed && len(d.Inject) == 0 {
		// Observe mode lets it pass where rules give credentials: those that the
		// sandbox has of its own are no more welcome for that.
		q.strip(r)
	}
	if q.unsigned == nil { // or it has been, before it was signed
		if err := q.searchBody(r); err != nil {
			return err
		}
	}
	return q.findWay()
}

// findWay finds the way to the upstream, which its credentials are a part of.
func (q *request) findWay() error {
	d := q.grant.decision
	names := make([]string, 0, len(d.Inject))
	for _, i := range d.Inject {
		names = append(names, i.Credential)
	}
	route := q.route(q.peer, d, strings.Join(names, ","), q.tls())
	route.Certificate = q.certificate
	transport, err := q.gateway.Upstreams.RoundTripper(route)
	if err != nil {
		return err
	}
	q.transport = transport
	return nil
}

// pathSent is the path that leaves, as it leaves.
func (q *request) pathSent(r *http.Request, d policy.Decision) string {
	if d.RawPath {
		return q.form.rawPath
	}
	return r.URL.EscapedPath()
}

// unscrubbable are the headers that ask for a part of a response, or for a form of it
// that would have to be undone before it can be searched.
var unscrubbable = []string{
	"Range", "If-Range", "X-Ms-Range", "Grpc-Accept-Encoding", "Connect-Accept-Encoding",
}

// askSearchable asks for a response that can be read whole, and best in the clear.
func askSearchable(h http.Header) {
	h["Accept-Encoding"] = []string{"identity"}
	for _, name := range unscrubbable {
		delete(h, name)
	}
}

// strip removes the sandbox's own credentials.
func (q *request) strip(r *http.Request) {
	trailer, cookies := r.Trailer, r.Header["Cookie"]
	credential.StripRequest(r)
	if q.passesCookies() && len(cookies) > 0 {
		r.Header["Cookie"] = cookies
	}
	if credential.StripTrailers(trailer, nil); len(trailer) > 0 {
		r.Trailer = trailer // the map that the body fills in at its end
	}
	if q.form.upgrade { // which is of one connection, as all that has just gone
		websocket.KeepPlainProtocols(r.Header)
		r.Header["Connection"], r.Header["Upgrade"] = []string{"Upgrade"}, []string{"websocket"}
	}
}

// putCredentials removes the sandbox's own credentials and puts in those that the
// decision names. An account of the sandbox's own at an allowed destination would be a
// way out.
func (q *request) putCredentials(r *http.Request) error {
	if slices.ContainsFunc(q.grant.decision.Inject, func(i policy.Injection) bool { return i.Inject.Signs() }) {
		q.unsigned = head(r)
	}
	kept := q.placeholders.Keep(r, q.grant.decision)
	q.strip(r)
	askSearchable(r.Header)
	return q.leaseCredentials(r, kept)
}

// binding is what the request's credentials are leased for.
func (q *request) binding() credential.Binding {
	return credential.Binding{Host: q.host, Port: q.port, Verified: q.tls(), Sandbox: q.identity.ID, Policy: q.grant.decision.Revision}
}

// leaseCredentials puts the credentials that the decision names into a request that has
// none but the placeholders that were kept of it.
func (q *request) leaseCredentials(r *http.Request, kept placeholder.Kept) error {
	to := q.binding()
	injections := slices.Clone(q.grant.decision.Inject)
	slices.SortStableFunc(injections, func(a, b policy.Injection) int { return order(a) - order(b) })
	replaced := false
	for _, i := range injections {
		if i.Inject.Signs() && !replaced {
			replaced = true
			if err := q.placeholders.ReplaceHead(r, kept); err != nil {
				return err
			}
			if err := q.searchBody(r); err != nil {
				return err
			}
		}
		if i.Inject.Placeholder != nil && !q.placeholders.Needs(i, q.form.upgrade || r.Body != nil && r.Body != http.NoBody) {
			continue
		}
		lease, err := q.gateway.Broker.Lease(r.Context(), i.Credential, to)
		if err != nil {
			q.used = append(q.used, audit.CredentialUse{Name: i.Credential})
			return &leaseError{credential: i.Credential, err: err}
		}
		q.used = append(q.used, audit.CredentialUse{Lease: lease.Accessor, Name: lease.Name, Version: lease.Version})
		q.renewal.note(lease, r, kept)
		if i.Inject.Signs() {
			lease.Signing = q.signing(r)
		}
		if err := lease.Apply(r, i.Inject); err != nil {
			return &leaseError{credential: i.Credential, err: err}
		}
		if c := lease.Certificate(); c != nil {
			q.certificate = c
		}
		if i.Inject.Signs() {
			q.signedWith(lease)
		}
		if err := q.expose(lease); err != nil {
			return err
		}
		if i.Inject.Placeholder != nil {
			q.placeholders.Put(i, lease.Placeholder())
		}
	}
	if !replaced {
		if err := q.placeholders.ReplaceHead(r, kept); err != nil {
			return err
		}
	}
	credential.StripTrailers(r.Trailer, r.Header) // injected ones are among them
	return nil
}

// order has what signs the request come last.
func order(i policy.Injection) int {
	if i.Inject.Signs() {
		return 1
	}
	return 0
}

// passesCookies tells whether all rules that put a credential into the request let its
// cookies and those of its answer pass.
func (q *request) passesCookies() bool {
	return len(q.grant.decision.Inject) > 0 && q.grant.decision.Cookies
}

// expose has all answers to the sandbox searched for what is about to leave.
func (q *request) expose(lease *credential.Lease) error {
	use, lost, err := q.secrets.Add(q, lease)
	if err != nil {
		return &leaseError{credential: lease.Name, err: err}
	}
	q.sentWith = append(q.sentWith, use)
	if len(lost) == 0 {
		return nil
	}
	if q.lost == nil {
		q.lost = make(map[string]int)
	}
	for name, n := range lost {
		q.lost[name] += n
		q.gateway.metrics.Forgotten.Add(float64(n))
	}
	q.gateway.Logger.Warn("answers to a sandbox are no longer searched for values that were injected long ago",
		"sandbox", q.identity.Name, "credentials", slices.Sorted(maps.Keys(lost)))
	return nil
}

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
		q.gateway.Logger.Warn(q.clock, "rule", q.grant.decision.Rule, "host", q.host)
	}
}

// searchBody has placeholders in the body of a request that leaves replaced, or the
// request broken off.
func (q *request) searchBody(r *http.Request) error {
	return q.placeholders.SearchBody(r, q.gateway.bodies, q.identity.ID, func() http.Header { return q.sent.trailer })
}
