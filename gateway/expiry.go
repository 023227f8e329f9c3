package gateway

import (
	"errors"
	"time"

	"sallyport/gateway/credential"
)

// errExpired ends a session whose login is no longer good.
var errExpired = errors.New("the lease of the credential that the session logged in with has ended: connect again")

// leased is what a request logged in with.
type leased struct {
	name, version string
	to            credential.Binding
	expires       time.Time // zero: no lease
}

// Hold implements wire.Grant.
func (q *exchange) Hold() (stop func()) {
	if q.leased.expires.IsZero() {
		return func() {}
	}
	done := make(chan struct{})
	go func() {
		defer q.survive()
		for expires := q.leased.expires; ; {
			wait := time.NewTimer(time.Until(expires))
			select {
			case <-done:
				wait.Stop()
				return
			case <-wait.C:
			}
			// A lease that was renewed is the same one, for longer.
			now, err := q.gateway.broker.Lease(q.ctx, q.leased.name, q.leased.to)
			if err == nil && now.Version == q.leased.version && now.Material().Expires.After(expires) {
				expires = now.Material().Expires
				continue
			}
			q.mu.Lock()
			q.ended = errExpired
			q.mu.Unlock()
			q.Cut()
			return
		}
	}()
	return func() { close(done) }
}
