package gateway

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Requests of HTTP/2 that a sandbox may reset soon after it sent them. A client that breaks
// off a page, or calls whose deadline is over, stays far below. (CVE-2023-44487: each costs the
// sender two frames, and the gateway a decision and a record.)
const (
	resetsAtOnce    = 500
	resetsPerSecond = 50
	soonReset       = time.Second
	maxResetters    = 1024 // sandboxes whose resets are counted apart
	manyResets      = "more requests were reset than a sandbox may: its HTTP/2 connections are told to go"
)

// resets bounds the requests that each sandbox resets. It is safe for concurrent use.
type resets struct {
	mu   sync.Mutex
	of   map[string]*rate.Limiter // by sandbox ID
	rest *rate.Limiter            // of those that have none of their own
}

func newResetLimiter() *rate.Limiter { return rate.NewLimiter(resetsPerSecond, resetsAtOnce) }

func newResets() *resets {
	return &resets{of: map[string]*rate.Limiter{}, rest: newResetLimiter()}
}

// add counts a request that was reset, and tells whether the sandbox may still do so.
func (r *resets) add(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.of[id]
	if l == nil {
		if len(r.of) >= maxResetters {
			for other, l := range r.of { // one that has reset nothing for long is as good as new
				if l.Tokens() >= resetsAtOnce {
					delete(r.of, other)
				}
			}
		}
		if len(r.of) >= maxResetters {
			return r.rest.Allow()
		}
		l = newResetLimiter()
		r.of[id] = l
	}
	return l.Allow()
}
