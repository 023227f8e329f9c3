package decode

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Bounds of the memory that decoders hold, in bytes.
const (
	MaxMemory = 256 << 20 // of a Memory
	MaxShare  = 64 << 20  // of a Share
)

// waitTime is how long a body waits for others to end. A body that holds memory may be
// stuck for longer: then a later one is told rather than left waiting.
const waitTime = 5 * time.Second

// ErrMemory is the error for a body that was not decoded because others hold all the
// memory.
var ErrMemory = errors.New("too many compressed answers are being read at once")

// Memory bounds what all decoders hold together. The zero Memory is unused. It is
// safe for concurrent use.
type Memory struct {
	mu    sync.Mutex
	used  int
	freed chan struct{} // closed when some is given back; nil while nobody waits
}

// Share is the part of a Memory that one sandbox's bodies can hold. A nil Share has no
// bound.
type Share struct {
	memory *Memory
	used   int // guarded by memory.mu
}

// Share returns a new share.
func (m *Memory) Share() *Share { return &Share{memory: m} }

// Used is the memory that is held now, in bytes.
func (m *Memory) Used() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.used
}

// Hold is one body's part of a Share. A nil Hold counts nothing.
type Hold struct {
	share *Share
	ctx   context.Context // who waits for the body
	used  int             // guarded by share.memory.mu
	over  bool            // likewise
}

// Hold returns a new, empty hold. ctx ends its waiting.
func (s *Share) Hold(ctx context.Context) *Hold {
	if s == nil {
		return nil
	}
	return &Hold{share: s, ctx: ctx}
}

// Take waits until there is room for n more bytes, five seconds at most. The
// error is ErrMemory, or the context's.
func (h *Hold) Take(n int) error {
	if h == nil {
		return nil
	}
	m := h.share.memory
	var late *time.Timer
	for {
		m.mu.Lock()
		if h.over {
			m.mu.Unlock()
			return context.Canceled
		}
		if m.used+n <= MaxMemory && h.share.used+n <= MaxShare {
			m.used, h.share.used, h.used = m.used+n, h.share.used+n, h.used+n
			m.mu.Unlock()
			return nil
		}
		if m.freed == nil {
			m.freed = make(chan struct{})
		}
		freed := m.freed
		m.mu.Unlock()
		if late == nil {
			late = time.NewTimer(waitTime)
			defer late.Stop()
		}
		select {
		case <-freed:
		case <-h.ctx.Done():
			return h.ctx.Err()
		case <-late.C:
			return ErrMemory
		}
	}
}

// Used is the memory that the hold has, in bytes.
func (h *Hold) Used() int {
	if h == nil {
		return 0
	}
	h.share.memory.mu.Lock()
	defer h.share.memory.mu.Unlock()
	return h.used
}

// Give gives n bytes back; it does nothing if n is not positive.
func (h *Hold) Give(n int) {
	if h == nil || n <= 0 {
		return
	}
	m := h.share.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	h.give(min(n, h.used))
}

func (h *Hold) give(n int) {
	m := h.share.memory
	m.used, h.share.used, h.used = m.used-n, h.share.used-n, h.used-n
	if m.freed != nil && n > 0 {
		close(m.freed)
		m.freed = nil
	}
}

// Close gives everything back. Nothing more can be taken.
func (h *Hold) Close() error {
	if h == nil {
		return nil
	}
	m := h.share.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	h.over = true
	h.give(h.used)
	return nil
}
