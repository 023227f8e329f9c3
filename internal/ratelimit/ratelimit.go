// Package ratelimit bounds how often each of many sources does something, in a table of
// bounded size: a source that does it without end neither fills memory nor uses up what
// others may do. A source is any text, such as a sandbox ID or a network.
package ratelimit

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// BySource has a limiter for each source, and counts what each limiter refuses. A source
// that has been silent until its limiter is full again is forgotten when another needs its
// place. Sources without a place share one limiter. It is safe for concurrent use.
type BySource struct {
	rate    rate.Limit
	burst   int
	sources int

	mu   sync.Mutex
	of   map[string]*source
	rest *source // of those that have none of their own
}

type source struct {
	limiter *rate.Limiter
	refused int // since the last that was allowed
}

// New returns a BySource that allows each source a burst at once and r each second after
// that, and that tells up to so many sources apart.
func New(r rate.Limit, burst, sources int) *BySource {
	l := &BySource{rate: r, burst: burst, sources: sources, of: map[string]*source{}}
	l.rest = l.newSource()
	return l
}

// Audit events for refusals: each source has 20 at once, and one every 10 seconds after that.
// Sources beyond 64 are counted together.
const (
	AuditEvery   = 10 * time.Second
	AuditBurst   = 20
	AuditSources = 64
)

// ForAudit returns the BySource of audit events for refusals: a client that is refused
// without end must not fill the disk, nor hide the refusals of others.
func ForAudit() *BySource { return New(rate.Every(AuditEvery), AuditBurst, AuditSources) }

func (l *BySource) newSource() *source {
	return &source{limiter: rate.NewLimiter(l.rate, l.burst)}
}

// Allow tells whether a source may do it now.
func (l *BySource) Allow(from string) bool { return l.Count(from) > 0 }

// Count counts what a source does. It returns 0 if the source may not do it now, else the
// number that this one stands for: itself and those that were refused before it. None is lost.
func (l *BySource) Count(from string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.source(from)
	s.refused++
	if !s.limiter.Allow() {
		return 0
	}
	n := s.refused
	s.refused = 0
	return n
}

// source finds or makes a source's counts. l.mu is held.
func (l *BySource) source(from string) *source {
	if s := l.of[from]; s != nil {
		return s
	}
	if len(l.of) >= l.sources {
		for other, s := range l.of { // one that has been silent for long is as good as new
			if s.limiter.Tokens() >= float64(l.burst) {
				l.rest.refused += s.refused
				delete(l.of, other)
			}
		}
	}
	// The next source that comes counts what was refused of a source that is forgotten.
	if len(l.of) >= l.sources || l.rest.refused > 0 && l.rest.limiter.Tokens() >= 1 {
		return l.rest
	}
	s := l.newSource()
	l.of[from] = s
	return s
}
