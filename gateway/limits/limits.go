// Package limits counts what a request or a tunnel uses of the limits that its decision
// names: requests, bytes, tokens, cost, concurrency.
//
// [Take] gives one a [Meter], which spends bytes as they go and says when a limit is used
// up; its owner then breaks the request off. Where a limit counts tokens, a [TokenMeter]
// reads what the request asks for and what its answer reports (package meter). The counters
// themselves are those of a [limit.Book], for all requests.
package limits

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"sallyport/policy"
	"sallyport/policy/limit"
)

// ExceededError names the limit that refuses a request, and says for how long it does.
type ExceededError struct {
	Rule   string
	Reason string
	Retry  time.Duration // zero: waiting does not help (too large, or unpriced)
	// Unpriced says that no price is configured for the model.
	Unpriced bool
}

func (e *ExceededError) Error() string { return e.Reason }

// Status is the HTTP status of the answer to a refused request.
func (e *ExceededError) Status() int {
	switch {
	case e.Unpriced:
		return http.StatusForbidden
	case e.Retry == 0:
		return http.StatusRequestEntityTooLarge
	}
	return http.StatusTooManyRequests
}

// Meter counts what a request or tunnel uses of its limits. A nil Meter counts nothing. It
// is safe for concurrent use.
type Meter struct {
	use     *limit.Use
	largest int64  // of a request's body in bytes, if rule is not empty
	rule    string // the limit of that size
	lenient bool   // observe mode: nothing is broken off
	unread  bool   // bytes are charged as tokens
	prices  policy.Prices
	costed  string // the limit that bounds cost, or empty
	over    atomic.Pointer[ExceededError]
}

// Take counts a request or tunnel that is about to be sent. size is the body's length in
// bytes, -1 if unknown. It returns nil where the decision names no limits, or when one is
// exceeded; in observe mode what is exceeded is counted, and the Meter returned beside the
// error.
func Take(book *limit.Book, s policy.Sandbox, d policy.Decision, size int64) (*Meter, *ExceededError) {
	if len(d.Limits) == 0 {
		return nil, nil
	}
	m := &Meter{lenient: d.Lenient}
	claims, err := m.claims(book, s, d, size)
	if err == nil {
		m.use, err = judged(book.Take(max(size, 0), claims...))
	}
	switch {
	case err == nil:
		return m, nil
	case d.Lenient:
		m.use = book.Overdraw(claims...)
		return m, err
	}
	return nil, err
}

// Check returns the error that Take would, and counts nothing.
func Check(book *limit.Book, s policy.Sandbox, d policy.Decision, size int64) *ExceededError {
	claims, err := new(Meter).claims(book, s, d, size)
	if err == nil && len(claims) > 0 {
		_, err = judged(nil, book.Check(max(size, 0), claims...))
	}
	return err
}

// claims checks the limits without a counter and returns the claims on the counters.
func (m *Meter) claims(book *limit.Book, s policy.Sandbox, d policy.Decision, size int64) ([]limit.Claim, *ExceededError) {
	var large, shut *ExceededError
	now := book.Now()
	claims := make([]limit.Claim, 0, len(d.Limits))
	for _, a := range d.Limits {
		if most := int64(a.Size); most > 0 {
			if size > most && large == nil {
				large = tooLarge(a.Name, most)
			}
			if m.rule == "" || most < m.largest {
				m.largest, m.rule = most, a.Name
			}
		}
		if wait := a.Opens(now); wait > 0 && (shut == nil || wait > shut.Retry) {
			shut = &ExceededError{Rule: a.Name, Reason: fmt.Sprintf("limit %s: this is not within its hours", a.Name), Retry: wait}
		}
		if a.Cost > 0 {
			m.costed, m.prices = a.Name, a.Prices
		}
		if !a.Periodic() && a.Concurrent == 0 {
			continue
		}
		claims = append(claims, limit.Claim{
			Key: limit.Key{Limit: a.Name, Subject: a.Subject}, By: limit.By{Sandbox: s.ID, Owner: s.Owner}, Per: a.Per, Every: time.Duration(a.Every), Uses: a.Credentials,
			Most: limit.Amount{Requests: a.Requests, Bytes: int64(a.Bytes), Uses: a.Uses, Concurrent: a.Concurrent, Tokens: a.Tokens, Cost: a.Cost},
		})
	}
	if large != nil {
		return claims, large
	}
	return claims, shut
}

func tooLarge(rule string, most int64) *ExceededError {
	return &ExceededError{Rule: rule, Reason: fmt.Sprintf("limit %s: a request's body has %v at most", rule, policy.Size(most))}
}

// judged turns an error of the limit store into an ExceededError.
func judged(u *limit.Use, err error) (*limit.Use, *ExceededError) {
	var e *limit.ExceededError
	if !errors.As(err, &e) {
		return u, nil
	}
	return nil, overdrawn(e)
}

// overdrawn describes a used-up limit without amounts that differ between requests, so
// that equal denials are aggregated.
func overdrawn(e *limit.ExceededError) *ExceededError {
	l := &ExceededError{Rule: e.Limit, Reason: e.Error(), Retry: e.Retry}
	switch every := brief(e.Every); e.What {
	case "bytes":
		l.Reason = fmt.Sprintf("limit %s: %v within %v are used up", e.Limit, policy.Size(e.Most), every)
	case "cost":
		l.Reason = fmt.Sprintf("limit %s: a cost of %v within %v is used up", e.Limit, limit.Money(e.Most), every)
	case "requests", "uses", "tokens":
		l.Reason = fmt.Sprintf("limit %s: %d %s within %v are used up", e.Limit, e.Most, e.What, every)
	}
	return l
}

// brief formats a duration without zero units: 24h, 1h30m.
func brief(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// Spend counts n bytes. On an error the caller breaks the request or tunnel off.
func (m *Meter) Spend(n int) error {
	if m == nil || !m.use.Metered() && !m.unread {
		return m.Err()
	}
	m.met(m.use.Spend(n))
	if m.unread {
		m.met(m.use.Charge(int64(n), m.prices.Highest().Output.For(int64(n))))
	}
	return m.Err()
}

// met keeps the first error of a limit.
func (m *Meter) met(err error) {
	if _, over := judged(nil, err); over != nil && !m.lenient {
		m.over.CompareAndSwap(nil, over)
	}
}

// Upload is Spend for n more bytes of a request's body; total is the sum so far.
func (m *Meter) Upload(n int, total int64) error {
	if m != nil && !m.lenient && m.rule != "" && total > m.largest {
		m.over.CompareAndSwap(nil, tooLarge(m.rule, m.largest))
	}
	return m.Spend(n)
}

// Lenient reports observe mode: nothing is broken off.
func (m *Meter) Lenient() bool { return m.lenient }

// Err is the limit's error that broke the request off, or nil.
func (m *Meter) Err() error {
	if m == nil {
		return nil
	}
	if over := m.over.Load(); over != nil {
		return over
	}
	return nil
}

// End releases the concurrent use.
func (m *Meter) End() {
	if m != nil {
		m.use.End()
	}
}

// metered counts the bytes that are read through it.
type metered struct {
	io.Reader
	meter *Meter
}

func (r metered) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if over := r.meter.Spend(n); over != nil {
		return 0, over
	}
	return n, err
}

// Through returns a reader that counts. Without a limit of bytes or tokens it returns r
// itself, so that the kernel can copy (splice(2)).
func (m *Meter) Through(r io.Reader) io.Reader {
	if m == nil || !m.use.Metered() && !m.unread {
		return r
	}
	return metered{r, m}
}
