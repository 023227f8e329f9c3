package gateway

import "sync"

// Bounds of what waits for operators here. The store has bounds of its own; these
// are for what it costs to ask.
const (
	maxHeld      = 32       // requests and connections of a sandbox
	maxHeldAll   = 512      // of all
	maxSpool     = 16 << 20 // bytes of a sandbox's bodies
	maxSpoolAll  = 64 << 20 // of all
	heldFallback = 30       // seconds after which it is asked again although nobody said so
)

// holds counts what waits.
type holds struct {
	mu    sync.Mutex
	own   map[string]*share
	all   int
	bytes int
	again chan struct{} // closed when the policy has changed
	over  chan struct{} // closed when no more is waited for
	ended bool
}

// share is a sandbox's.
type share struct{ count, bytes int }

func (h *holds) begin() {
	h.own = make(map[string]*share)
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

// enter makes a place for one more of a sandbox's.
func (h *holds) enter(id string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.own[id]
	if h.all >= maxHeldAll || s != nil && s.count >= maxHeld {
		return false
	}
	if s == nil {
		s = &share{}
		h.own[id] = s
	}
	s.count++
	h.all++
	return true
}

// leave gives the place back.
func (h *holds) leave(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.own[id].count--
	h.all--
	h.tidy(id)
}

func (h *holds) tidy(id string) {
	if s := h.own[id]; s.count == 0 && s.bytes == 0 {
		delete(h.own, id)
	}
}

// room takes memory for a sandbox's bodies, or gives it back where n is negative.
func (h *holds) room(id string, n int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.own[id]
	switch {
	case n == 0:
		return true
	case n > 0 && (s == nil || s.bytes+n > maxSpool || h.bytes+n > maxSpoolAll):
		return false
	}
	s.bytes += n
	h.bytes += n
	h.tidy(id)
	return true
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
