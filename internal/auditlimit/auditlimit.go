// Package auditlimit bounds the audit events for refusals: a client that is refused
// without end must not fill the disk, nor hide the refusals of others. Each event
// counts the refusals before it that got none, so that none is lost.
package auditlimit

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Each source has an event every 10 seconds in the long run, and 20 at once. Sources
// beyond 64 are counted together.
const (
	Every   = 10 * time.Second
	Burst   = 20
	Sources = 64
)

// Limit decides which refusals get an event. It is safe for concurrent use.
type Limit struct {
	mu   sync.Mutex
	of   map[string]*source
	rest *source // of those that have none of their own
}

type source struct {
	rate    *rate.Limiter
	skipped int // since the last record
}

func newSource() *source { return &source{rate: rate.NewLimiter(rate.Every(Every), Burst)} }

// New returns a Limit without sources.
func New() *Limit { return &Limit{of: map[string]*source{}, rest: newSource()} }

// Count counts a refusal of a source. It returns the number of refusals that an event now
// stands for, or 0 if no event is to be made.
func (l *Limit) Count(from string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.source(from)
	s.skipped++
	if !s.rate.Allow() {
		return 0
	}
	n := s.skipped
	s.skipped = 0
	return n
}

// source finds or makes a source's counts. l.mu is held.
func (l *Limit) source(from string) *source {
	if s := l.of[from]; s != nil {
		return s
	}
	if len(l.of) >= Sources {
		for other, s := range l.of { // one that has been silent for long is as good as new
			if s.rate.Tokens() >= Burst {
				l.rest.skipped += s.skipped
				delete(l.of, other)
			}
		}
	}
	// What was not recorded of a source that is forgotten stands in the record of the
	// next one that comes.
	if len(l.of) >= Sources || l.rest.skipped > 0 && l.rest.rate.Tokens() >= 1 {
		return l.rest
	}
	s := newSource()
	l.of[from] = s
	return s
}
