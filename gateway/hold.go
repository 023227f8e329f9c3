package gateway

import (
	"sync"

	"sallyport/internal/quota"
)

// Bounds of what waits for operators here. The store has bounds of its own; these
// are for what it costs to ask. Bodies are counted with the others that are held:
// see room.
const (
	maxHeld      = 32  // requests and connections of a sandbox
	maxHeldAll   = 512 // of all
	leastHeld    = 2   // of a sandbox, whatever the others hold
	heldFallback = 30  // seconds after which it is asked again although nobody said so
)

// holds counts what waits.
type holds struct {
	places *quota.Places

	mu    sync.Mutex
	again chan struct{} // closed when the policy has changed
	over  chan struct{} // closed when no more is waited for
	ended bool
}

func (h *holds) begin() {
	h.places = quota.New(maxHeldAll, maxHeld).Least(leastHeld)
	h.again, h.over = make(chan struct{}), make(chan struct{})
}

// end lets go all that waits, unanswered.
func (h *holds) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.ended {
		h.ended = true
		close(h.over)
	}
}

// changed is closed when the policy has changed since.
func (h *holds) changed() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.again
}

// reconsider has the policy asked again about all that waits.
func (h *holds) reconsider() {
	h.mu.Lock()
	defer h.mu.Unlock()
	close(h.again)
	h.again = make(chan struct{})
}
