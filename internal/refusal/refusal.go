// Package refusal bounds how many refusals are put on record: who is refused must
// not fill the disk. None is lost: one that is recorded counts those before it that
// were not.
package refusal

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// One refusal in a while is a record of its own, and so many are at once.
const (
	Every = time.Second
	Burst = 20
)

// Limit is safe for concurrent use.
type Limit struct {
	rate *rate.Limiter

	mu      sync.Mutex
	skipped int // since the last record
}

// New returns a limit of Every and Burst.
func New() *Limit { return &Limit{rate: rate.NewLimiter(rate.Every(Every), Burst)} }

// Count is told of a refusal, and says for how many a record now stands; 0: none is
// made now.
func (l *Limit) Count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.skipped++
	if !l.rate.Allow() {
		return 0
	}
	n := l.skipped
	l.skipped = 0
	return n
}
