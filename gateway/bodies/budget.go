// Package bodies holds bodies of requests in memory, within one budget for all sandboxes:
// bodies that the policy judges or an operator is asked about, and the large heads of
// messages that are under way.
package bodies

import (
	"errors"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// Bounds of the bodies and large heads that are held, in bytes.
const (
	maxHeld      = 128 << 20 // of all sandboxes
	maxHeldOfOne = 32 << 20  // of a sandbox
	firstPiece   = 8 << 10   // capacity that a body begins with, whatever length it claims
)

// Errors of Budget.Take.
var (
	ErrSandboxFull = errors.New("the sandbox has too many request bodies under way that the policy or an operator has to see, or large heads")
	ErrFull        = errors.New("too many request bodies are under way that the policy or an operator has to see, or large heads")
)

// Budget counts the bodies and large heads that are held, from the first byte that is
// read to the request's end. It is safe for concurrent use.
type Budget struct {
	held    prometheus.Gauge
	crowded prometheus.Counter

	mu    sync.Mutex
	all   int64
	ofOne map[string]int64 // by sandbox ID
}

// NewBudget returns a Budget that has held follow the bytes, and crowded count refusals.
func NewBudget(held prometheus.Gauge, crowded prometheus.Counter) *Budget {
	return &Budget{held: held, crowded: crowded, ofOne: make(map[string]int64)}
}

// Take makes room for n bytes of a sandbox's. Its errors are ErrSandboxFull and ErrFull.
func (b *Budget) Take(id string, n int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	var err error
	switch {
	case b.ofOne[id]+n > maxHeldOfOne:
		err = ErrSandboxFull
	// A sandbox gets half of the room that others leave. So a few that hold theirs for
	// long, since they sleep or their upstreams do, leave something to everybody.
	case b.ofOne[id]+n > (maxHeld-(b.all-b.ofOne[id]))/2:
		err = ErrFull
	}
	if err != nil {
		b.crowded.Inc()
		return err
	}
	b.held.Add(float64(n))
	b.all += n
	b.ofOne[id] += n
	return nil
}

// Give takes it back.
func (b *Budget) Give(id string, n int64) {
	if n == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held.Sub(float64(n))
	b.all -= n
	if b.ofOne[id] -= n; b.ofOne[id] == 0 {
		delete(b.ofOne, id)
	}
}

// Heads is how much of a Budget the large heads of one request, or of one connection,
// hold. It is an http1.Budget. Its exported fields are set before it is used.
type Heads struct {
	Of *Budget
	ID string // of the sandbox; empty: not known yet
	// Who, if not nil, returns the ID that the client of a connection has by then.
	Who func() string

	mu   sync.Mutex
	room int64 // that has been made
}

// Take implements http1.Budget.
func (h *Heads) Take(n int64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.Who != nil && h.room == 0 {
		h.ID = h.Who()
	}
	err := h.Of.Take(h.ID, n)
	if err == nil {
		h.room += n
	}
	return err
}

// Release implements http1.Budget.
func (h *Heads) Release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.Of.Give(h.ID, h.room)
	h.room = 0
}
