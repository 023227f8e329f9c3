package gateway

import (
	"sync/atomic"
	"time"

	"sallyport/gateway/tcp"
)

// accountEvery is how often a connection is looked at until something is recorded of it.
// The datapath's flows are compared with the audit log: see internal/reconcile.
const accountEvery = 2500 * time.Millisecond

// Reasons of connections about which nothing is decided.
const (
	undecidedYet = "nothing is decided yet about what the connection has sent"
	undecidedEnd = "the connection ended before anything was decided about what it had sent"
)

// account sees to it that a connection that has sent bytes is in the audit log, soon after
// its first byte and at its end, whether or not that came to a request.
type account struct {
	gateway *Gateway
	peer    *peer
	target  target // as it was dialled
	timer   *time.Timer
	heard   atomic.Bool // when it was closed
}

func (g *Gateway) keepAccount(c *connection) *account {
	a := &account{gateway: g, peer: c.peer, target: c.target}
	a.timer = time.AfterFunc(time.Hour, func() { a.look(c) }) // which needs the timer
	a.timer.Reset(accountEvery)
	return a
}

func (a *account) look(c *connection) {
	switch {
	case a.peer.recorded.Load() || c.lifetime.ctx.Err() != nil:
	case tcp.Heard(c):
		a.gateway.undecided(a.peer, a.target, undecidedYet)
	default:
		a.timer.Reset(accountEvery)
	}
}

// stop is called before the connection is closed, after which the kernel tells nothing.
func (a *account) stop(c *connection) {
	if a != nil {
		a.timer.Stop()
		a.heard.Store(!a.peer.recorded.Load() && tcp.Heard(c))
	}
}

// end is called when all that is known of the connection has been recorded.
func (a *account) end() {
	if a.heard.Load() {
		a.gateway.undecided(a.peer, a.target, undecidedEnd)
	}
}
