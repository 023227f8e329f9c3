package gateway

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"sallyport/audit"
	"sallyport/gateway/credential"
	"sallyport/gateway/placeholder"
)

// skew is how far this host's clock may be from an upstream's before an operator is told.
const skew = 30 * time.Second

// renewal is what it takes to send a request once more with other credentials, where an
// upstream does not take one that was kept, and that its source may give anew.
type renewal struct {
	leased []audit.CredentialUse // those that can be had anew
	header http.Header           // of the request before the first of them
	url    *url.URL
	kept   placeholder.Kept // of it
}

// note keeps what a request was before a lease that can be had anew is put in.
func (n *renewal) note(lease *credential.Lease, r *http.Request, kept placeholder.Kept) {
	if !lease.Cached() {
		return
	}
	if n.leased == nil {
		u := *r.URL
		n.header, n.url, n.kept = r.Header.Clone(), &u, kept.Clone()
	}
	n.leased = append(n.leased, audit.CredentialUse{Name: lease.Name, Version: lease.Version})
}

// renew has the sources of a request's credentials asked for others after an upstream has
// answered 401. It returns the request to send once more, or nil where the answer stands:
// there are no others, or the request may not be repeated. The broker bounds how often a
// source is asked.
func (q *request) renew(r *http.Request, resp *http.Response) *http.Request {
	if len(q.renewal.leased) == 0 {
		return nil
	}
	n := q.renewal // what comes of another answer is not asked about again
	q.renewal = renewal{}
	refused := make([]string, len(n.leased))
	for i, l := range n.leased {
		refused[i] = fmt.Sprintf("%s (version %s)", l.Name, l.Version)
	}
	q.said = "the upstream did not take the credential " + strings.Join(refused, ", ") + clocks(resp)
	again := q.repeated(r, n)
	if again == nil {
		q.said += "; another is asked for, and the request is not one to repeat"
		to, broker := q.binding(), q.gateway.broker
		q.gateway.work.Go(func() {
			for _, l := range n.leased {
				_, _ = broker.Refresh(q.gateway.life, l.Name, to, l.Version) // the next lease says what is wrong
			}
		})
		return nil
	}
	changed := false
	for _, l := range n.leased {
		other, err := q.gateway.broker.Refresh(r.Context(), l.Name, q.binding(), l.Version)
		if err != nil {
			q.said += "; there is no other"
			q.gateway.logger.Warn("a credential that an upstream did not take could not be had anew", "credential", l.Name, "error", err)
			return nil
		}
		changed = changed || other
	}
	if !changed {
		q.said += "; there is no other yet"
		return nil
	}
	used := slices.Clone(q.used)
	err := q.leaseCredentials(again, n.kept)
	if err == nil {
		err = q.findWay()
	}
	if err != nil {
		q.used = used
		q.said += "; another could not be leased"
		q.gateway.logger.Warn("a credential that an upstream did not take could not be leased anew", "sandbox", q.identity.Name, "error", err)
		return nil
	}
	q.renewal.leased = nil
	q.said += "; the request was sent again with another version"
	return again
}

// repeated returns the request as it was before its credentials, or nil where it may not
// be sent twice: its method is not idempotent (RFC 9110, section 9.2.2), or its body is
// not in memory.
func (q *request) repeated(r *http.Request, n renewal) *http.Request {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodPut, http.MethodDelete:
	default:
		return nil
	}
	if len(r.Trailer) > 0 || q.revoked() != nil {
		return nil
	}
	again := r.WithContext(r.Context())
	again.Header, again.URL = n.header, n.url
	switch {
	case r.Body == nil || r.Body == http.NoBody:
		return again
	case q.placeholders != nil: // placeholders in it are replaced as it leaves
		return nil
	case q.form.body != nil:
		again.Body = q.form.body.Again()
	case q.signed != nil:
		again.Body = q.signed.Again()
	default:
		return nil
	}
	if again.Body == nil {
		return nil
	}
	return again
}

// clocks says how far this host's clock is from an upstream's that does not take what may
// name a time.
func clocks(resp *http.Response) string {
	at, err := http.ParseTime(resp.Header.Get("Date"))
	if err != nil {
		return ""
	}
	switch behind := time.Until(at).Round(time.Second); {
	case behind > skew:
		return fmt.Sprintf(" (this host's clock is %v behind the upstream's)", behind)
	case behind < -skew:
		return fmt.Sprintf(" (this host's clock is %v ahead of the upstream's)", -behind)
	}
	return ""
}
