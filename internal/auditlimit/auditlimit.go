// Package auditlimit bounds how many refusals are put on record: who is refused must
// not fill the disk, nor hide the refusals of others. None is lost: one that is recorded
// counts those before it that were not.
package auditlimit

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Of each source one refusal in a while is a record of its own, and so many are at
// once. Sources beyond a number are counted together.
const (
	Every   = 10 * time.Second
	Burst   = 20
	Sources = 64
)

// Limit is safe for concurrent use.
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

// New returns a limit of Every, Burst and Sources.
func New() *Limit { return &Limit{of: map[string]*source{}, rest: newSource()} }

// Count is told of a refusal of a source, and says for how many a record now stands; 0:
// none is made now.
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
